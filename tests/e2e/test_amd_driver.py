"""AMD's Device Config Manager and DRA driver, simulated, on a real control plane: what can be relied on with them, and what not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from testbed.drivers.dcm import PROFILE, STATE
from tests.e2e.amd import MI300X, Amd, entry, install, profile
from tests.e2e.harness import eventually

from gpupartition.kube import NODES, PODS

if TYPE_CHECKING:
    from tests.e2e.harness import Cluster


@pytest.fixture
async def amd(cluster: Cluster) -> Amd:
    made = await install(cluster)
    await made.configure(
        whole=profile(entry("SPX-NPS1", 2)),
        halves=profile(entry("DPX-NPS2", 2)),
        quarters=profile(entry("QPX-NPS1", 2)),
        eighths=profile(entry("CPX-NPS1", 2)),
        near=profile(entry("CPX-NPS4", 2)),
    )
    return made


TWO = f"2x {MI300X}"
FIRST = 'device.attributes["resource.kubernetes.io"].pciBusID == "0000:05:00.0"'


# ── as it should be ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_fresh_node_announces_whole_gpus_in_one_slice(amd: Amd) -> None:
    (node,) = await amd.nodes(TWO)
    await amd.announces(node, spx_nps1=2)
    (item,) = await amd.slices(node)
    assert item["spec"]["pool"] == {"name": node, "generation": 1, "resourceSliceCount": 1}
    assert [device["name"] for device in item["spec"]["devices"]] == ["gpu-0-128", "gpu-1-129"]
    assert STATE not in await amd.labels(node), "without a label nothing is done and nothing said"


async def test_a_new_profile_is_announced_only_by_a_plugin_that_starts_after_it(amd: Amd) -> None:
    (node,) = await amd.nodes(TWO)
    (before,) = await amd.slices(node)
    await amd.apply(node, "eighths")
    assert await amd.hardware(node) == ["CPX/NPS1"] * 2
    assert await amd.slices(node) == [before]
    await amd.restart(node, amd.plugin)
    await amd.announces(node, cpx_nps1=16)
    (after,) = await amd.slices(node)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["spec"]["pool"] == before["spec"]["pool"], "one slice in place: the generation does not move"


async def test_a_name_means_a_gpu_before_and_a_part_of_it_after(amd: Amd) -> None:
    (node,) = await amd.nodes(TWO)
    await amd.apply(node, "quarters")
    await amd.restart(node, amd.plugin)
    await amd.announces(node, qpx_nps1=8)
    bus = {each["name"]: each["attributes"]["resource.kubernetes.io/pciBusID"] for each in await amd.announced(node)}
    assert [name for name in bus if bus[name] == bus["gpu-0-128"]] == [
        "gpu-0-128",
        "gpu-2-130",
        "gpu-3-131",
        "gpu-4-132",
    ]


async def test_memory_is_changed_before_compute_there_and_back(amd: Amd) -> None:
    (node,) = await amd.nodes(TWO)
    for name, modes in (("near", "CPX/NPS4"), ("halves", "DPX/NPS2"), ("whole", "SPX/NPS1")):
        await amd.apply(node, name)
        assert await amd.hardware(node) == [modes] * 2
    await amd.restart(node, amd.plugin)
    await amd.announces(node, spx_nps1=2)


async def test_gpus_can_be_left_as_they_are(amd: Amd) -> None:
    await amd.configure(first=profile(entry("CPX-NPS1", 1), skipped=(1,)))
    (node,) = await amd.nodes(TWO)
    await amd.apply(node, "first")
    await amd.restart(node, amd.plugin)
    await amd.announces(node, cpx_nps1=8, spx_nps1=1)


async def test_what_was_done_is_told_in_an_event_of_the_pod(amd: Amd) -> None:
    (node,) = await amd.nodes(TWO)
    await amd.apply(node, "eighths")
    await amd.apply(node, "whole")
    (_, first), (reason, _) = await amd.events(node)
    assert reason == "SuccessfullyPartitioned"
    assert (first["SelectedProfile"], first["FinalStatus"]) == ("eighths", "Success")
    assert [each["PartitionType"] for each in first["GPUStatus"]] == ["CPX-NPS1"] * 2


async def test_a_partition_is_allocated_by_the_scheduler(amd: Amd, cluster: Cluster) -> None:
    (node,) = await amd.nodes(TWO)
    await amd.apply(node, "near")
    await amd.restart(node, amd.plugin)
    await amd.announces(node, cpx_nps4=16)
    await _hold(cluster, node, 'device.attributes["gpu.amd.com"].partitionProfile == "cpx_nps4"')


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_gpu_that_a_running_pod_has_stays_and_the_others_are_changed_until_a_later_try(
    amd: Amd, cluster: Cluster
) -> None:
    (node,) = await amd.nodes(TWO)
    await _hold(cluster, node, FIRST)
    await amd.apply(node, "eighths", ends="failure")
    await amd.shows(node, "SPX/NPS1", "CPX/NPS1")
    await _let_go(cluster)
    await amd.becomes(node, "success")
    assert await amd.hardware(node) == ["CPX/NPS1"] * 2


async def test_a_memory_mode_needs_a_node_without_a_single_user(amd: Amd, cluster: Cluster) -> None:
    (node,) = await amd.nodes(TWO)
    await _hold(cluster, node, FIRST)
    await amd.apply(node, "halves", ends="failure")
    await amd.shows(node, "SPX/NPS1", "DPX/NPS1")
    await _let_go(cluster)
    await amd.becomes(node, "success")
    assert await amd.hardware(node) == ["DPX/NPS2"] * 2


async def test_the_metrics_exporter_keeps_the_memory_mode_until_a_taint_sends_it_away(
    amd: Amd, cluster: Cluster
) -> None:
    (node,) = await amd.nodes(TWO)
    await amd.watch()
    await eventually(lambda: amd.is_ready(node, amd.exporter))
    await amd.apply(node, "eighths")
    await amd.apply(node, "near", ends="failure")
    assert await amd.hardware(node) == ["CPX/NPS1"] * 2
    taint = {"key": "amd-dcm", "value": "up", "effect": "NoExecute"}
    await cluster.client.patch(NODES, node, {"spec": {"taints": [taint]}})
    await amd.becomes(node, "success")
    assert await amd.hardware(node) == ["CPX/NPS4"] * 2
    assert not await amd.pods(node, amd.plugin), "which does not tolerate it either"
    await cluster.client.patch(NODES, node, {"spec": {"taints": None}})
    await amd.announces(node, cpx_nps4=16)


async def test_it_tries_for_a_while_and_then_says_nothing_more(cluster: Cluster) -> None:
    amd = await install(cluster, {"TESTBED_RETRY_SECONDS": "0.2", "TESTBED_GIVE_UP_SECONDS": "1"})
    await amd.configure(eighths=profile(entry("CPX-NPS1", 2)))
    (node,) = await amd.nodes(TWO)
    await amd.faults(node, "in-use=1")
    await amd.apply(node, "eighths", ends="failure")

    async def given_up() -> bool:
        reasons = [reason for reason, _ in await amd.events(node)]
        assert reasons == ["PartitionRetrying", "PartitionFailure"]
        return True

    await eventually(given_up)
    await amd.faults(node, None)
    await amd.restart(node, amd.plugin)  # takes longer than another try would
    assert (await amd.labels(node))[STATE] == "failure"
    await amd.restart(node, amd.config_manager)
    await amd.becomes(node, "success")


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ('{"gpu-config-profiles": {}}', "NonExistentProfile"),
        ("{", "InvalidJSONInConfigMap"),
        (json.dumps({"gpu-config-profiles": {"it": profile(entry("CPX-NPS1", 8))}}), "InvalidProfileInfo"),
        (json.dumps({"gpu-config-profiles": {"it": profile(entry("DPX-NPS4", 2))}}), "InvalidProfileInfo"),
    ],
)
async def test_what_cannot_be_done_fails_once_and_says_why(amd: Amd, told: str, reason: str) -> None:
    await amd.write(told)
    (node,) = await amd.nodes(TWO)
    await amd.apply(node, "it", ends="failure")
    (event,) = await amd.events(node)
    assert event[0] == reason


async def test_a_profile_without_entries_ends_its_process_until_the_file_is_another(amd: Amd) -> None:
    await amd.configure(nothing=profile(skipped=(0, 1)))
    (node,) = await amd.nodes(TWO)
    await amd.select(node, "nothing")

    async def crashes() -> bool:
        (pod,) = await amd.pods(node, amd.config_manager)
        (container,) = pod["status"].get("containerStatuses") or [{}]
        return bool(container.get("state", {}).get("waiting", {}).get("reason") == "CrashLoopBackOff")

    await eventually(crashes)
    assert STATE not in await amd.labels(node)
    await amd.configure(nothing=profile(entry("SPX-NPS1", 2)))
    await amd.becomes(node, "success")


# ── what wakes it ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_every_edit_of_the_file_reaches_every_node_with_a_label(amd: Amd) -> None:
    first, second, third = await amd.nodes(*[TWO] * 3)
    await amd.apply(first, "eighths")
    await amd.apply(second, "quarters")
    for node in (first, second):
        await amd.cluster.client.patch(NODES, node, {"metadata": {"labels": {STATE: None}}})
    await amd.configure(eighths=profile(entry("SPX-NPS1", 2)), quarters=profile(entry("QPX-NPS1", 2)))
    await amd.becomes(second, "success")
    await amd.becomes(first, "success")
    assert await amd.hardware(first) == ["SPX/NPS1"] * 2
    assert STATE not in await amd.labels(third)


async def test_gpus_that_were_changed_by_hand_are_changed_back_by_an_edit_for_somebody_else(amd: Amd) -> None:
    (node,) = await amd.nodes(TWO)
    await amd.apply(node, "eighths")
    await amd.by_hand(node, "SPX-NPS1")
    await amd.configure(eighths=profile(entry("CPX-NPS1", 2)), another=profile(entry("SPX-NPS1", 8)))
    await amd.shows(node, *["CPX/NPS1"] * 2)


async def test_a_profile_that_is_younger_than_the_mounted_copy_fails_and_is_done_when_the_copy_follows(
    cluster: Cluster,
) -> None:
    amd = await install(cluster, {"TESTBED_MOUNT_SECONDS": "3"})
    await amd.configure(whole=profile(entry("SPX-NPS1", 2)))
    (node,) = await amd.nodes(TWO)
    await amd.apply(node, "whole")
    await amd.configure(late=profile(entry("CPX-NPS1", 2)))
    await amd.apply(node, "late", ends="failure")
    await amd.becomes(node, "success")
    assert await amd.hardware(node) == ["CPX/NPS1"] * 2


async def test_a_copy_that_never_follows_is_read_anew_by_another_pod(amd: Amd) -> None:
    (node,) = await amd.nodes(TWO)
    await amd.apply(node, "whole")
    await amd.faults(node, "stale-mount")
    await amd.configure(late=profile(entry("CPX-NPS1", 2)))
    await amd.apply(node, "late", ends="failure")
    await amd.restart(node, amd.config_manager)
    await amd.becomes(node, "success")


async def test_the_old_state_stays_beside_a_new_profile_until_that_is_done(amd: Amd) -> None:
    (node,) = await amd.nodes(TWO)
    await amd.apply(node, "eighths")
    await amd.faults(node, "slow-apply=2")
    await amd.cluster.client.patch(NODES, node, {"metadata": {"labels": {PROFILE: "whole"}}})
    assert (await amd.labels(node))[STATE] == "success"
    assert await amd.hardware(node) == ["CPX/NPS1"] * 2
    await amd.shows(node, *["SPX/NPS1"] * 2)


async def test_of_what_is_asked_while_something_waits_nothing_is_heard(amd: Amd) -> None:
    (node,) = await amd.nodes(TWO)
    await amd.apply(node, "whole")
    await amd.faults(node, "slow-apply=3")
    for name in ("eighths", "halves", "quarters", "near"):
        await amd.cluster.client.patch(NODES, node, {"metadata": {"labels": {PROFILE: name, STATE: None}}})
    await amd.shows(node, *["CPX/NPS1"] * 2)
    await amd.faults(node, None)

    async def done() -> bool:
        told = [message["SelectedProfile"] for _, message in await amd.events(node)]
        assert told == ["whole", "eighths", "quarters"]
        return True

    await eventually(done)
    assert await amd.hardware(node) == ["QPX/NPS1"] * 2, "the last that was heard, and not what the label says"


async def test_taking_the_label_away_changes_nothing(amd: Amd) -> None:
    (node,) = await amd.nodes(TWO)
    await amd.apply(node, "eighths")
    await amd.select(node, None)
    await amd.restart(node, amd.plugin)
    await amd.announces(node, cpx_nps1=16)
    assert STATE not in await amd.labels(node)


# ── reboots, and other hands ──────────────────────────────────────────────────────────────────────────────────────────


async def test_a_rebooted_node_is_cut_again_behind_the_back_of_its_plugin(amd: Amd, cluster: Cluster) -> None:
    (node,) = await amd.nodes(TWO)
    await amd.apply(node, "quarters")
    await amd.restart(node, amd.plugin)
    await amd.announces(node, qpx_nps1=8)
    await amd.faults(node, "slow-apply=2")
    await cluster.kubelet_stops(node)
    await cluster.client.patch(NODES, node, {"metadata": {"labels": {STATE: None}}})
    await cluster.kubelet_starts(node, rebooted=True)
    await amd.announces(node, spx_nps1=2)
    await amd.becomes(node, "success")
    assert await amd.hardware(node) == ["QPX/NPS1"] * 2
    await amd.announces(node, spx_nps1=2)
    await amd.restart(node, amd.plugin)
    await amd.announces(node, qpx_nps1=8)


async def test_the_hardware_outlives_the_driver_host(amd: Amd, cluster: Cluster) -> None:
    (node,) = await amd.nodes(TWO)
    await amd.apply(node, "eighths")
    await cluster.controlplane.programs["driver-host"].stop()
    await cluster.client.patch(NODES, node, {"metadata": {"labels": {STATE: None}}})
    await cluster.controlplane.start_again("driver-host")
    await amd.becomes(node, "success")
    assert (await amd.events(node))[-1][0] == "RequestedPartitionConfigAlreadyExists"
    await amd.announces(node, cpx_nps1=16)


# ── fault switches ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_half_a_profile_is_left_when_one_gpu_fails(amd: Amd) -> None:
    (node,) = await amd.nodes(TWO)
    await amd.faults(node, "gpu-fails=0@config=eighths")
    await amd.apply(node, "eighths", ends="failure")
    await amd.shows(node, "SPX/NPS1", "CPX/NPS1")
    await amd.apply(node, "whole")
    assert await amd.hardware(node) == ["SPX/NPS1"] * 2


@pytest.mark.parametrize(("when", "left"), [("before", []), ("after", ["CPX/NPS1"] * 2)])
async def test_a_state_may_never_be_written(amd: Amd, when: str, left: list[str]) -> None:
    (node,) = await amd.nodes(TWO)
    await amd.faults(node, f"wedged={when}")
    await amd.select(node, "eighths")
    await amd.shows(node, *left)
    await amd.restart(node, amd.plugin)  # takes longer than the Device Config Manager would
    assert STATE not in await amd.labels(node)
    await amd.faults(node, None)
    await amd.restart(node, amd.config_manager)
    await amd.becomes(node, "success")


async def test_a_state_may_be_written_late(amd: Amd) -> None:
    (node,) = await amd.nodes(TWO)
    await amd.faults(node, "late-state=3")
    await amd.select(node, "eighths")
    await amd.shows(node, *["CPX/NPS1"] * 2)
    assert STATE not in await amd.labels(node)
    await amd.becomes(node, "success")


async def test_a_state_may_be_a_lie(amd: Amd) -> None:
    (node,) = await amd.nodes(TWO)
    await amd.faults(node, "wrong-state=success")
    await amd.apply(node, "eighths")
    assert await amd.hardware(node) == []
    await amd.faults(node, "wrong-state=failed")
    await amd.apply(node, "quarters", ends="failure")
    assert await amd.hardware(node) == ["QPX/NPS1"] * 2


async def test_a_later_release_says_that_it_is_at_work(amd: Amd) -> None:
    (node,) = await amd.nodes(TWO)
    await amd.faults(node, "newer-dcm,slow-apply=2")
    rest = {"computePartition": "CPX", "memoryPartition": "NPS1"}
    await amd.configure(all=profile(rest))
    await amd.apply(node, "all", ends="in-progress")
    await amd.becomes(node, "success")
    assert await amd.hardware(node) == ["CPX/NPS1"] * 2


async def test_slices_can_come_late(amd: Amd) -> None:
    (node,) = await amd.nodes(TWO)
    await amd.apply(node, "eighths")
    await amd.faults(node, "late-slices=3")
    await amd.restart(node, amd.plugin)
    await amd.announces(node, spx_nps1=2)
    await amd.announces(node, cpx_nps1=16)


@pytest.mark.parametrize("by", ["switch", "feature gate"])
async def test_somebody_may_let_the_driver_cut_gpus_by_itself(cluster: Cluster, by: str) -> None:
    amd = await install(cluster, {"FEATURE_GATES": "AutoPartition=true"} if by == "feature gate" else None)
    (node,) = await amd.nodes(TWO)
    if by == "switch":
        await amd.faults(node, "auto-partition")
        await amd.restart(node, amd.plugin)

    async def every_mode() -> bool:
        names = [each["name"] for each in await amd.announced(node)]
        assert names[4:7] == ["gpu-0-cpx-nps1", "gpu-0-cpx-nps4", "gpu-1-spx-nps1"]
        return len(names) == 12

    await eventually(every_mode)
    await _hold(cluster, node, 'device.attributes["gpu.amd.com"].memoryPartition == "nps4"')


# ── steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _hold(cluster: Cluster, node: str, cel: str) -> None:
    """A pod that has a device of a node."""
    namespace = await cluster.namespace()
    await cluster.holder("holder", namespace=namespace, node=node, device_class="gpu.amd.com", cel=cel)
    await cluster.running("holder", namespace=namespace)


async def _let_go(cluster: Cluster) -> None:
    await cluster.client.delete(PODS, "holder", namespace=cluster.name)
    await cluster.gone(PODS, "holder", namespace=cluster.name)
