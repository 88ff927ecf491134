"""Who would find devices, and where: pods and claims one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest
from tests.unit.allocations import counters, device, devices, of
from tests.unit.fleet import asking, device_class

from gpupartition.domain.allocator.allocate import Allocator
from gpupartition.domain.allocator.selectors import UNKNOWN
from gpupartition.domain.allocator.shares import Held
from gpupartition.domain.allocator.taints import tainted
from gpupartition.domain.asks import Ask, Desk, alone, key_of, waiting
from gpupartition.domain.fit import Fits, Floor, may_run

Body = dict[str, Any]

GPU: Final = "gpu.example.com"
CLASSES: Final = [
    device_class("gpu", f"device.driver == '{GPU}'"),
    device_class("half", f"device.driver == '{GPU}'", extendedResourceName="example.com/gpu-half"),
]


def node(name: str, *, taints: Sequence[Body] = (), cordoned: bool = False, **labels: str) -> Body:
    spec = {"taints": list(taints)} | ({"unschedulable": True} if cordoned else {})
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


def publishes(name: str, *them: str | Body) -> list[Body]:
    """The slices of a node's pool."""
    return of(name, devices(*them), at={"nodeName": name})


def floor(nodes: Sequence[Body], *slices: list[Body], claims: Sequence[Body] = ()) -> Floor:
    every = [each for some in slices for each in some]
    return Floor(nodes, Allocator(every, CLASSES, Held.read(claims)))


def claim(name: str, spec: Body | None = None, *, held: str = "", **metadata: str) -> Body:
    """A claim in namespace `team`; it has a device of a node, if that is given as `node/device`."""
    body: Body = {
        "metadata": {"name": name, "namespace": "team", **metadata},
        "spec": spec or asking(device_class="gpu"),
    }
    if held:
        pool, _, name = held.partition("/")
        here = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [pool]}]}]}
        results = [{"request": "gpu", "driver": GPU, "pool": pool, "device": name}]
        body["status"] = {"allocation": {"devices": {"results": results}, "nodeSelector": here}}
    return body


def pod(name: str, *claims: str, template: str = "", spec: Body | None = None, **metadata: str) -> Body:
    """A pod in namespace `team` with these claims, or one that is made from a template."""
    entries = [{"name": each, "resourceClaimName": each} for each in claims]
    entries += [{"name": "made", "resourceClaimTemplateName": template}] if template else []
    meta = {"name": name, "namespace": "team", **metadata}
    return {"metadata": meta, "spec": {"resourceClaims": entries, **(spec or {})}, "status": {"phase": "Pending"}}


def template(name: str, spec: Body | None = None) -> Body:
    return {"metadata": {"name": name, "namespace": "team"}, "spec": {"spec": spec or asking(device_class="gpu")}}


def asks(*pods: Body, claims: Sequence[Body] = (), templates: Sequence[Body] = ()) -> list[Ask]:
    return sorted(waiting(pods, claims, Desk(claims, templates, CLASSES)), key=lambda ask: ask.turn)


def placed(where: Floor, some: Sequence[Ask]) -> dict[str, tuple[Fits, str]]:
    return {ask.name: (outcome.fits, outcome.node) for ask, outcome in where.place(some).items()}


# ------------------------------------------------------------------------------------------------------------------ who asks


def test_a_pod_waits_for_the_claims_that_it_names_and_for_those_made_from_templates() -> None:
    (ask,) = asks(pod("web", "mine", template="t"), claims=[claim("mine")], templates=[template("t")])
    assert [key_of(each) for each in ask.claims] == [("team", "mine"), ("team", "web-made")]
    assert (ask.kind, str(ask)) == ("Pod", "team/web")


def test_a_claim_that_was_made_for_a_pod_is_the_pods_and_not_a_second_one() -> None:
    body = pod("web", template="t")
    body["status"]["resourceClaimStatuses"] = [{"name": "made", "resourceClaimName": "web-made-x7"}]
    (ask,) = asks(body, claims=[claim("web-made-x7")], templates=[template("t")])
    assert [key_of(each) for each in ask.claims] == [("team", "web-made-x7")]


def test_a_claim_without_devices_that_no_pod_names_waits_for_itself() -> None:
    found = asks(pod("web", "named"), claims=[claim("named"), claim("free"), claim("has", held="n1/a")])
    assert sorted((ask.kind, ask.name) for ask in found) == [("Pod", "web"), ("ResourceClaim", "free")]


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"nodeName": "n1"}},
        {"status": {"phase": "Succeeded"}},
        {"metadata": {"name": "web", "namespace": "team", "deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {"spec": {"resourceClaims": []}},
        {"spec": {"resourceClaims": [{"name": "x", "resourceClaimName": "has"}]}},
    ],
)
def test_a_pod_that_is_placed_or_over_or_needs_nothing_more_waits_for_nothing(change: Body) -> None:
    assert asks({**pod("web", "has"), **change}, claims=[claim("has", held="n1/a")]) == []


