"""The scheduler's rules for giving devices to claims, one by one. tests/e2e/test_oracle.py holds them against Kubernetes' own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
from tests.unit.allocations import (
    GPU,
    NODE,
    OURS,
    Body,
    ask,
    asked,
    cel,
    claim,
    counters,
    device,
    devices,
    got,
    holds,
    of,
    one_of,
    shared,
)

from gpupartition.domain.allocator.allocate import Allocated, Allocator, Answer
from gpupartition.domain.allocator.pools import Features
from gpupartition.domain.allocator.selectors import UNKNOWN, Unknown
from gpupartition.domain.allocator.shares import Held, amount_of
from gpupartition.domain.allocator.wanted import GivenUp

# The order of search.


def test_the_first_device_that_is_published_is_the_first_that_is_given() -> None:
    assert got(of("p", devices("z", "a")), claim(ask())) == [["z"]]


def test_pools_are_searched_by_name_and_slices_too() -> None:
    assert got([*of("pb", devices("b")), *of("pa", devices("a"))], claim(ask())) == [["a"]]
    first, second = of("p", devices("first"), devices("second"))
    assert got([second, first], claim(ask())) == [["first"]]


def test_pools_with_devices_that_must_be_bound_come_last() -> None:
    waits = device("waits", bindingConditions=["ready"], bindingFailureConditions=["broken"])
    assert got([*of("pa", devices(waits)), *of("pb", devices("now"))], claim(ask())) == [["now"]]
    assert got(of("pa", devices(waits)), claim(ask())) == [["waits"]]
    assert got(of("pa", devices(waits)), claim(ask()), features=Features(binding_conditions=False)) is None


def test_an_earlier_request_gives_way_when_a_later_one_needs_its_device() -> None:
    slices = of("p", devices(device("only", attributes={"fast": {"bool": True}}), "other"))
    fast = ask("fast", selectors=cel(f'device.attributes["{GPU}"].?fast.orValue(false)'))
    assert got(slices, claim(ask("any"), fast)) == [["other", "only"]]


def test_what_is_held_is_not_given_and_who_only_looks_holds_nothing() -> None:
    slices = of("p", devices("a", "b"))
    assert got(slices, claim(ask()), held=[holds("a")]) == [["b"]]
    assert got(slices, claim(ask()), held=[holds("a", admin=True)]) == [["a"]]
    assert got(slices, claim(ask()), held=[holds("a", pool="another")]) == [["a"]]


def test_claims_of_a_pod_take_from_each_other() -> None:
    slices = of("p", devices("a", "b"))
    assert got(slices, claim(ask()), claim(ask(), name="d")) == [["a"], ["b"]]
    assert got(slices, claim(ask(count=2)), claim(ask(), name="d")) is None


# Alternatives, all, and how many.


def test_the_first_alternative_that_fits_is_taken_and_named() -> None:
    slices = of("p", devices("a", "b"))
    answer = asked(slices, claim(one_of("r", {"count": 3}, {"count": 2}, {"count": 1})))
    assert [(r.request, r.id[2]) for r in _only(answer).results] == [("r/a1", "a"), ("r/a1", "b")]


def test_an_alternative_gives_way_when_the_next_request_finds_nothing_otherwise() -> None:
    assert got(of("p", devices("a", "b")), claim(one_of("r", {"count": 2}, {"count": 1}), ask("s"))) == [["a", "b"]]


def test_all_are_all_that_are_selected_or_none() -> None:
    slices = of("p", devices("a", "b", "c"))
    everything = claim(ask(allocationMode="All"))
    assert got(slices, everything) == [["a", "b", "c"]]
    assert got(slices, everything, held=[holds("b")]) is None
    assert got([], everything) is None


def test_all_waits_for_pools_that_are_being_updated_or_are_broken() -> None:
    half, broken = of("p", devices("a"), count=2), of("p", devices("a", "a"))
    with pytest.raises(
        GivenUp, match=r"asks for all devices, and pool gpu.example.com/p is currently being updated: 1 of 2 slices"
    ):
        asked(half, claim(ask(allocationMode="All")))
    with pytest.raises(GivenUp, match="currently invalid: device a is there twice"):
        asked(broken, claim(ask(allocationMode="All")))


def test_a_claim_has_at_most_32_devices() -> None:
    slices = of("p", devices(*(f"d{number}" for number in range(100))))
    assert len((got(slices, claim(ask(count=32))) or [[]])[0]) == 32
    with pytest.raises(GivenUp, match="it asks for 33 devices, and a claim may have 32"):
        asked(slices, claim(ask(count=32), ask("s")))
    fewer = claim(one_of("r", {"count": 20}, {"count": 12}), ask("s", count=20))
    assert {r.request for r in _only(asked(slices, fewer)).results} == {"r/a1", "s"}


# Counters.

HALVES: Final = of(
    "p",
    counters(gpu={"memory": "80Gi"}),
    devices(
        device("half-0", costs={"memory": "40Gi"}),
        device("half-1", costs={"memory": "40Gi"}),
        device("full", costs={"memory": "80Gi"}),
    ),
)
FULL: Final = ask(
    "full", selectors=cel(f'device.driver == "{GPU}" && device.capacity["{GPU}"] == device.capacity["none.com"]')
)


def test_partitions_and_the_whole_gpu_exclude_each_other() -> None:
    assert got(HALVES, claim(ask(count=2))) == [["half-0", "half-1"]]
    assert got(HALVES, claim(ask(count=3))) is None
    assert got(HALVES, claim(ask()), held=[holds("full")]) is None
    assert got(HALVES, claim(ask()), held=[holds("half-0")]) == [["half-1"]]
    assert got(HALVES, claim(ask(count=2)), held=[holds("half-0")]) is None


def test_a_held_device_that_is_gone_draws_nothing_which_overcommits_its_gpu() -> None:
    assert got(HALVES, claim(ask(count=2)), held=[holds("half-7")]) == [["half-0", "half-1"]]


def test_a_counter_that_is_overdrawn_closes_all_of_its_pool() -> None:
    two = counters(gpu={"memory": "40Gi"}, other={"memory": "40Gi"})
    fits = {"name": "fits", "consumesCounters": [{"counterSet": "other", "counters": {"memory": {"value": "40Gi"}}}]}
    slices = of("p", two, devices(device("reshaped", costs={"memory": "80Gi"}), fits, "free"))
    assert got(slices, claim(ask())) == [["fits"]]
    assert got(slices, claim(ask()), held=[holds("reshaped")]) == [["free"]]


def test_devices_that_other_nodes_use_draw_on_the_same_counters() -> None:
    everywhere = {
        "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]}
    }
    slices = of(
        "p", {**counters(gpu={"links": "1"}), **everywhere}, devices(device("here", costs={"links": "1"})), at={}
    )
    other = of("p", devices(device("there", costs={"links": "1"})), at={})
    for body, node, number in ((slices[1], "n1", 1), (other[0], "n2", 2)):
        body["spec"]["nodeName"] = node
        body["metadata"]["name"] = f"p-{number}"
    pool = [*slices, *other]
    for body in pool:
        body["spec"]["pool"] = {"name": "p", "generation": 1, "resourceSliceCount": 3}
    assert got(pool, claim(ask())) == [["here"]]
    assert got(pool, claim(ask()), held=[holds("there")]) is None


def test_what_a_dead_end_took_is_given_back() -> None:
    slices = of(
        "p",
        counters(gpu={"memory": "2"}),
        devices(*(device(f"d{n}", costs={"memory": "1"}, taints=[TAINT]) for n in range(3)), "free"),
    )
    assert got(slices, claim(ask(count=1), ask("s", tolerations=[{"operator": "Exists"}], count=2))) == [
        ["free", "d0", "d1"]
    ]


# Shares.


def test_a_shared_device_is_given_until_it_is_used_up() -> None:
    slices = of("p", devices(shared("s", "10", {"default": "4", "validRange": {"min": "2", "step": "2"}})))
    answer = asked(slices, claim(ask()), claim(ask(capacity={"requests": {"memory": "5"}}), name="d"))
    assert [dict(r.consumed or {}) for each in answer.claims or () for r in each.results] == [
        {"memory": 4},
        {"memory": 6},
    ]
    assert got(slices, claim(ask()), held=[holds("s", share="x", memory="7")]) is None
    assert got(slices, claim(ask()), held=[holds("s", share="x", memory="6")]) == [["s"]]
    assert got(slices, claim(ask()), held=[holds("s")]) is None, "somebody has it alone"


@pytest.mark.parametrize(
    ("policy", "wanted", "taken"),
    [
        (None, None, "10"),
        (None, "3", "3"),
        ({"default": "4"}, None, "4"),
        ({"default": "4"}, "3", "3"),
        ({"default": "2", "validRange": {"min": "2", "step": "3"}}, "1", "2"),
        ({"default": "2", "validRange": {"min": "2", "step": "3"}}, "3", "5"),
        ({"default": "2", "validRange": {"min": "2", "step": "3"}}, "4500m", "5"),
        ({"default": "2", "validRange": {"min": "2", "step": "3", "max": "5"}}, "6", None),
        ({"default": "2", "validRange": {"min": "2"}}, "2500m", "2500m"),
        ({"default": "2", "validValues": ["2", "8"]}, "3", "8"),
        ({"default": "2", "validValues": ["2", "8"]}, "9", None),
        ({"default": "2"}, "11", None),
    ],
)
def test_a_request_is_rounded_up_to_what_the_device_gives(
    policy: Body | None, wanted: str | None, taken: str | None
) -> None:
    request = ask(capacity={"requests": {"memory": wanted}}) if wanted else ask()
    answer = asked(of("p", devices(shared("s", "10", policy))), claim(request)).claims
    assert taken is None if answer is None else answer[0].results[0].consumed == {"memory": amount_of(taken or "")}


def test_fractions_are_told_apart_only_with_their_feature() -> None:
    slices = of("p", devices(shared("s", "4", {"default": "1", "validRange": {"min": "500m", "step": "250m"}})))
    request = claim(ask(capacity={"requests": {"memory": "600m"}}))
    assert _only(asked(slices, request)).results[0].consumed == {"memory": 1}
    exact = _only(asked(slices, request, features=Features(fractional_capacity_range=True)))
    assert exact.results[0].consumed == {"memory": amount_of("750m")}


def test_a_request_beyond_what_can_be_counted_gives_the_pod_up() -> None:
    slices = of("p", devices(shared("s", "4", {"default": "2", "validRange": {"min": "2", "step": "4"}})))
    with pytest.raises(GivenUp, match="more than can be counted"):
        asked(slices, claim(ask(capacity={"requests": {"memory": "9223372036854775807"}})))


def test_a_capacity_is_meant_by_the_letter_and_filters_devices_that_are_not_shared() -> None:
    slices = of(
        "p",
        devices(
            device("small", capacity={"memory": {"value": "10Gi"}}),
            device("big", capacity={"memory": {"value": "40Gi"}}),
        ),
    )
    assert got(slices, claim(ask(capacity={"requests": {"memory": "20Gi"}}))) == [["big"]]
    assert got(slices, claim(ask(capacity={"requests": {f"{GPU}/memory": "20Gi"}}))) is None


def test_a_shared_partition_draws_its_counters_once() -> None:
    half = shared("half", "10", {"default": "5"}, costs={"memory": "1"})
    slices = of("p", counters(gpu={"memory": "1"}), devices(half, device("full", costs={"memory": "1"})))
    assert got(slices, claim(ask(count=1), ask("s"))) == [["half", "half"]]
    assert got(slices, claim(ask()), held=[holds("half", share="x", memory="5")]) == [["half"]]
    assert got(slices, claim(ask()), held=[holds("half", share="x", memory="10")]) is None


# Taints, constraints, admin access, selectors.

TAINT: Final = {"key": "layout", "value": "old", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("effect", "toleration", "given"),
    [
        ("NoSchedule", None, False),
        ("NoExecute", None, False),
        ("None", None, True),
        ("Later", None, True),
        ("NoSchedule", {"operator": "Exists"}, True),
        ("NoSchedule", {"key": "layout", "operator": "Exists", "effect": "NoExecute"}, False),
        ("NoSchedule", {"key": "layout", "operator": "Equal", "value": "old"}, True),
        ("NoSchedule", {"key": "layout", "value": "new"}, False),
        ("NoSchedule", {"key": "other", "operator": "Exists"}, False),
        ("NoSchedule", {"key": "layout", "operator": "Sometimes"}, False),
    ],
)
def test_a_tainted_device_is_for_those_who_tolerate_it(effect: str, toleration: Body | None, given: bool) -> None:
    slices = of("p", devices(device("d", taints=[{**TAINT, "effect": effect}])))
    request = ask(tolerations=[toleration] if toleration else [])
    assert (got(slices, claim(request)) is not None) is given
    assert got(slices, claim(request), features=Features(device_taints=False)) == [["d"]]


def of_gpus(*gpus: tuple[str, str]) -> list[Body]:
    return of(
        "p", devices(*(device(name, attributes={"uuid": {"string": uuid}} if uuid else {}) for name, uuid in gpus))
    )


def test_devices_agree_in_an_attribute_or_no_two_of_them_do() -> None:
    slices = of_gpus(("none", ""), ("a0", "a"), ("b0", "b"), ("a1", "a"), ("b1", "b"))
    assert got(slices, claim(ask(count=2), constraints=[{"matchAttribute": f"{GPU}/uuid"}])) == [["a0", "a1"]]
    assert got(slices, claim(ask(count=2), constraints=[{"distinctAttribute": f"{GPU}/uuid"}])) == [["a0", "b0"]]
    assert got(slices, claim(ask(count=3), constraints=[{"distinctAttribute": f"{GPU}/uuid"}])) is None
    assert got(slices, claim(ask(count=2), constraints=[{"matchAttribute": "other.com/uuid"}])) is None


def test_a_constraint_is_about_the_requests_that_it_names_or_about_all() -> None:
    slices = of_gpus(("a0", "a"), ("b0", "b"), ("a1", "a"))
    about = [{"matchAttribute": f"{GPU}/uuid", "requests": ["x", "z/a1"]}]
    assert got(slices, claim(ask("x"), ask("y"), ask("z"), constraints=about)) == [["a0", "b0", "a1"]]
    assert got(slices, claim(ask("x"), one_of("z", {"count": 2}, {}), constraints=about)) == [["a0", "b0", "a1"]]
    assert got(slices, claim(ask("x"), one_of("z", {"count": 9}, {}), constraints=about)) == [["a0", "a1"]]


def test_a_constraint_that_keeps_a_request_from_all_devices_gives_the_pod_up() -> None:
    with pytest.raises(GivenUp, match="do not agree with a constraint"):
        asked(
            of_gpus(("a0", "a"), ("b0", "b")),
            claim(ask(allocationMode="All"), constraints=[{"matchAttribute": f"{GPU}/uuid"}]),
        )


def test_admin_access_looks_at_what_others_hold_but_needs_counters_all_the_same() -> None:
    slices = of("p", devices("a"))
    looking = ask("look", adminAccess=True)
    assert got(slices, claim(looking), held=[holds("a")]) == [["a"]]
    assert got(slices, claim(looking, ask())) is None, "it is given once in a claim"
    assert got(slices, claim(ask()), claim(looking, name="d")) == [["a"], ["a"]]
    assert got(HALVES, claim(looking), held=[holds("full")]) is None
    with pytest.raises(GivenUp, match="admin access is off"):
        asked(slices, claim(looking), features=Features(admin_access=False))


def test_a_selector_that_cannot_be_asked_gives_the_pod_up_once_it_is_asked() -> None:
    unguarded = ask(selectors=cel(f'device.attributes["{GPU}"].index == 0'))
    slices = of("p", devices(device("a", attributes={"index": {"int": 0}}), "b"))
    assert got(slices, claim(unguarded)) == [["a"]]
    with pytest.raises(GivenUp, match=r"team/c, request r: .* cannot be asked of device b.*no such"):
        asked(slices, claim(unguarded), held=[holds("a")])
    with pytest.raises(GivenUp, match="there is no DeviceClass 'gone'"):
        asked(slices, claim(ask(of_class="gone")))


# Pools and nodes.


def test_half_a_pool_serves_nobody_and_others_serve_on() -> None:
    assert got(of("p", devices("a"), count=2), claim(ask())) is None
    assert got([*of("p", devices("a"), count=2), *of("q", devices("b"))], claim(ask())) == [["b"]]


def test_the_highest_generation_counts_wherever_it_is() -> None:
    old, new = of("p", devices("old")), of("p", devices("new"), generation=2)
    assert got([*old, *new], claim(ask())) == [["new"]]
    assert got([*old, *of("p", devices("new"), count=2, generation=2)], claim(ask())) is None
    elsewhere = of("p", devices("new"), generation=2, at={"nodeName": "n2"})
    assert got([*of("p", devices("old"), count=2), *elsewhere], claim(ask())) is None


@pytest.mark.parametrize(
    ("slices", "why"),
    [
        (of("p", devices("a", "a")), "device a is there twice"),
        (
            of("p", devices(device("a", costs={"memory": "1"}))),
            "device a draws on counter memory of gpu, which does not exist",
        ),
        (
            of("p", counters(gpu={"x": "1"}), devices(device("a", costs={"memory": "1"}))),
            "device a draws on counter memory of gpu",
        ),
        (of("p", counters(gpu={"x": "1"}), counters(gpu={"x": "1"}), devices("a")), "counter set gpu is there twice"),
    ],
)
def test_one_mistake_makes_all_of_a_pool_invalid_and_is_told(slices: list[Body], why: str) -> None:
    answer = asked(slices, claim(ask()))
    assert answer.claims is None
    assert why in answer.invalid[GPU, "p"]
    assert got([*slices, *of("q", devices("b"))], claim(ask())) == [["b"]]


def _in(*requirements: Body) -> Body:
    return {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": list(requirements)}]}}


@pytest.mark.parametrize(
    ("place", "reached"),
    [
        ({"allNodes": True}, True),
        ({"nodeName": "n2"}, False),
        (_in({"key": "zone", "operator": "In", "values": ["a", "b"]}), True),
        (_in({"key": "zone", "operator": "NotIn", "values": ["a"]}), False),
        (_in({"key": "none", "operator": "NotIn", "values": ["a"]}), True),
        (_in({"key": "none", "operator": "Exists"}), False),
        (_in({"key": "none", "operator": "DoesNotExist"}), True),
        (_in({"key": "rank", "operator": "Gt", "values": ["1"]}), True),
        (_in({"key": "rank", "operator": "Lt", "values": ["2"]}), False),
        (_in({"key": "zone", "operator": "Lt", "values": ["2"]}), False),
        ({"nodeSelector": {"nodeSelectorTerms": [{}]}}, False),
        (
            {
                "nodeSelector": {
                    "nodeSelectorTerms": [
                        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
                    ]
                }
            },
            True,
        ),
    ],
)
def test_a_pool_serves_the_nodes_that_it_says(place: Body, reached: bool) -> None:
    answer = asked(of("p", devices("a"), at=place), claim(ask()))
    assert (answer.claims is not None) is reached
    by_device = of(
        "p", devices({"name": "a", **place}, {"name": "b", "nodeName": "n2"}), at={"perDeviceNodeSelection": True}
    )
    assert (got(by_device, claim(ask())) is not None) is reached


def test_an_allocation_says_where_else_it_can_be_used() -> None:
    here = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]}
    zone = _in({"key": "zone", "operator": "In", "values": ["a"]})
    assert _only(asked(of("p", devices("a")), claim(ask()))).node_selector == here
    assert _only(asked(of("p", devices("a"), at={"allNodes": True}), claim(ask()))).node_selector is None
    assert _only(asked(of("p", devices("a", "b"), at=zone), claim(ask(count=2)))).node_selector == zone["nodeSelector"]
    bound = devices(device("a", bindsToNode=True))
    assert _only(asked(of("p", bound, at=zone), claim(ask()))).node_selector == here


# What is off, and what takes too long.


@pytest.mark.parametrize(
    ("feature", "request_", "why"),
    [
        ("prioritized_list", one_of("r", {}, {}), "it has alternatives"),
        ("consumable_capacity", ask(capacity={"requests": {"memory": "1"}}), "it has a capacity"),
    ],
)
def test_what_is_off_is_not_silently_left_out(feature: str, request_: Body, why: str) -> None:
    with pytest.raises(GivenUp, match=why):
        asked(of("p", devices("a")), claim(request_), features=Features(**{feature: False}))


def test_without_their_features_partitions_and_shares_are_not_given() -> None:
    assert got(HALVES, claim(ask()), features=Features(partitionable_devices=False)) is None
    slices = of("p", devices(shared("s", "10", {"default": "1"})))
    assert got(slices, claim(ask(), ask("t")), features=Features(consumable_capacity=False)) is None


@pytest.mark.parametrize(
    "request_",
    [ask(derivedAttributes=[{"name": "x"}]), ask(selectors=[{"regex": "x"}]), ask(allocationMode="Half")],
)
def test_what_is_not_known_here_gives_the_pod_up(request_: Body) -> None:
    with pytest.raises(GivenUp, match="off or unknown"):
        asked(of("p", devices("a")), claim(request_))


def test_slices_that_use_compatibility_groups_are_as_if_they_were_not_there() -> None:
    body = device("a", costs={"memory": "1"})
    body["consumesCounters"][0]["compatibilityGroups"] = ["mig"]
    assert got(of("p", counters(gpu={"memory": "1"}), devices(body)), claim(ask())) is None


def test_a_search_ends_when_it_is_late() -> None:
    def late() -> Iterator[bool]:
        yield from (False, False, True)

    with pytest.raises(GivenUp, match="took too long"):
        Allocator(of("p", devices("a")), [OURS], Held()).allocate(NODE, [claim(ask())], late=late().__next__)


def test_the_same_devices_in_other_hands() -> None:
    free = Allocator(
        of("p", counters(gpu={"m": "1"}), devices(device("a", costs={"m": "1"}), device("b", costs={"m": "1"}))),
        [OURS],
        Held(),
    )
    assert free.allocate(NODE, [claim(ask())]).claims is not None
    assert free.holding(Held.read([holds("a")])).allocate(NODE, [claim(ask())]).claims is None
    assert free.allocate(NODE, [claim(ask())]).claims is not None


def _only(answer: Answer) -> Allocated:
    assert answer.claims is not None
    (allocated,) = answer.claims
    return allocated


def test_what_was_given_is_held_from_then_on() -> None:
    allocator = Allocator(of("p", devices("a", "b")), [OURS], Held())
    first = allocator.allocate(NODE, [claim(ask())])
    then = allocator.having_given(first).allocate(NODE, [claim(ask())])
    assert [r.id[2] for answer in (first, then) for each in answer.claims or () for r in each.results] == ["a", "b"]


def test_shares_that_were_given_add_up() -> None:
    allocator = Allocator(of("p", devices(shared("a", "40Gi"))), [OURS], Held())
    half = claim(ask(capacity={"requests": {"memory": "20Gi"}}))
    for _ in range(2):
        allocator = allocator.having_given(allocator.allocate(NODE, [half]))
    assert allocator.allocate(NODE, [half]).claims is None


@pytest.mark.parametrize(
    "asked_for",
    [
        claim(ask(selectors=cel(f'device.attributes["{GPU}"].uuid == "x"'))),
        claim(ask(), constraints=[{"matchAttribute": f"{GPU}/uuid"}]),
        claim(ask(capacity={"requests": {"memory": "1"}})),
    ],
)
def test_nobody_can_say_what_hangs_on_what_is_not_known_of_a_device(asked_for: Body) -> None:
    told = {"name": "a", UNKNOWN: ["attributes", "capacity"]}
    allocator = Allocator(of("p", devices(told)), [OURS], Held())
    assert allocator.allocate(NODE, [claim(ask())]).claims is not None
    with pytest.raises(Unknown):
        allocator.allocate(NODE, [asked_for])
