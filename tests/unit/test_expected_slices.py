"""What drivers will publish: as far as it is known, it is what they publish then."""

from __future__ import annotations

import pytest
from testbed.drivers.example import Settings, draw
from tests.unit import amd, nvidia
from tests.unit import published as ours
from tests.unit.expected_slices import devices, expected

from gpupartition.api.v1alpha1 import DriverType
from gpupartition.backends import BACKENDS, expected_slices, offers, plugin_template
from gpupartition.backends.example_limits import published
from gpupartition.domain.allocator.selectors import UNKNOWN


def test_each_type_of_driver_says_what_it_will_publish_and_of_which_kinds() -> None:
    assert BACKENDS.keys() == expected_slices._CONTENTS.keys() | expected_slices._BY_GPU.keys() == offers._OFFERS.keys()


def test_what_the_operator_publishes_itself_is_known_to_the_letter() -> None:
    config = ours.config(ours.equal(4), ours.layout())
    server = ours.Server()
    list(server.assign(config.assigned(), "step"))
    bodies = expected(DriverType.PUBLISH, config.pool)
    written = [each["spec"] for _, each in sorted(server.slices.items())]
    about = {"driver", "nodeName", "pool"}
    assert [{k: v for k, v in body["spec"].items() if k not in about} for body in bodies] == [
        {k: v for k, v in spec.items() if k not in about} for spec in written
    ]
    assert not any(UNKNOWN in device for device in devices(bodies))
    assert {body["spec"]["pool"]["resourceSliceCount"] for body in bodies} == {len(written)}


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("parts", [0, 2, 4, 5])
def test_what_the_example_driver_says_is_known_but_for_attributes(parts: int, shared: bool) -> None:
    then = published(plugin_template.Settings(gpus=4, parts=parts, shared=shared))
    bodies = expected(DriverType.EXAMPLE_DRIVER, then)
    said = draw(Settings(node="n1", devices=4, partitions=parts, shared=shared))
    assert [body["spec"].get("sharedCounters") for body in bodies] == [each.get("sharedCounters") for each in said]
    published_then = [device for content in said for device in content.get("devices", ())]
    assert len(devices(bodies)) == len(published_then)
    for device, then_said in zip(devices(bodies), published_then, strict=True):
        known = {k: v for k, v in device.items() if k not in {"attributes", UNKNOWN}}
        assert known == {k: v for k, v in then_said.items() if k != "attributes"}
        assert device["attributes"].items() <= then_said["attributes"].items()
        assert device[UNKNOWN] == ("attributes",)


def test_of_mig_partitions_the_profile_is_known_and_gpus_that_stay_keep_all_that_they_say() -> None:
    on = nvidia.facts(nvidia.cut(0, nvidia.H100), nvidia.cut(1, nvidia.H100), nvidia.cut(2, nvidia.H100, "1g.10gb"))
    layouts = [
        nvidia.profiles(("1g.10gb", 1), match={"indexes": [2]}),
        nvidia.profiles(("3g.40gb", 2), match={"indexes": [0]}),
        {"match": {"all": True}, "type": "Keep"},
    ]
    then = nvidia.compiled(*layouts, on=on).pool
    now = nvidia.observed(on).pool
    found = devices(expected(DriverType.NVIDIA_MIG, then, now, on))
    as_it_is = {device["name"]: device for device in devices([dict(body) for body in on.slices])}
    assert [each for each in found if UNKNOWN not in each] == [as_it_is["gpu-1"], as_it_is["gpu-2-mig-1g10gb-1-0"]]
    new = [each for each in found if UNKNOWN in each]
    assert [(each["attributes"]["type"], each["attributes"]["profile"]) for each in new] == [
        ({"string": "mig"}, {"string": "3g.40gb"})
    ] * 2
    assert len({each["name"] for each in new}) == 2
    assert {tuple(each[UNKNOWN]) for each in new} == {("attributes", "capacity")}


def test_a_mig_gpu_that_is_made_whole_again_is_of_the_type_of_whole_gpus() -> None:
    on = nvidia.facts(nvidia.cut(0, nvidia.H100, "3g.40gb"))
    then = nvidia.compiled(nvidia.whole(), on=on).pool
    (whole,) = devices(expected(DriverType.NVIDIA_MIG, then, nvidia.observed(on).pool, on))
    assert whole["attributes"]["type"] == {"string": "gpu"}
    assert "profile" not in whole["attributes"]


def test_of_amd_partitions_the_modes_are_known() -> None:
    on = amd.facts(*amd.EIGHT)
    then = amd.compiled(amd.mode("CPX", "NPS1"), on=on).pool
    now = amd.BACKEND.observe(amd.driver(), on, amd.installed()).pool
    found = devices(expected(DriverType.AMD_DCM, then, now, on))
    assert len(found) == 64
    said = amd.gpu(0, "cpx_nps1")[0]["attributes"]
    assert found[0]["attributes"].items() <= said.items()
    assert {"type", "partitionProfile", "productName"} <= found[0]["attributes"].keys()
    unchanged = devices(expected(DriverType.AMD_DCM, amd.compiled(amd.mode("SPX", "NPS1"), on=on).pool, now, on))
    assert unchanged == devices([dict(body) for body in on.slices])