def test_what_a_pod_names_and_is_not_there_is_told() -> None:
    wants_claim, wants_template = asks(pod("a", "nobody"), pod("b", template="nothing"))
    outcomes = floor([node("n1")], publishes("n1", "a")).place([wants_claim, wants_template])
    assert [o.why for o in outcomes.values()] == [
        "there is no ResourceClaim team/nobody",
        "there is no ResourceClaimTemplate team/nothing",
    ]
    assert {o.fits for o in outcomes.values()} == {Fits.NO}


def test_a_template_that_needs_no_claim_asks_for_none() -> None:
    body = pod("web", template="t")
    body["status"]["resourceClaimStatuses"] = [{"name": "made"}]
    assert asks(body) == []


def test_an_extended_resource_that_is_a_class_is_asked_for_like_a_claim() -> None:
    def container(**resources: str) -> Body:
        return {"resources": {"requests": {name.replace("__", "/"): n for name, n in resources.items()}}}

    half = {"resources": {"limits": {"example.com/gpu-half": "1"}}}
    implicit = {"resources": {"requests": {"deviceclass.resource.kubernetes.io/gpu": "2", "cpu": "1"}}}
    first = {"resources": {"requests": {"example.com/gpu-half": "2"}}}
    body = pod("web", spec={"containers": [half, implicit, container(cpu="1")], "initContainers": [first]})
    (ask,) = asks(body)
    (made,) = ask.claims
    requests = made["spec"]["devices"]["requests"]
    assert [r["exactly"] for r in requests] == [
        {"deviceClassName": "gpu", "count": 2},
        {"deviceClassName": "half", "count": 2},
    ]
    assert asks(pod("none", spec={"containers": [container(cpu="1")]})) == []


