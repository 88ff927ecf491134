"""DeviceClasses for what policies make: each is for its kind and nothing else, and never fails, whatever it is asked of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.unit import amd, nvidia
from tests.unit import published as ours
from tests.unit.expected_slices import devices, expected
from tests.unit.expressions import Published
from tests.unit.fleet import DRIVER, Fleet, equal, policy, whole

from gpupartition.__main__ import main, parser_of
from gpupartition.api.v1alpha1 import DriverType
from gpupartition.backends.offers import offers
from gpupartition.cli import classes as command
from gpupartition.cli.documents import Document
from gpupartition.cli.options import Unusable
from gpupartition.domain.allocator.selectors import selects
from gpupartition.domain.device_classes import Offer, device_class, name_of, selector
from gpupartition.domain.pool import Device, Pool
from gpupartition.kube import DAEMON_SETS, RESOURCE_SLICES, Object
from gpupartition.settings import Settings

Body = Mapping[str, Any]


async def printed(fleet: Fleet, *bodies: Object, prefix: str = "", names: Sequence[str] = ()) -> list[Object]:
    documents = [Document(at="policy", body=body) for body in bodies]
    return await command.classes(fleet.client, Settings(), documents, names, prefix)


def expressions(found: Sequence[Object]) -> dict[str, str]:
    return {body["metadata"]["name"]: body["spec"]["selectors"][0]["cel"]["expression"] for body in found}


def chosen(expression: str, bodies: Sequence[Body], of: str = DRIVER) -> list[str]:
    return [body["name"] for body in bodies if selects(expression, Published(body, of))]


# ---------------------------------------------------------------------------------------------------------------- what is printed


async def test_each_kind_has_a_class_that_means_its_devices_and_no_others() -> None:
    fleet = Fleet(1)
    found = expressions(await printed(fleet, policy()))
    assert list(found) == [f"half.{DRIVER}", f"whole.{DRIVER}"]
    fleet.publish("node-1", parts=2)
    bodies = [device for each in fleet.objects[RESOURCE_SLICES] for device in each["spec"].get("devices", ())]
    assert chosen(found[f"half.{DRIVER}"], bodies) == [body["name"] for body in bodies if "partition" in body["name"]]
    assert chosen(found[f"whole.{DRIVER}"], bodies) == [body["name"] for body in bodies if "full" in body["name"]]


async def test_policies_of_one_driver_have_their_classes_together() -> None:
    fleet = Fleet(2)
    first, second = ({"kubernetes.io/hostname": node} for node in fleet.nodes)
    bodies = [policy("a", equal(2), selector=first), policy("b", equal(4), selector=second)]
    assert list(expressions(await printed(fleet, *bodies))) == [
        f"{kind}.{DRIVER}" for kind in ("half", "whole", "quarter")
    ]


async def test_policies_of_the_cluster_are_taken_by_name_and_those_that_are_done_too() -> None:
    fleet = Fleet(1)
    fleet.apply(policy("inference", whole()))
    assert list(expressions(await printed(fleet, names=["inference"]))) == [f"whole.{DRIVER}"]


async def test_with_a_prefix_each_class_is_an_extended_resource() -> None:
    found = await printed(Fleet(1), policy(), prefix="example.com")
    assert [body["spec"]["extendedResourceName"] for body in found] == ["example.com/gpu-half", "example.com/gpu-whole"]


async def test_a_policy_that_makes_nothing_is_told_why() -> None:
    with pytest.raises(Unusable, match="no node that they select can have their layouts"):
        await printed(Fleet(1), policy(selector={"none": "none"}))
    with pytest.raises(Unusable, match=r"cannot publish|TooManyParts|parts"):
        await printed(Fleet(1), policy("p", equal(32)))


async def test_a_driver_whose_name_is_none_is_refused() -> None:
    fleet = Fleet(1)
    (base,) = fleet.objects[DAEMON_SETS]
    for container in base["spec"]["template"]["spec"]["containers"]:
        container["env"] = [e for e in container.get("env", ()) if e["name"] != "DRIVER_NAME"]
        container["env"].append({"name": "DRIVER_NAME", "value": 'x" || true || "'})
    with pytest.raises(Unusable, match="which the API takes for no driver's name"):
        await printed(fleet, policy())


def test_two_drivers_do_not_share_an_extended_resource() -> None:
    found = {"a.example.com": {"half": 1}, "b.example.com": {"half": 1, "whole": 1}}
    with pytest.raises(Unusable, match=r"example.com/gpu-half would be a class of a.example.com and of b.example.com"):
        command._tell_apart(found, "example.com")
    command._tell_apart(found, "")


@pytest.mark.parametrize(
    "prefix", ["", "Example.com", "a b", "kubernetes.io", "x.kubernetes.io", "a/b", "-a", "a" * 250]
)
def test_a_prefix_that_no_extended_resource_may_have_is_wrong_usage(
    prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["classes", f"--extended-resource-prefix={prefix}"])
    assert ended.value.code == 2
    assert "such as example.com" in capsys.readouterr().err or prefix not in {"kubernetes.io", "x.kubernetes.io"}


def test_a_prefix_need_not_be_given() -> None:
    assert parser_of("classes").parse_args(["inference"]).extended_resource_prefix is None


async def test_what_is_printed_is_what_kubectl_applies() -> None:
    found = await printed(Fleet(1), policy())
    assert list(yaml.safe_load_all(command.FORMS["yaml"](found))) == found
    assert json.loads(command.FORMS["json"](found))["items"] == found
    assert command.FORMS["name"](found).splitlines() == [
        f"deviceclass.resource.k8s.io/{kind}.{DRIVER}" for kind in ("half", "whole")
    ]


# ------------------------------------------------------------------------------------------------------------- drivers and kinds


def _each_means_its_own(kind: DriverType, pool: Pool, bodies: Sequence[Body], told: Sequence[Sequence[str]]) -> None:
    """Every class can be asked of every device, of others' too, and each device is in exactly one."""
    found = {name: selector(DRIVER, offer) for name, offer in offers(kind, pool).items()}
    assert list(found) == [name for name, *_ in told]
    for name, *first in told:
        assert chosen(found[name], bodies)[: len(first)] == first
    for body in bodies:
        assert sum(selects(each, Published(body, DRIVER)) for each in found.values()) == 1
    for body in ({"name": "bare"}, {"name": "odd", "attributes": {"profile": {"int": 1}, "type": {"bool": True}}}):
        for each in found.values():
            assert not selects(each, Published(body, DRIVER))
            assert not selects(each, Published(bodies[0], "other.example.com"))


