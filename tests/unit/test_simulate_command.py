"""What would find devices: read from files as people write them, and told for people and programs."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Sequence
from typing import Any, Final

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.fleet import DRIVER, Fleet, asking, policy

from gpupartition.__main__ import main
from gpupartition.cli import simulate as command
from gpupartition.cli.documents import read
from gpupartition.cli.options import Unusable
from gpupartition.cli.workloads import KINDS, SPECS
from gpupartition.domain.cel import program
from gpupartition.domain.fit import Fits
from gpupartition.kube import RESOURCE_CLAIM_TEMPLATES, Object
from gpupartition.settings import Settings

SMALL: Final = f'device.capacity["{DRIVER}"].memory.isLessThan(quantity("50Gi"))'


def object_(kind: str, name: str, spec: Object, **metadata: Any) -> Object:
    return {"apiVersion": SPECS[kind][0], "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def claim(name: str, *selectors: str, **more: Any) -> Object:
    return object_("ResourceClaim", name, asking(*selectors), **more)


def template(name: str, *selectors: str) -> Object:
    return object_("ResourceClaimTemplate", name, {"spec": asking(*selectors)})


def pod_spec(*claims: str, template: str = "") -> Object:
    entries = [{"name": each, "resourceClaimName": each} for each in claims]
    entries += [{"name": "gpu", "resourceClaimTemplateName": template}] if template else []
    return {"containers": [{"name": "main", "image": "busybox"}], "resourceClaims": entries}


def affinity(operator: str, *values: str) -> Object:
    terms = [{"matchExpressions": [{"key": "rank", "operator": operator, "values": list(values)}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": required}}


def documents(*bodies: Object) -> list[Any]:
    return read(["-"], io.BytesIO(yaml.safe_dump_all(bodies).encode()), kinds=KINDS)


async def simulated(fleet: Fleet, *bodies: Object, patience: float = 60) -> Sequence[command.Row]:
    return await command.simulate(fleet.client, Settings(), documents(*bodies), "team", patience)


def fits(rows: Sequence[command.Row]) -> dict[str, tuple[Fits, Fits | None]]:
    return {row.ask.name: (row.now.fits, row.after.fits if row.after else None) for row in rows}


async def test_a_claim_fits_beside_all_that_is_allocated() -> None:
    fleet = Fleet(1)
    fleet.hold("node-1", device="gpu-0")
    (row,) = await simulated(fleet, claim("one"))
    assert (row.now.fits, row.now.devices) == (Fits.YES, ((DRIVER, "node-1", "gpu-1"),))
    assert row.after is None
    assert str(row.ask) == "team/one"


async def test_those_who_come_first_leave_less_for_those_who_come_later() -> None:
    eight = claim("eight")
    eight["spec"]["devices"]["requests"][0]["exactly"]["count"] = 8
    assert fits(await simulated(Fleet(1), claim("one"), eight)) == {"one": (Fits.YES, None), "eight": (Fits.NO, None)}
    assert fits(await simulated(Fleet(1), eight, claim("one"))) == {"eight": (Fits.YES, None), "one": (Fits.NO, None)}


async def test_with_a_policy_among_the_documents_it_is_told_what_fits_then() -> None:
    found = await simulated(Fleet(1), claim("half", SMALL), policy(rollout={"maxUnavailable": "100%"}))
    assert fits(found) == {"half": (Fits.NO, Fits.YES)}
    assert found[0].last.devices == ((DRIVER, "node-1", "gpu-0-partition-0"),)


async def test_pods_have_claims_of_the_files_and_templates_of_the_cluster() -> None:
    fleet = Fleet(1)
    fleet.objects[RESOURCE_CLAIM_TEMPLATES] = [
        {"metadata": {"name": "there", "namespace": "team"}, "spec": {"spec": asking()}}
    ]
    found = await simulated(
        fleet,
        object_("Pod", "web", pod_spec("mine", template="there")),
        claim("mine"),
        object_("Pod", "lost", pod_spec(template="nowhere")),
    )
    assert fits(found) == {"web": (Fits.YES, None), "lost": (Fits.NO, None)}
    assert len(found[0].now.devices) == 2
    assert found[1].now.why == "there is no ResourceClaimTemplate team/nowhere"


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("Deployment", {"replicas": 3}),
        ("StatefulSet", {"replicas": 3, "serviceName": "s"}),
        ("ReplicaSet", {"replicas": 3}),
        ("Job", {"parallelism": 3, "backoffLimit": 1}),
    ],
)
async def test_a_workload_asks_once_for_each_of_its_pods(kind: str, spec: Object) -> None:
    made = object_(kind, "web", {**spec, "template": {"spec": pod_spec(template="t")}})
    found = await simulated(Fleet(1), template("t"), made)
    assert [row.ask.name for row in found] == [f"web ({number} of 3)" for number in (1, 2, 3)]
    assert len({row.now.devices for row in found}) == 3
    group = {"Job": "batch"}.get(kind, "apps")
    assert command.names(found) == [f"{kind.lower()}.{group}/web"]


async def test_a_claim_that_is_in_the_cluster_too_is_the_one_of_the_file() -> None:
    fleet = Fleet(1)
    for number in range(8):
        fleet.hold("node-1", claim=f"team/c{number}", device=f"gpu-{number}")
    assert fits(await simulated(fleet, claim("other"))) == {"other": (Fits.NO, None)}
    assert fits(await simulated(fleet, claim("c3"))) == {"c3": (Fits.YES, None)}


async def test_an_object_is_where_it_says_or_else_where_the_command_says() -> None:
    found = await simulated(Fleet(1), claim("a"), claim("b", namespace="elsewhere"))
    assert [str(row.ask) for row in found] == ["team/a", "elsewhere/b"]


async def test_a_class_that_the_cluster_has_not_yet_is_that_of_the_file() -> None:
    small = {"selectors": [{"cel": {"expression": SMALL}}], "extendedResourceName": "example.com/small"}
    kinds = [object_("DeviceClass", name, small) for name in ("small", DRIVER)]
    asks = claim("one"), object_("ResourceClaim", "two", asking(device_class="small"))
    limits = {"resources": {"limits": {"example.com/small": 1}}}
    pod = object_("Pod", "three", {"containers": [{"name": "main", "image": "busybox", **limits}]})
    assert fits(await simulated(Fleet(1), *asks))["one"][0] is Fits.YES
    for parts, fit in (0, Fits.NO), (2, Fits.YES):
        fleet = Fleet(1)
        fleet.publish("node-1", parts=parts)
        assert fits(await simulated(fleet, *kinds, *asks, pod)) == dict.fromkeys(("one", "two", "three"), (fit, None))


async def test_nothing_that_asks_is_an_error() -> None:
    with pytest.raises(Unusable, match="nothing in the files asks for devices"):
        await simulated(Fleet(1), template("t"))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (claim("a") | {"apiVersion": "resource.k8s.io/v1beta1"}, "write resource.k8s.io/v1"),
        (
            claim("a") | {"spec": {"devices": {"requests": [{"name": "r"}]}}},
            "spec.devices.requests[0]: write exactly, or",
        ),
        (
            claim("a") | {"spec": {"devices": {"requests": [{"name": "r", "exactly": {}}]}}},
            "spec.devices.requests[0].exactly.deviceClassName: is missing",
        ),
        (claim("a") | {"spec": {"device": {}}}, "spec.device: there is no such field; write devices"),
        (claim("a") | {"spec": []}, "spec: write a map"),
        (object_("Pod", "p", {"resourceClaims": [{"name": "x"}]}), "resourceClaims[0]: write resourceClaimName, or"),
        (
            object_("ResourceClaim", "a", asking(capacity={"requests": {"memory": "lots"}})),
            "spec.devices.requests[0]: capacity.requests[memory]: write a quantity",
        ),
        (object_("Pod", "p", affinity("Gt", "x")), "affinity.nodeAffinity: rank: Gt takes one whole number"),
        (object_("Pod", "p", affinity("Like", "x")), "operator: write In, NotIn"),
        (object_("Job", "j", {"parallelism": -1, "template": {"spec": {}}}), "spec.parallelism: write at least 0"),
        (object_("Job", "j", {}), "spec.template: is missing"),
        (policy() | {"spec": {}}, "spec.driver: is missing"),
    ],
)
def test_a_mistake_in_a_file_is_told_where_it_is(body: Object, says: str) -> None:
    with pytest.raises(Unusable) as unusable:
        documents(body)
    assert says in str(unusable.value)


_JUNK: Final[Sequence[Any]] = [
    None,
    {},
    [],
    "",
    "x",
    -1,
    0,
    1.5,
    True,
    {"x": 1},
    [{}],
    [None],
    "device.",
    "9" * 40,
    {"cel": {}},
]
program(
    "true", {}
)  # the library raises the limit of recursion when it is first used, which hypothesis does not like half-way


@given(st.data())
def test_whatever_is_in_a_file_is_simulated_or_refused_with_the_place(data: st.DataObject) -> None:
    one = claim("a", SMALL)
    one["spec"]["devices"]["requests"][0]["exactly"] |= {
        "count": 2,
        "tolerations": [{"key": "k", "operator": "Exists"}],
    }
    one["spec"]["devices"]["constraints"] = [{"matchAttribute": f"{DRIVER}/index", "requests": ["gpu"]}]
    shared = claim("b")
    shared["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = {"requests": {"memory": "1Gi"}}
    pod = object_("Pod", "p", pod_spec("b", template="t") | affinity("In", "1") | {"nodeSelector": {"a": "b"}})
    pod["spec"]["containers"][0]["resources"] = {"limits": {"example.com/gpu": "1", "cpu": 1}}
    job = object_("Job", "j", {"parallelism": 2, "template": {"spec": pod_spec(template="t")}})
    bodies: Any = [one, shared, template("t", SMALL), pod, job]
    inside = bodies
    while isinstance(inside, dict | list) and inside:
        key = data.draw(st.sampled_from(sorted(inside) if isinstance(inside, dict) else range(len(inside))))
        if data.draw(st.booleans()) or not isinstance(inside[key], dict | list) or not inside[key]:
            inside[key] = data.draw(st.sampled_from(_JUNK))
            break
        inside = inside[key]
    try:
        rows = asyncio.run(simulated(Fleet(1), *bodies))
    except Unusable as unusable:
        told = str(unusable)
    else:
        told = command.FORMS["table"](rows)
    assert told


def test_other_kinds_are_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    assert [each.kind for each in documents(claim("a"), service)] == ["ResourceClaim"]
    assert "nothing is simulated for it: 1 Service" in capsys.readouterr().err
    with pytest.raises(Unusable, match=r"none of ResourceClaim, .* in there, but 1 Service"):
        documents(service)


async def test_people_see_a_line_for_each_and_programs_see_all() -> None:
    rows = await simulated(Fleet(1), claim("any"), claim("half", SMALL), policy(rollout={"maxUnavailable": "100%"}))
    assert command.FORMS["table"](rows).splitlines() == [
        "WHO                       NOW          AFTER    DEVICES",
        "ResourceClaim team/any    node-1       node-1   node-1/gpu-0-partition-0",
        "ResourceClaim team/half   DoesNotFit   node-1   node-1/gpu-0-partition-1",
    ]
    told = json.loads(command.FORMS["json"](rows))["asks"]
    assert [(each["name"], each["now"]["fits"], each["after"]["fits"]) for each in told] == [
        ("any", "Fits", "Fits"),
        ("half", "DoesNotFit", "Fits"),
    ]
    assert command.FORMS["name"](rows).splitlines() == [
        "resourceclaim.resource.k8s.io/any",
        "resourceclaim.resource.k8s.io/half",
    ]


async def test_why_something_does_not_fit_is_told_beside_it() -> None:
    rows = await simulated(Fleet(1), claim("half", SMALL))
    assert (
        command.FORMS["table"](rows).splitlines()[1].split("   ")[-1] == "no node that it may run on has such devices"
    )


async def test_when_the_time_is_up_it_is_said_how_many_were_looked_at() -> None:
    rows = await simulated(Fleet(1), claim("a"), claim("b"), patience=-1)
    assert command.FORMS["table"](rows).splitlines()[-1].startswith("looked at 0 of 2, then the time was up")


def test_without_a_file_it_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["simulate"])
    assert ended.value.code == 2
    assert "-f/--filename" in capsys.readouterr().err