def test_of_classes_with_one_extended_resource_the_youngest_has_it() -> None:
    old, new = (device_class(name, extendedResourceName="example.com/gpu") for name in ("a", "b"))
    old["metadata"]["creationTimestamp"], new["metadata"]["creationTimestamp"] = (
        "2026-01-01T00:00:00Z",
        "2026-02-01T00:00:00Z",
    )
    body = pod("web", spec={"containers": [{"resources": {"limits": {"example.com/gpu": "1"}}}]})
    for classes in ([old, new], [new, old]):
        ask = Desk([], [], classes).waiting(body)
        assert ask is not None
        assert ask.claims[0]["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] == "b"


def test_the_queue_is_by_priority_and_then_by_age() -> None:
    bodies = [
        pod("old", template="t", creationTimestamp="2026-01-01T00:00:00Z"),
        pod("new", template="t", creationTimestamp="2026-01-02T00:00:00Z"),
        pod("urgent", template="t", creationTimestamp="2026-01-03T00:00:00Z", spec={"priority": 10}),
    ]
    bodies[2]["spec"]["resourceClaims"] = bodies[0]["spec"]["resourceClaims"]
    assert [ask.name for ask in asks(*reversed(bodies), templates=[template("t")])] == ["urgent", "old", "new"]


def test_the_next_start_of_a_pod_has_claims_as_their_templates_are_now_and_may_be_anywhere() -> None:
    running = pod("web", "shared", template="t", spec={"nodeName": "n1"})
    running["spec"]["resourceClaims"] = pod("web", "shared", template="t")["spec"]["resourceClaims"]
    running["status"] = {"phase": "Running", "resourceClaimStatuses": [{"name": "made", "resourceClaimName": "web-x"}]}
    changed = asking("device.allowMultipleAllocations", device_class="gpu")
    desk = Desk([claim("shared", held="n1/a"), claim("web-x", held="n1/b")], [template("t", changed)], CLASSES)
    ask = desk.next_start(running)
    assert [each["spec"] for each in ask.claims] == [asking(device_class="gpu"), changed]
    assert not any(each.get("status") for each in ask.claims)
    assert "nodeName" not in ask.pod


# ------------------------------------------------------------------------------------------------------------- where they fit


def test_each_gets_the_first_node_that_has_what_it_needs_and_keeps_it() -> None:
    where = floor([node("n2"), node("n1")], publishes("n1", "a"), publishes("n2", "a"))
    found = placed(where, [alone(claim(name)) for name in ("first", "second", "third")])
    assert found == {"first": (Fits.YES, "n1"), "second": (Fits.YES, "n2"), "third": (Fits.NO, "")}


def test_all_claims_of_a_pod_are_found_on_one_node_or_none_is() -> None:
    where = floor([node("n1"), node("n2")], publishes("n1", "a"), publishes("n2", "a", "b"))
    pair = pod("pair", "x", "y")
    found = placed(where, asks(pair, claims=[claim("x"), claim("y")]))
    assert found == {"pair": (Fits.YES, "n2")}
    alone_left = placed(where, [alone(claim("single"))])
    assert alone_left == {"single": (Fits.YES, "n1")}


def test_who_shares_a_claim_that_has_devices_follows_it_to_its_node() -> None:
    where = floor([node("n1"), node("n2")], publishes("n1", "a", "b"), publishes("n2", "a", "b"))
    claims = [claim("shared", held="n2/a"), claim("own")]
    assert placed(where, asks(pod("web", "shared", "own"), claims=claims)) == {"web": (Fits.YES, "n2")}


def test_pods_that_share_a_claim_run_where_the_first_of_them_got_it() -> None:
    where = floor([node("n1"), node("n2")], publishes("n1", "a"), publishes("n2", "a", "b"))
    pods = [
        pod("first", "shared", "one", creationTimestamp="2026-01-01T00:00:00Z"),
        pod("second", "shared", creationTimestamp="2026-01-02T00:00:00Z"),
    ]
    found = placed(where, asks(*pods, claims=[claim("shared"), claim("one")]))
    assert found == {"first": (Fits.YES, "n2"), "second": (Fits.YES, "n2")}


@pytest.mark.parametrize(
    ("spec", "runs"),
    [
        ({}, True),
        ({"nodeName": "n1"}, True),
        ({"nodeName": "n2"}, False),
        ({"nodeSelector": {"zone": "a"}}, True),
        ({"nodeSelector": {"zone": "b"}}, False),
        ({"affinity": {"nodeAffinity": {}}}, True),
        *(
            (
                {
                    "affinity": {
                        "nodeAffinity": {
                            "requiredDuringSchedulingIgnoredDuringExecution": {
                                "nodeSelectorTerms": [
                                    {"matchExpressions": [{"key": "zone", "operator": operator, "values": ["a"]}]}
                                ]
                            }
                        }
                    }
                },
                runs,
            )
            for operator, runs in (("In", True), ("NotIn", False))
        ),
    ],
)
def test_a_pod_may_run_where_its_selector_and_its_affinity_say(spec: Body, runs: bool) -> None:
    assert may_run(spec, node("n1", zone="a")) is runs


@pytest.mark.parametrize(
    "closed",
    [
        {"taints": [{"key": "k", "effect": "NoSchedule"}]},
        {"taints": [{"key": "k", "effect": "NoExecute"}]},
        {"cordoned": True},
    ],
)
def test_a_tainted_or_cordoned_node_is_for_those_who_tolerate_it(closed: Body) -> None:
    assert not may_run({}, node("n1", **closed))
    assert may_run({"tolerations": [{"operator": "Exists"}]}, node("n1", **closed))
    assert may_run({}, node("n1", taints=[{"key": "k", "effect": "PreferNoSchedule"}]))


def test_why_somebody_gets_nothing_is_told() -> None:
    where = floor([node("n1"), node("n2")], publishes("n1", "a"), claims=[claim("has", held="n1/a")])
    absent = claim("absent", asking("device.allowMultipleAllocations", device_class="gpu"))
    nowhere = pod("nowhere", template="t", spec={"nodeSelector": {"zone": "nowhere"}})
    wants = [alone(claim("taken")), alone(absent), *asks(nowhere, templates=[template("t")])]
    assert {ask.name: outcome.why for ask, outcome in where.place(wants).items()} == {
        "taken": "what it could have is taken, or too little of it is left on any one node",
        "absent": "no node that it may run on has such devices",
        "nowhere": "there is no node that it may run on",
    }


def test_that_the_scheduler_takes_nothing_of_a_pool_is_told_with_the_reason() -> None:
    where = floor([node("n1")], publishes("n1", "a", "a"))
    (outcome,) = where.place([alone(claim("c"))]).values()
    assert outcome.fits is Fits.NO
    assert outcome.why == (
        f"no node that it may run on has such devices; nothing is taken of pool n1 of {GPU}: device a is there twice"
    )


def test_a_selector_that_cannot_be_asked_gives_the_pod_up_with_the_reason() -> None:
    wanted = claim("c", asking(f"device.attributes['{GPU}'].nothing == 1", device_class="gpu"))
    (outcome,) = floor([node("n1")], publishes("n1", "a")).place([alone(wanted)]).values()
    assert outcome.fits is Fits.NO
    assert "cannot be asked of device a: no such member" in outcome.why


def test_what_hangs_on_what_is_not_published_yet_is_unknown_unless_another_node_is_known_to_do() -> None:
    wanted = asking(f"device.attributes['{GPU}'].model == 'x'", device_class="gpu")
    told = {"name": "b", "attributes": {"model": {"string": "x"}}}
    coming: Body = {"name": "a", UNKNOWN: ["attributes"]}
    nodes = [node("n1"), node("n2")]
    assert placed(floor(nodes, publishes("n1", coming)), [alone(claim("c", wanted))]) == {"c": (Fits.UNKNOWN, "")}
    both = floor(nodes, publishes("n1", coming), publishes("n2", told))
    found = placed(both, [alone(claim(name, wanted)) for name in ("c", "d", "e")])
    assert found == {"c": (Fits.YES, "n2"), "d": (Fits.UNKNOWN, ""), "e": (Fits.UNKNOWN, "")}


def test_when_the_time_is_up_the_others_are_told_as_not_looked_at() -> None:
    def late() -> Iterator[bool]:
        yield from [False] * 8
        while True:
            yield True

    where = floor([node("n1")], publishes("n1", *"abcdefgh"))
    some = [alone(claim(f"c{number}", asking(f"{number} > 0", device_class="gpu"))) for number in range(1, 8)]
    found = [outcome.fits for outcome in where.place(some, late().__next__).values()]
    assert found[0] is Fits.YES
    assert found[-1] is Fits.UNSEEN
    assert found == sorted(found, key=[Fits.YES, Fits.UNSEEN].index)


def test_those_who_ask_the_same_as_one_who_got_nothing_are_not_searched_for_again() -> None:
    asked: list[bool] = []

    def late() -> bool:
        asked.append(True)
        return False

    where = floor([node(f"n{n}") for n in range(20)], *(publishes(f"n{n}", "a") for n in range(20)))
    nothing = asking("device.allowMultipleAllocations", device_class="gpu")
    where.place([alone(claim("first", nothing))], late)
    first = len(asked)
    where.place([alone(claim(f"c{n}", nothing)) for n in range(50)], late)
    assert len(asked) - first <= 50 < first


def test_counters_of_what_is_held_are_counted_and_those_of_what_is_gone_are_not() -> None:
    slices = of(
        "n1",
        counters(gpu={"memory": "2"}),
        devices(device("half", costs={"memory": "1"}), device("whole", costs={"memory": "2"})),
        at={"nodeName": "n1"},
    )
    whole = asking("true", device_class="gpu", count=2)
    held = floor([node("n1")], slices, claims=[claim("x", held="n1/half")])
    assert placed(held, [alone(claim("c"))]) == {"c": (Fits.NO, "")}
    free = floor([node("n1")], slices, claims=[claim("x", held="n1/gone")])
    assert placed(free, [alone(claim("c"))]) == {"c": (Fits.YES, "n1")}
    assert placed(free, [alone(claim("d", whole))]) == {"d": (Fits.NO, "")}


# ---------------------------------------------------------------------------------------------------------------------- taints


@pytest.mark.parametrize(
    ("selector", "closed"),
    [
        (None, set()),
        ({}, {"n1/a", "n1/b", "n2/a"}),
        ({"driver": GPU}, {"n1/a", "n1/b", "n2/a"}),
        ({"driver": "other.com"}, set()),
        ({"pool": "n1"}, {"n1/a", "n1/b"}),
        ({"pool": "n1", "device": "b"}, {"n1/b"}),
        ({"device": "a"}, {"n1/a", "n2/a"}),
    ],
)
def test_a_taint_rule_is_about_the_devices_that_it_selects(selector: Body | None, closed: set[str]) -> None:
    rule = {"spec": {"deviceSelector": selector, "taint": {"key": "k", "effect": "NoSchedule"}}}
    slices = [*publishes("n1", "a", {"name": "b", "taints": [{"key": "own", "effect": "None"}]}), *publishes("n2", "a")]
    found = {
        f"{body['spec']['pool']['name']}/{each['name']}"
        for body in tainted(slices, [rule])
        for each in body["spec"]["devices"]
        if any(taint["key"] == "k" for taint in each.get("taints", ()))
    }
    assert found == closed
    assert "taints" not in slices[0]["spec"]["devices"][0], "what was read is left as it is"