def test_what_the_operator_publishes_is_told_apart_by_profile() -> None:
    pool = ours.config(ours.equal(4)).pool
    bodies = devices(expected(DriverType.PUBLISH, pool))
    _each_means_its_own(
        DriverType.PUBLISH, pool, bodies, [("quarter", "gpu-0-1of4"), ("whole", "gpu-0-full", "gpu-1-full")]
    )


def test_mig_partitions_are_told_apart_by_profile_and_whole_gpus_by_type() -> None:
    on = nvidia.facts(nvidia.cut(0, nvidia.H100, "1g.10gb", "1g.10gb+me", "3g.40gb"), nvidia.cut(1, nvidia.H100))
    layouts = [
        nvidia.profiles("1g.10gb", "1g.10gb+me", "3g.40gb", match={"indexes": [0]}),
        {"match": {"all": True}, "type": "Whole"},
    ]
    pool = nvidia.compiled(*layouts, on=on).pool
    bodies = devices([dict(body) for body in on.slices])
    names = {"1g-10gb", "1g-10gb-me", "3g-40gb", "whole"}
    assert offers(DriverType.NVIDIA_MIG, pool).keys() == names
    _each_means_its_own(DriverType.NVIDIA_MIG, pool, bodies, [(name,) for name in offers(DriverType.NVIDIA_MIG, pool)])


def test_amd_partitions_are_told_apart_by_modes() -> None:
    on = amd.facts(*amd.EIGHT)
    pool = amd.compiled(amd.mode("CPX", "NPS4"), on=on).pool
    _each_means_its_own(DriverType.AMD_DCM, pool, amd.gpu(0, "cpx_nps4"), [("cpx-nps4",)])
    spx = amd.compiled(amd.mode("SPX", "NPS1"), on=on).pool
    _each_means_its_own(DriverType.AMD_DCM, spx, amd.gpu(0), [("whole",)])


def test_devices_of_which_nothing_tells_the_kind_have_no_class() -> None:
    assert offers(DriverType.PUBLISH, Pool(devices=(Device(name="d"),))) == {}
    assert offers(DriverType.AMD_DCM, Pool(devices=(Device(name="d", gpu="g", kind="fixed"),))) == {}


# ----------------------------------------------------------------------------------------------------------------- names and CEL


@pytest.mark.parametrize(
    ("profile", "name"),
    [
        ("full", "whole"),
        ("1of2", "half"),
        ("1of3", "third"),
        ("1of4", "quarter"),
        ("1of7", "1of7"),
        ("1g.10gb", "1g-10gb"),
        ("1g.10gb+me", "1g-10gb-me"),
        ("1g.24gb+me.all", "1g-24gb-me-all"),
        ("cpx_nps4", "cpx-nps4"),
        ("large", "large"),
        ("my-large", "my-large"),
    ],
)
def test_a_profile_has_a_name_that_people_can_read(profile: str, name: str) -> None:
    assert name_of(profile) == name


@given(st.text(min_size=1, max_size=64), st.text(min_size=1, max_size=64))
def test_names_are_labels_and_different_profiles_have_different_ones(one: str, other: str) -> None:
    names = {profile: name_of(profile) for profile in (one, other)}
    for name in names.values():
        assert command._DOMAIN.fullmatch(name)
        assert "." not in name
        assert len(f"gpu-{name}") <= 63
    assert len(set(names.values())) == len(names)


@pytest.mark.parametrize(
    ("one", "other"),
    [("half", "1of2"), ("whole", "full"), ("1g-10gb", "1g.10gb"), ("cpx-nps4", "cpx_nps4"), ("a_b", "a-b")],
)
def test_a_profile_that_looks_like_the_name_of_another_has_another_name(one: str, other: str) -> None:
    assert name_of(one) != name_of(other)


TEXTS: Final = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


@given(TEXTS, TEXTS)
def test_whatever_is_in_a_profile_the_class_means_that_profile_alone(one: str, other: str) -> None:
    expression = selector(DRIVER, Offer(name="x", texts={"profile": one}))
    for profile in (one, other):
        device = Published({"name": "d", "attributes": {"profile": {"string": profile}}}, DRIVER)
        assert selects(expression, device) is (profile == one)


def test_a_class_is_named_as_drivers_name_theirs() -> None:
    body = device_class(
        "gpu.nvidia.com", Offer(name="1g-10gb", texts={"type": "mig"}), extended="example.com/gpu-1g-10gb"
    )
    assert body == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "1g-10gb.gpu.nvidia.com"},
        "spec": {
            "selectors": [
                {
                    "cel": {
                        "expression": 'device.driver == "gpu.nvidia.com" && "type" in device.attributes["gpu.nvidia.com"] '
                        '&& device.attributes["gpu.nvidia.com"]["type"] == "mig"'
                    }
                }
            ],
            "extendedResourceName": "example.com/gpu-1g-10gb",
        },
    }
