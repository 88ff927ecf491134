"""NVIDIA's mig-manager and DRA driver, simulated, on a real control plane: what the operator can rely on with them, and what it cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from testbed.drivers.mig_manager import STATE
from testbed.drivers.nvidia_clients import PAUSED
from tests.e2e.harness import eventually
from tests.e2e.nvidia import A100, H100, Nvidia, every, install, only

from gpupartition.kube import DAEMON_SETS, NODES, PODS

if TYPE_CHECKING:
    from tests.e2e.harness import Cluster

MANAGER = "nvidia-mig-manager"
EXPORTER = "nvidia-dcgm-exporter"


@pytest.fixture
async def nvidia(cluster: Cluster) -> Nvidia:
    made = await install(cluster)
    await made.configure(
        halves=every({"3g.40gb": 2}), sevenths=every({"1g.10gb": 7}), empty=every({}), too_much=every({"3g.40gb": 3})
    )
    return made


HALVES = ("gpu-0-mig-3g40gb-9-0", "gpu-0-mig-3g40gb-9-4")
SEVENTHS = tuple(f"gpu-0-mig-1g10gb-19-{start}" for start in range(7))


# ── as it should be ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_fresh_node_announces_whole_gpus(nvidia: Nvidia) -> None:
    (node,) = await nvidia.nodes(f"2x {H100}")
    await nvidia.announces(node, "gpu-0", "gpu-1")
    (item,) = await nvidia.slices(node)
    assert item["metadata"]["name"].startswith(f"00000-gpu.nvidia.com-{node}-")
    assert item["spec"]["pool"] == {"name": node, "generation": 1, "resourceSliceCount": 1}
    assert item["spec"]["devices"][0]["attributes"]["productName"] == {"string": H100}


async def test_a_new_layout_is_announced_only_by_a_plugin_that_starts_after_it(nvidia: Nvidia) -> None:
    (node,) = await nvidia.nodes(f"1x {H100}")
    (before,) = await nvidia.slices(node)
    await nvidia.apply(node, "halves")
    assert await nvidia.slices(node) == [before]
    await nvidia.restart(node, nvidia.plugin)
    await nvidia.announces(node, *HALVES)
    (after,) = await nvidia.slices(node)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["spec"]["pool"] == before["spec"]["pool"], "one slice in place: the generation does not move"
    await nvidia.apply(node, "all-disabled")
    await nvidia.restart(node, nvidia.plugin)
    await nvidia.announces(node, "gpu-0")


async def test_a_mixed_node_is_cut_by_kind(nvidia: Nvidia) -> None:
    await nvidia.configure(
        mixed=[
            {**only({"7g.40gb": 1}), "device-filter": ["0x20B010DE"]},
            {**only({"3g.40gb": 1, "1g.10gb+me": 1}), "device-filter": "0x233010DE"},
        ]
    )
    (node,) = await nvidia.nodes(f"1x {A100}, 1x {H100}")
    await nvidia.apply(node, "mixed")
    await nvidia.restart(node, nvidia.plugin)

    async def both() -> bool:
        profiles = [name.rsplit("-", 1)[0] for name in await nvidia.devices(node)]
        return profiles == ["gpu-0-mig-7g40gb-0", "gpu-1-mig-1g10gb-me-20", "gpu-1-mig-3g40gb-9"]

    await eventually(both)


async def test_the_metrics_exporter_goes_before_the_change_and_comes_back_after_it(nvidia: Nvidia) -> None:
    (node,) = await nvidia.nodes(f"1x {H100}")
    (before,) = await eventually(lambda: nvidia.pods(node, EXPORTER))
    await nvidia.apply(node, "halves")
    (after,) = await eventually(lambda: nvidia.pods(node, EXPORTER))
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert await nvidia.clients(node) == {"true"}


async def test_a_partition_is_allocated_by_the_scheduler(nvidia: Nvidia, cluster: Cluster) -> None:
    (node,) = await nvidia.nodes(f"1x {H100}")
    await _cut(nvidia, node, "halves", HALVES)
    await _hold(cluster, node)


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_a_running_pod_has_is_not_taken_but_its_neighbours_are(nvidia: Nvidia, cluster: Cluster) -> None:
    (node,) = await nvidia.nodes(f"1x {H100}")
    await _cut(nvidia, node, "halves", HALVES)
    await _hold(cluster, node)
    await nvidia.apply(node, "sevenths", ends="failed")
    (left,) = await nvidia.hardware(node)
    assert left == ["3g.40gb@4"], "the other half is gone, and nothing has taken its place"
    await nvidia.announces(node, *HALVES)
    await cluster.client.delete(PODS, "holder", namespace=cluster.name)
    await cluster.gone(PODS, "holder", namespace=cluster.name)
    await nvidia.apply(node, "halves")
    assert await nvidia.hardware(node) == [["3g.40gb@0", "3g.40gb@4"]]


async def test_a_layout_without_room_fails_and_the_old_one_is_gone(nvidia: Nvidia) -> None:
    (node,) = await nvidia.nodes(f"1x {H100}")
    await _cut(nvidia, node, "halves", HALVES)
    await nvidia.apply(node, "too-much", ends="failed")
    assert await nvidia.hardware(node) == [[]]


async def test_the_reset_of_an_ampere_needs_a_node_without_a_single_user(nvidia: Nvidia, cluster: Cluster) -> None:
    await nvidia.configure(second=[only({"7g.40gb": 1}, devices=[1])])
    (node,) = await nvidia.nodes(f"2x {A100}")
    await cluster.holder("holder", namespace=await cluster.namespace(), node=node, device_class="gpu.nvidia.com")
    await cluster.running("holder", namespace=cluster.name)
    await nvidia.apply(node, "second", ends="failed")
    assert await nvidia.hardware(node) == [[], []]
    await cluster.client.delete(PODS, "holder", namespace=cluster.name)
    await cluster.gone(PODS, "holder", namespace=cluster.name)
    await nvidia.select(node, None)
    await nvidia.apply(node, "second")
    assert await nvidia.hardware(node) == [[], ["7g.40gb@0"]]


async def test_a_key_that_is_younger_than_the_mounted_copy_fails(nvidia: Nvidia) -> None:
    (node,) = await nvidia.nodes(f"1x {H100}")
    await nvidia.configure(late=every({"7g.80gb": 1}))
    await nvidia.apply(node, "late", ends="failed")

    async def known() -> bool:
        await nvidia.select(node, None)
        await nvidia.select(node, "late")
        await eventually(lambda: _said(nvidia, node))
        return (await nvidia.labels(node))[STATE] == "success"

    await eventually(known)
    assert await nvidia.hardware(node) == [["7g.80gb@0"]]


async def test_a_mig_manager_that_starts_anew_reads_the_file_as_it_is(nvidia: Nvidia) -> None:
    (node,) = await nvidia.nodes(f"1x {H100}")
    await nvidia.faults(node, "stale-mount")
    await nvidia.configure(late=every({"7g.80gb": 1}))
    await nvidia.apply(node, "late", ends="failed")
    await nvidia.restart(node, MANAGER)
    await nvidia.becomes(node, "success")
    assert await nvidia.hardware(node) == [["7g.80gb@0"]]


async def test_the_same_label_is_worked_on_again_only_when_it_was_away(nvidia: Nvidia) -> None:
    (node,) = await nvidia.nodes(f"1x {H100}")
    await nvidia.apply(node, "nobody-knows-it", ends="failed")
    await nvidia.select(node, "nobody-knows-it")
    await nvidia.restart(node, nvidia.plugin)  # takes longer than mig-manager would
    assert STATE not in await nvidia.labels(node)
    await nvidia.select(node, None)
    await nvidia.apply(node, "nobody-knows-it", ends="failed")


# ── reboots, and other hands ──────────────────────────────────────────────────────────────────────────────────────────


async def test_a_rebooted_hopper_is_cut_again_behind_the_back_of_its_plugin(nvidia: Nvidia, cluster: Cluster) -> None:
    (node,) = await nvidia.nodes(f"1x {H100}")
    await _cut(nvidia, node, "halves", HALVES)
    await cluster.kubelet_stops(node)
    await cluster.client.patch(NODES, node, {"metadata": {"labels": {STATE: None}}})
    await cluster.kubelet_starts(node, rebooted=True)
    await nvidia.becomes(node, "success")
    await nvidia.announces(node, "gpu-0")
    assert await nvidia.hardware(node) == [["3g.40gb@0", "3g.40gb@4"]]
    await nvidia.restart(node, nvidia.plugin)
    await nvidia.announces(node, *HALVES)


async def test_where_nothing_can_be_reset_mig_manager_reboots_if_it_may(cluster: Cluster) -> None:
    nvidia = await install(cluster, {"WITH_REBOOT": "true"})
    await nvidia.configure(whole=every({"7g.40gb": 1}))
    (node,) = await nvidia.nodes(f"1x {A100}")
    boot = (await cluster.client.get(NODES, node))["status"]["nodeInfo"]["bootID"]
    await nvidia.faults(node, "no-reset")
    await nvidia.apply(node, "whole", ends="rebooting")
    await nvidia.becomes(node, "success")
    assert (await cluster.client.get(NODES, node))["status"]["nodeInfo"]["bootID"] != boot
    assert await nvidia.hardware(node) == [["7g.40gb@0"]]
    assert await nvidia.clients(node) == {"true"}


async def test_where_nothing_can_be_reset_nor_rebooted_it_fails(nvidia: Nvidia) -> None:
    (node,) = await nvidia.nodes(f"1x {A100}")
    await nvidia.faults(node, "no-reset")
    await nvidia.apply(node, "empty", ends="failed")


async def test_gpus_can_be_cut_by_hand(nvidia: Nvidia) -> None:
    (node,) = await nvidia.nodes(f"1x {H100}")
    await nvidia.apply(node, "halves")
    await nvidia.by_hand(node, ["7g.80gb@0"])
    await nvidia.announces(node, "gpu-0-mig-7g80gb-0-0")


async def test_the_hardware_outlives_the_driver_host(nvidia: Nvidia, cluster: Cluster) -> None:
    (node,) = await nvidia.nodes(f"1x {H100}")
    await _cut(nvidia, node, "halves", HALVES)
    await cluster.controlplane.programs["driver-host"].stop()
    await cluster.client.patch(NODES, node, {"metadata": {"labels": {STATE: None}}})
    await cluster.controlplane.start_again("driver-host")
    await nvidia.becomes(node, "success")
    assert await nvidia.hardware(node) == [["3g.40gb@0", "3g.40gb@4"]]
    await nvidia.announces(node, *HALVES)


# ── fault switches ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_gpu_in_mig_mode_without_partitions_announces_nothing(nvidia: Nvidia) -> None:
    (node,) = await nvidia.nodes(f"1x {H100}")
    await nvidia.apply(node, "empty")
    await nvidia.restart(node, nvidia.plugin)
    await nvidia.announces(node)


async def test_after_a_success_a_failure_leaves_the_labels_paused_until_the_next(nvidia: Nvidia) -> None:
    (node,) = await nvidia.nodes(f"1x {H100}")
    await nvidia.apply(node, "halves")
    await nvidia.faults(node, "apply-fails@config=sevenths")
    await nvidia.apply(node, "sevenths", ends="failed")
    assert await nvidia.clients(node) == {PAUSED}
    assert await nvidia.hardware(node) == [[]]
    await nvidia.apply(node, "halves")
    assert await nvidia.clients(node) == {"true"}


async def test_half_a_layout_is_left_when_the_second_gpu_refuses(nvidia: Nvidia) -> None:
    (node,) = await nvidia.nodes(f"2x {H100}")
    await nvidia.apply(node, "halves")
    await nvidia.faults(node, "apply-fails=partly")
    await nvidia.apply(node, "sevenths", ends="failed")
    first, second = await nvidia.hardware(node)
    assert (len(first), second) == (7, ["3g.40gb@0", "3g.40gb@4"])


@pytest.mark.parametrize(("when", "left"), [("before", []), ("after", [["3g.40gb@0", "3g.40gb@4"]])])
async def test_a_wedged_mig_manager_stays_in_pending_with_all_labels_paused(
    nvidia: Nvidia, when: str, left: list[list[str]]
) -> None:
    (node,) = await nvidia.nodes(f"1x {H100}")
    await nvidia.faults(node, f"wedged={when}")
    await nvidia.apply(node, "halves", ends="pending")

    async def done() -> bool:
        return await nvidia.hardware(node) == left and await nvidia.clients(node) == {PAUSED}

    await eventually(done)
    await nvidia.faults(node, None)
    await nvidia.restart(node, nvidia.plugin)  # takes longer than mig-manager would
    assert (await nvidia.labels(node))[STATE] == "pending"
    await nvidia.restart(node, MANAGER)
    await nvidia.becomes(node, "success")
    assert await nvidia.clients(node) == {"true"}


async def test_a_state_can_be_a_lie(nvidia: Nvidia) -> None:
    (node,) = await nvidia.nodes(f"1x {H100}")
    await nvidia.faults(node, "wrong-state=success")
    await nvidia.apply(node, "halves")
    assert await nvidia.hardware(node) == []
    await nvidia.faults(node, "wrong-state=failed")
    await nvidia.apply(node, "sevenths", ends="failed")
    assert [len(each) for each in await nvidia.hardware(node)] == [7]


async def test_a_process_that_is_no_pod_keeps_a_gpu_until_it_is_gone(nvidia: Nvidia) -> None:
    (node,) = await nvidia.nodes(f"2x {H100}")
    await nvidia.apply(node, "halves")
    await nvidia.faults(node, "in-use=1")
    await nvidia.apply(node, "sevenths", ends="failed")
    assert [len(each) for each in await nvidia.hardware(node)] == [7, 2]


async def test_a_gpu_that_dies_takes_its_plugin_along_until_the_next_reboot(nvidia: Nvidia, cluster: Cluster) -> None:
    (node,) = await nvidia.nodes(f"2x {H100}")
    await nvidia.apply(node, "halves")
    await nvidia.faults(node, "gpu-dies=1")
    await nvidia.apply(node, "sevenths", ends="failed")
    (old,) = await nvidia.pods(node, nvidia.plugin)
    await cluster.client.delete(PODS, old["metadata"]["name"], namespace=nvidia.driver_namespace)

    async def crashes() -> bool:
        return [
            container["state"]["waiting"]["reason"]
            for pod in await nvidia.pods(node, nvidia.plugin)
            for container in pod["status"].get("containerStatuses", ())
            if "waiting" in container["state"]
        ] == ["CrashLoopBackOff"]

    await eventually(crashes)
    await nvidia.faults(node, None)
    await cluster.kubelet_stops(node)
    await cluster.kubelet_starts(node, rebooted=True)
    await nvidia.becomes(node, "success")
    assert [len(each) for each in await nvidia.hardware(node)] == [7, 7]


async def test_slices_can_come_late_and_show_whole_gpus_that_are_not_there(nvidia: Nvidia) -> None:
    (node,) = await nvidia.nodes(f"1x {H100}")
    await nvidia.apply(node, "halves")
    await nvidia.faults(node, "late-slices=3,shows-whole,other-names")
    await nvidia.restart(node, nvidia.plugin)
    assert await nvidia.devices(node) == ["gpu-0"]
    await nvidia.announces(node, "gpu-0", *(name.replace("40gb", "39gb") for name in HALVES))


async def test_the_state_can_come_long_after_the_change(nvidia: Nvidia) -> None:
    (node,) = await nvidia.nodes(f"1x {H100}")
    await nvidia.faults(node, "late-state=3,leaves-paused")
    await nvidia.apply(node, "halves", ends="pending")

    async def cut() -> bool:
        return await nvidia.hardware(node) == [["3g.40gb@0", "3g.40gb@4"]]

    await eventually(cut)
    assert (await nvidia.labels(node))[STATE] == "pending"
    await nvidia.becomes(node, "success")
    assert await nvidia.clients(node) == {PAUSED}


async def test_a_pod_that_does_not_go_in_time_wedges_mig_manager(cluster: Cluster) -> None:
    nvidia = await install(cluster, {"TESTBED_POD_WAIT_SECONDS": "0.5"})
    slow = {"spec": {"template": {"metadata": {"annotations": {"testbed.gpupartition.dev/terminates-after": "4s"}}}}}
    await cluster.client.patch(DAEMON_SETS, EXPORTER, slow, namespace=nvidia.operator_namespace)
    await nvidia.configure(halves=every({"3g.40gb": 2}))
    (node,) = await nvidia.nodes(f"1x {H100}")
    await eventually(lambda: nvidia.pods(node, EXPORTER))
    await nvidia.apply(node, "halves", ends="pending")

    async def without_exporter() -> bool:
        return await nvidia.pods(node, EXPORTER) == []

    await eventually(without_exporter)
    assert (await nvidia.labels(node))[STATE] == "pending"
    assert await nvidia.hardware(node) == []


async def test_a_mig_manager_that_is_killed_at_work_leaves_it_to_its_successor(nvidia: Nvidia) -> None:
    (node,) = await nvidia.nodes(f"1x {H100}")
    await nvidia.faults(node, "slow-apply=300")
    await nvidia.apply(node, "halves", ends="pending")
    await nvidia.faults(node, None)
    assert await nvidia.hardware(node) == []
    await nvidia.restart(node, MANAGER)
    await nvidia.becomes(node, "success")
    assert await nvidia.hardware(node) == [["3g.40gb@0", "3g.40gb@4"]]
    assert await nvidia.clients(node) == {"true"}


async def test_without_a_file_mig_manager_knows_the_usual_names_and_no_others(cluster: Cluster) -> None:
    nvidia = await install(cluster, {"CONFIG_FILE": ""})
    await nvidia.configure(own=every({"7g.80gb": 1}))
    (node,) = await nvidia.nodes(f"1x {H100}")
    await nvidia.apply(node, "all-3g.40gb")
    assert await nvidia.hardware(node) == [["3g.40gb@0", "3g.40gb@4"]]
    await nvidia.apply(node, "own", ends="failed")


# ── steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _cut(nvidia: Nvidia, node: str, config: str, devices: tuple[str, ...]) -> None:
    await nvidia.apply(node, config)
    await nvidia.restart(node, nvidia.plugin)
    await nvidia.announces(node, *devices)


async def _hold(cluster: Cluster, node: str) -> None:
    """A pod that has the partition in the upper half of a GPU's memory."""
    namespace, upper = await cluster.namespace(), "'memorySlice7' in device.capacity['gpu.nvidia.com']"
    await cluster.holder("holder", namespace=namespace, node=node, device_class="mig.nvidia.com", cel=upper)
    await cluster.running("holder", namespace=namespace)


async def _said(nvidia: Nvidia, node: str) -> bool:
    return (await nvidia.labels(node)).get(STATE) in {"success", "failed"}
