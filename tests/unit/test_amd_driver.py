"""The simulated AMD hardware and software, as far as it needs no API server: GPUs, profiles, and what is announced."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from testbed import nodes
from testbed.drivers import amd_gpus, amd_slices, dcm_profiles
from testbed.drivers.amd_gpus import (
    AmdSmiError,
    Gpus,
    load,
    read_spec,
    read_state,
    set_compute,
    set_memory,
    write_state,
)
from testbed.drivers.dcm_profiles import Attempt, Entry, PanicError, Profile, RefusedError, apply, assign
from testbed.drivers.gpus import BadGpusError
from testbed.drivers.machine import Machine
from testbed.drivers.mounts import Mount, Original, _Version
from testbed.drivers.pods import DriverPod
from tests.unit.simulated import play

from gpupartition.kube import DAEMON_SETS, Object

MI300X = "AMD_Instinct_MI300X_OAM"
MI300A = "AMD_Instinct_MI300A"
MI325X = "AMD_Instinct_MI325X_OAM"
MI210 = "AMD_Instinct_MI210"


def modes(gpus: Gpus) -> list[str]:
    return [f"{gpu.compute}/{gpu.memory}" for gpu in gpus]


# ── GPUs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_fresh_gpu_is_whole_and_its_device_file_has_its_own_number() -> None:
    gpus = read_spec(f"2x {MI300X}, 1x {MI210}")
    assert modes(gpus) == ["SPX/NPS1", "SPX/NPS1", "/"]
    assert [gpu.minors for gpu in gpus] == [(0,), (1,), (2,)]


@pytest.mark.parametrize(
    ("spec", "says"), [("eight MI300X", "write COUNTx PRODUCT"), ("8x AMD_Radeon_W7900", "is not known")]
)
def test_gpus_that_cannot_be_read_say_what_to_write(spec: str, says: str) -> None:
    with pytest.raises(BadGpusError, match=says):
        read_spec(spec)


def test_one_gpu_is_cut_while_its_neighbours_keep_mode_and_numbers() -> None:
    gpus = set_compute(read_spec(f"3x {MI300X}"), 1, "QPX", {0: {"gpu-0-128"}})
    assert modes(gpus) == ["SPX/NPS1", "QPX/NPS1", "SPX/NPS1"]
    assert [gpu.minors for gpu in gpus] == [(0,), (1, 3, 4, 5), (2,)]


def test_numbers_that_are_given_back_are_given_to_others() -> None:
    gpus = set_compute(read_spec(f"2x {MI300X}"), 0, "QPX", {})
    gpus = set_compute(set_compute(gpus, 0, "SPX", {}), 1, "DPX", {})
    assert [gpu.minors for gpu in gpus] == [(0,), (1, 2)]
    assert amd_slices.meant("gpu-2-130", gpus) == 1, "which was a part of the other one before"


def test_the_memory_mode_is_that_of_all_gpus_and_brings_its_compute_mode_along() -> None:
    gpus = set_compute(read_spec(f"2x {MI300X}"), 0, "CPX", {})
    gpus = set_memory(gpus, "NPS4", ())
    assert modes(gpus) == ["CPX/NPS4"] * 2
    assert [gpu.minors for gpu in gpus] == [(0, *range(2, 9)), (1, *range(9, 16))]
    assert modes(set_memory(gpus, "NPS2", ())) == ["DPX/NPS2"] * 2
    assert modes(set_memory(gpus, "NPS1", ())) == ["SPX/NPS1"] * 2


@pytest.mark.parametrize(
    ("product", "memory", "mode", "status"),
    [
        (MI300X, "NPS4", "SPX", amd_gpus.UNAVAILABLE),
        (MI300X, "NPS4", "DPX", amd_gpus.UNAVAILABLE),
        (MI300X, "NPS1", "TPX", amd_gpus.UNAVAILABLE),
        (MI300A, "NPS1", "DPX", amd_gpus.UNAVAILABLE),
        (MI210, "", "CPX", amd_gpus.NOT_SUPPORTED),
    ],
)
def test_a_compute_mode_that_does_not_go_with_gpu_or_memory_is_refused(
    product: str, memory: str, mode: str, status: int
) -> None:
    gpus = read_spec(f"1x {product}")
    gpus = set_memory(gpus, memory, ()) if memory not in {"", "NPS1"} else gpus
    with pytest.raises(AmdSmiError) as refusal:
        set_compute(gpus, 0, mode, {})
    assert refusal.value.status == status


def test_a_compute_mode_needs_its_gpu_idle_and_a_memory_mode_every_gpu() -> None:
    gpus, users = read_spec(f"2x {MI300X}"), {1: {"gpu-1-129"}}
    assert modes(set_compute(gpus, 0, "CPX", users)) == ["CPX/NPS1", "SPX/NPS1"]
    with pytest.raises(AmdSmiError, match="Device busy"):
        set_compute(gpus, 1, "CPX", users)
    with pytest.raises(AmdSmiError, match="Device busy"):
        set_memory(gpus, "NPS4", users.values())


def test_a_memory_mode_that_one_gpu_does_not_have_is_refused() -> None:
    with pytest.raises(AmdSmiError, match="not supported"):
        set_memory(read_spec(f"1x {MI300X}, 1x {MI325X}"), "NPS4", {})


def test_a_reboot_keeps_the_memory_mode_and_the_compute_mode_follows_it() -> None:
    quarters = set_compute(set_memory(read_spec(f"1x {MI300X}"), "NPS4", ()), 0, "QPX", {})
    assert modes(load(quarters)) == ["CPX/NPS4"]
    assert modes(load(set_compute(read_spec(f"1x {MI300X}"), 0, "CPX", {}))) == ["SPX/NPS1"]


def test_the_hardware_survives_its_programs() -> None:
    spec = f"1x {MI300X}, 1x {MI300A}"
    there = set_compute(read_spec(spec), 1, "TPX", {})
    told = write_state(there, "boot-1", spec)
    assert read_state(told, "boot-1", spec) == there
    assert read_state(told, "boot-2", spec) == load(there)
    assert read_state(told, "boot-1", f"2x {MI300X}") == read_spec(f"2x {MI300X}")
    assert read_state("", "boot-1", spec) == read_spec(spec)


@pytest.mark.parametrize(
    "gpu",
    [
        "",
        '{"compute": "DPX", "memory": "NPS1", "minors": [0]}',
        '{"compute": "TPX", "memory": "NPS1", "minors": [0, 1, 2]}',
    ],
)
def test_a_state_that_is_none_says_so(gpu: str) -> None:
    with pytest.raises(BadGpusError, match="is no state of"):
        read_state(f'{{"spec": "1x {MI300X}", "boot": "b", "gpus": [{gpu}]}}', "b", f"1x {MI300X}")


@pytest.mark.parametrize(("spec", "amd", "nvidia"), [(f"2x {MI300X}", 2, 0), ("2x NVIDIA A30", 0, 2), ("", 0, 0)])
def test_a_machine_has_the_gpus_of_one_vendor(spec: str, amd: int, nvidia: int) -> None:
    machine = Machine(*[None] * 5)  # type: ignore[arg-type]
    machine.see_gpus("boot", spec, "")
    assert (len(machine.amd.gpus), len(machine.gpus)) == (amd, nvidia)


# ── profiles ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def entry(modes: str, count: int | None = None) -> Object:
    """One entry of a profile, such as CPX-NPS4."""
    compute, memory = modes.split("-")
    numbered = {} if count is None else {"numGPUsAssigned": count}
    return {"computePartition": compute, "memoryPartition": memory, **numbered}


def profile(*entries: Object, skipped: tuple[int, ...] = ()) -> Profile:
    told = {"skippedGPUs": {"ids": skipped}, "profiles": entries}
    return dcm_profiles.read(json.dumps({"gpu-config-profiles": {"it": told}}), "it")


def run(wanted: Profile, gpus: Gpus, users: amd_gpus.Users | None = None, **faults: str) -> Attempt:
    """Apply it to the end."""
    attempt = Attempt(gpus=gpus, users=users or {})
    for _ in apply(assign(wanted, len(gpus)), attempt, {name.replace("_", "-"): each for name, each in faults.items()}):
        pass
    return attempt


def test_entries_take_the_gpus_that_are_not_skipped_in_their_order() -> None:
    attempt = run(profile(entry("CPX-NPS1", 1), entry("DPX-NPS1", 2), skipped=(1,)), read_spec(f"4x {MI300X}"))
    assert modes(attempt.gpus) == ["CPX/NPS1", "SPX/NPS1", "DPX/NPS1", "DPX/NPS1"]
    assert [told["GpuID"] for told in attempt.told] == [0, 2, 3]
    assert (attempt.needed, attempt.failed) == (True, False)


def test_memory_comes_before_compute_there_and_back() -> None:
    fresh = read_spec(f"2x {MI300X}")
    there = run(profile(entry("CPX-NPS4", 2)), fresh)
    assert modes(there.gpus) == ["CPX/NPS4"] * 2
    assert modes(run(profile(entry("SPX-NPS1", 2)), there.gpus).gpus) == ["SPX/NPS1"] * 2


def test_what_is_as_it_should_be_is_left_alone_even_in_use() -> None:
    attempt = run(profile(entry("SPX-NPS1", 1)), read_spec(f"1x {MI300X}"), {0: {"gpu-0-128"}})
    assert (attempt.needed, attempt.failed) == (False, False)


def test_a_gpu_in_use_does_not_stop_the_others_from_being_cut() -> None:
    attempt = run(profile(entry("CPX-NPS1", 3)), read_spec(f"3x {MI300X}"), {1: {"gpu-1-129"}})
    assert modes(attempt.gpus) == ["CPX/NPS1", "SPX/NPS1", "CPX/NPS1"]
    assert attempt.failed
    assert [told["Status"] for told in attempt.told] == ["Success", "Failure", "Failure"]
    assert attempt.told[-1]["Message"].endswith("Device busy.")


def test_a_memory_mode_that_is_refused_does_not_stop_the_compute_mode() -> None:
    attempt = run(profile(entry("CPX-NPS4", 2)), read_spec(f"2x {MI300X}"), {1: {"gpu-1-129"}})
    assert modes(attempt.gpus) == ["CPX/NPS1", "SPX/NPS1"]


def test_who_has_only_the_driver_open_is_in_the_way_of_a_memory_mode_alone() -> None:
    for modes_, failed in (("CPX-NPS1", False), ("CPX-NPS4", True)):
        attempt = Attempt(gpus=read_spec(f"1x {MI300X}"), watchers=("metrics-exporter",))
        list(apply(assign(profile(entry(modes_, 1)), 1), attempt, {}))
        assert attempt.failed is failed


def test_a_broken_gpu_refuses_and_the_others_change() -> None:
    attempt = run(profile(entry("CPX-NPS1", 2)), read_spec(f"2x {MI300X}"), gpu_fails="0")
    assert modes(attempt.gpus) == ["SPX/NPS1", "CPX/NPS1"]
    assert attempt.failed


def test_what_no_try_could_ever_do_ends_the_walk_there() -> None:
    gpus = read_spec(f"2x {MI325X}")
    with pytest.raises(RefusedError, match=r"Unsupported memory partition type NPS4.*are \[NPS1\]"):
        run(profile(entry("CPX-NPS4", 2)), gpus)
    with pytest.raises(RefusedError, match="NPS4 does not support compute partition DPX"):
        run(profile(entry("DPX-NPS4", 2)), read_spec(f"2x {MI300X}"))


@pytest.mark.parametrize(
    ("entries", "skipped", "says"),
    [
        ([entry("CPX-NPS1", 3)], (), "does not equal the total number of GPUs"),
        ([entry("CPX-NPS1")], (), "does not equal the total number of GPUs"),
        ([entry("CPX-NPS1", 3)], (4,), "invalid gpu id"),
        ([entry("TPX-NPS1", 4)], (), "Invalid compute type"),
        ([entry("CPX-NPS8", 4)], (), "Invalid memory type"),
        ([entry("CPX-NPS4", 2), entry("SPX-NPS1", 2)], (), "cannot have combination"),
    ],
)
def test_a_profile_that_does_not_fit_the_node_is_refused(
    entries: list[Object], skipped: tuple[int, ...], says: str
) -> None:
    with pytest.raises(RefusedError, match=says) as refusal:
        assign(profile(*entries, skipped=skipped), 4)
    assert refusal.value.reason == "InvalidProfileInfo"


def test_a_later_release_gives_all_that_are_left_to_who_has_no_number() -> None:
    wanted = profile(entry("CPX-NPS1", 1), entry("SPX-NPS1"), skipped=(0,))
    assert [(index, str(it)) for index, it in assign(wanted, 4, rest=True)] == [
        (1, "CPX-NPS1"),
        (2, "SPX-NPS1"),
        (3, "SPX-NPS1"),
    ]
    with pytest.raises(RefusedError):
        assign(profile(entry("CPX-NPS1", 5), entry("SPX-NPS1")), 4, rest=True)


def test_a_profile_without_entries_ends_the_process() -> None:
    with pytest.raises(PanicError, match="index out of range"):
        assign(profile(skipped=(0, 1)), 2)


def test_nothing_can_be_assigned_where_there_are_no_gpus() -> None:
    with pytest.raises(RefusedError, match="0 sockets"):
        assign(profile(entry("CPX-NPS1", 1)), 0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "ConfigMapNotPresent"),
        ("{", "InvalidJSONInConfigMap"),
        ("[]", "InvalidJSONInConfigMap"),
        (
            '{"gpu-config-profiles": {"other": {"profiles": [{"numGPUsAssigned": "8"}]}}}',
            "InvalidJSONInConfigMap",
        ),
        ('{"gpu-config-profiles": {"it": {"profiles": []}, "it": {"profiles": []}}}', "DuplicateProfileExists"),
        ("{}", "NonExistentProfile"),
    ],
)
def test_a_file_without_the_profile_says_why(text: str | None, reason: str) -> None:
    with pytest.raises(RefusedError) as refusal:
        dcm_profiles.read(text, "it")
    assert refusal.value.reason == reason


def test_the_file_says_which_services_are_stopped() -> None:
    assert dcm_profiles.services('{"gpuClientSystemdServices": {"names": ["gpuagent"]}}') == ("gpuagent",)
    assert dcm_profiles.services(None) == dcm_profiles.services("{}") == ()


def test_a_number_that_is_missing_counts_as_none() -> None:
    assert profile(entry("CPX-NPS1")).entries == (Entry(compute="CPX", memory="NPS1", count=None),)


# ── what is announced ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_whole_gpu_says_what_it_is_in_which_modes() -> None:
    (content,) = amd_slices.draw(read_spec(f"1x {MI300X}"))
    (device,) = content["devices"]
    assert device["name"] == "gpu-0-128"
    attributes = device["attributes"]
    assert attributes["type"] == {"string": "amdgpu"}
    assert attributes["partitionProfile"] == {"string": "spx_nps1"}
    assert attributes["productName"] == {"string": MI300X}
    assert attributes["resource.kubernetes.io/pciBusID"] == {"string": "0000:05:00.0"}
    amounts = {name: each["value"] for name, each in device["capacity"].items()}
    assert amounts == {"memory": "196592Mi", "computeUnits": "304", "simdUnits": "1216"}


def test_parts_have_an_equal_share_and_the_bus_of_their_gpu() -> None:
    (content,) = amd_slices.draw(set_compute(read_spec(f"2x {MI300X}"), 1, "CPX", {}))
    whole, *parts = content["devices"]
    assert whole["name"] == "gpu-0-128"
    assert [part["name"] for part in parts] == [f"gpu-{n}-{128 + n}" for n in range(1, 9)]
    assert {part["attributes"]["type"]["string"] for part in parts} == {"amdgpu-partition"}
    assert {part["attributes"]["partitionProfile"]["string"] for part in parts} == {"cpx_nps1"}
    assert {part["attributes"]["resource.kubernetes.io/pciBusID"]["string"] for part in parts} == {"0000:25:00.0"}
    assert {part["capacity"]["memory"]["value"] for part in parts} == {"24574Mi"}
    assert {part["capacity"]["computeUnits"]["value"] for part in parts} == {"38"}


def test_a_gpu_that_cannot_be_cut_has_no_profile() -> None:
    (content,) = amd_slices.draw(read_spec(f"1x {MI210}"))
    assert "partitionProfile" not in content["devices"][0]["attributes"]


def test_the_same_name_means_a_gpu_before_and_a_part_of_it_after() -> None:
    before = read_spec(f"2x {MI300X}")
    after = set_compute(before, 0, "DPX", {})
    assert amd_slices.meant("gpu-0-128", before) == amd_slices.meant("gpu-0-128", after) == 0
    assert amd_slices.meant("gpu-2-130", before) is None
    assert amd_slices.meant("gpu-2-130", after) == 0
    assert amd_slices.meant("gpu-vfio-0", after) is None


def test_auto_partition_announces_every_mode_and_lets_one_exclude_the_others() -> None:
    counters, *devices = amd_slices.draw_auto(read_spec(f"8x {MI300X}"))
    assert [each["name"] for each in counters["sharedCounters"]] == [f"gpu-{n}-mutex" for n in range(8)]
    assert [len(each["devices"]) for each in devices] == [48]
    eighths = devices[0]["devices"][5]
    assert eighths["name"] == "gpu-0-cpx-nps4"
    assert eighths["consumesCounters"] == [
        {"counterSet": "gpu-0-mutex", "counters": {"partition-mode": {"value": "1"}}}
    ]
    assert eighths["allowMultipleAllocations"]
    assert eighths["capacity"]["memory"] == {
        "value": "196592Mi",
        "requestPolicy": {"default": "24574Mi", "validValues": ["24574Mi"]},
    }
    assert "requestPolicy" not in devices[0]["devices"][0]["capacity"]["memory"]
    assert amd_slices.meant("gpu-1-cpx-nps4", read_spec(f"2x {MI300X}")) == 1
    assert amd_slices.meant("gpu-2-cpx-nps4", read_spec(f"2x {MI300X}")) is None


# ── the install ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_manifest_mounts_the_file_where_it_is_looked_for() -> None:
    managers = [body for kind, body in nodes.amd() if kind is DAEMON_SETS]
    template = managers[0]["spec"]["template"]
    pod = DriverPod.of(
        {"metadata": {"name": "p"}, "spec": {**template["spec"], "nodeName": "n1"}}, "device-config-manager"
    )
    assert pod is not None
    assert pod.config_map("/etc/config-manager") == "config-manager-config"
    env = {item["name"]: item.get("value") for item in pod.container["env"]}
    assert env["TESTBED_RETRY_SECONDS"] == "1"


def test_a_copy_says_when_it_will_change() -> None:
    async def story() -> list[float | None]:
        original = Original(versions=[_Version({"v": "1"}, 900)], exists=True)
        mount = Mount(original)
        due = [mount.due(2)]
        mount.read(2)
        due.append(mount.due(2))
        original.versions.append(_Version({"v": "2"}, 999.5))
        due += [mount.due(2), mount.due(0.1), mount.due(float("inf"))]
        mount.read(0.1)
        return [*due, mount.due(2)]

    assert play(story()) == [None, None, 1.5, 0.0, None, None]


def test_replacing_a_gpu_by_hand_is_told_in_its_state() -> None:
    (gpu,) = read_spec(f"1x {MI300X}")
    told = write_state((replace(gpu, compute="DPX", minors=(4, 7)),), "b", f"1x {MI300X}")
    (read,) = read_state(told, "b", f"1x {MI300X}")
    assert amd_slices.draw([read])[0]["devices"][0]["name"] == "gpu-4-132"
