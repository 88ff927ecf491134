"""Static MIG through NVIDIA's mig-manager and DRA driver, both simulated, on a real control plane: what the operator makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml
from testbed.drivers.mig_manager import CONFIG, STATE
from tests.e2e.harness import DRIVERS, NODE_STATES, POLICIES, eventually
from tests.e2e.history import Watcher
from tests.e2e.mig import POLICY, Site, profiles, site
from tests.e2e.nvidia import A100, H100
from tests.e2e.rollout import annotate, at_rest, phases, policy, reaches, ready, records, said, stalled, whole
from tests.e2e.shell import plan
from tests.e2e.stage import ONCE

from gpupartition.kube import CONFIG_MAPS, NODES, PODS
from gpupartition.names import STEP

if TYPE_CHECKING:
    from tests.e2e.harness import Cluster

SEVENTHS = profiles(("1g.10gb", 7))
MIXED = profiles("3g.40gb", "2g.20gb", ("1g.10gb", 2))


async def entries(where: Site) -> set[str]:
    """The layouts in mig-manager's file."""
    return set(yaml.safe_load((await where.file())["data"]["config.yaml"])["mig-configs"])


async def test_nodes_are_cut_and_cut_otherwise_and_made_whole_again(cluster: Cluster) -> None:
    where = await site(cluster, f"2x {H100}", f"2x {H100}")
    async with Watcher(cluster) as history:
        await where.gets(SEVENTHS)
        for node in where.nodes:
            await where.announces(node, _1g_10gb=14)
        assert len({await where.assigned(node) for node in where.nodes}) == 1
        await where.gets(MIXED)
        for node in where.nodes:
            await where.announces(node, _3g_40gb=2, _2g_20gb=2, _1g_10gb=4)
        await where.gets(whole())
        for node in where.nodes:
            await where.announces(node, whole=2)
    for node in where.nodes:
        assert history.phases(node)[-23:] == [*ONCE, "Pending", *ONCE, "Pending", *ONCE]
    assert all(len(instant.unavailable()) <= 1 for instant in history.instants())


async def test_a_node_that_is_as_it_is_wanted_is_adopted_untouched(cluster: Cluster) -> None:
    where = await site(cluster, f"2x {H100}")
    before = (await cluster.client.get(NODES, where.nodes[0]))["metadata"]
    await where.gets(whole())
    after = (await cluster.client.get(NODES, where.nodes[0]))["metadata"]
    assert after["labels"] == before["labels"]
    assert STEP not in after["annotations"]


async def test_gpus_of_a_node_are_cut_each_in_its_own_way_and_some_are_kept(cluster: Cluster) -> None:
    where = await site(cluster, f"3x {H100}, 1x {A100}")
    await where.gets(
        profiles("7g.80gb", match={"indexes": [0]}, name="one"),
        profiles("all-balanced", match={"products": ["NVIDIA-A100-SXM4-40GB"]}, name="balanced"),
        {"name": "rest", "match": {"all": True}, "type": "Keep"},
    )
    await where.announces(where.nodes[0], _7g_80gb=1, whole=2, _1g_5gb=2, _2g_10gb=1, _3g_20gb=1)


async def test_gpus_of_other_kinds_are_cut_too_and_of_several_on_a_node(cluster: Cluster) -> None:
    where = await site(cluster, "1x NVIDIA A30", "2x NVIDIA H200", f"1x {A100}, 1x NVIDIA A30")
    await where.gets(profiles("all-balanced"), maxUnavailable="100%")
    small, large, mixed = where.nodes
    await where.announces(small, _1g_6gb=2, _2g_12gb=1)
    await where.announces(large, _1g_18gb=4, _2g_35gb=2, _3g_71gb=2)
    await where.announces(mixed, _1g_6gb=2, _2g_12gb=1, _1g_5gb=2, _2g_10gb=1, _3g_20gb=1)


async def test_who_holds_a_partition_of_a_gpu_that_stays_as_it_is_notices_nothing(cluster: Cluster) -> None:
    where = await site(cluster, f"2x {H100}")
    await where.gets(SEVENTHS)
    user = await cluster.namespace("user")
    await cluster.holder("stays", namespace=user, device_class="mig.nvidia.com")
    pod = await cluster.running("stays", namespace=user)
    kept = profiles(("1g.10gb", 7), name="first", match={"indexes": [0]})
    await where.gets(kept, profiles(("3g.40gb", 2)))
    await where.announces(where.nodes[0], _1g_10gb=7, _3g_40gb=2)
    still = await cluster.client.get(PODS, "stays", namespace=user)
    assert still["metadata"]["uid"] == pod["metadata"]["uid"]


async def test_a_change_of_the_mode_waits_for_everybody_on_the_node(cluster: Cluster) -> None:
    where = await site(cluster, f"2x {H100}")
    await where.gets(profiles("7g.80gb", match={"indexes": [0]}), whole(match={"indexes": [1]}))
    user = await cluster.namespace("user")
    await cluster.holder("waits", namespace=user, device_class="mig.nvidia.com")
    await cluster.running("waits", namespace=user)
    await where.wants(profiles("7g.80gb"))
    await said(cluster, POLICY, "Ready", "False", "WaitingForHolders")
    (record,) = (await records(cluster)).values()
    assert [b["device"] for b in record["status"]["blockers"]] == ["gpu-0-mig-7g80gb-0-0"]
    await cluster.client.delete(PODS, "waits", namespace=user)
    await ready(cluster, POLICY)
    await where.announces(where.nodes[0], _7g_80gb=2)


async def test_a_product_that_no_gpu_is_called_is_said_with_what_there_is(cluster: Cluster) -> None:
    where = await site(cluster, f"1x {H100}")
    layouts = profiles("7g.80gb", match={"products": ["H100"]}, name="meant"), whole(name="rest")
    foreseen = await plan(cluster, "-f", "-", stdin=policy(POLICY, cluster.name, *layouts))
    await where.gets(*layouts)
    told = f"no GPU of its nodes is called H100, as match.products says: there are {H100} (model H100-80GB)"
    assert told in foreseen.out
    assert told in (await where.said("Accepted"))["message"]
    await where.gets(profiles("7g.80gb", match={"products": ["H100-80GB"]}), whole(name="rest"))
    await where.announces(where.nodes[0], _7g_80gb=1)
    assert (await where.said("Accepted"))["message"] == "can be carried out"


async def test_what_cannot_be_on_a_gpu_is_refused_before_anything_is_written(cluster: Cluster) -> None:
    where = await site(cluster, f"1x {H100}")
    await where.wants(profiles(("3g.40gb", 3)))
    await said(cluster, POLICY, "Accepted", "False", "LayoutDoesNotFit")
    message = (await where.said("Accepted"))["message"]
    assert f"GPU 0 ({H100})" in message
    assert "what fits instead: 2 x 3g.40gb" in message
    assert await entries(where) == {"all-disabled", "all-enabled"}


async def test_an_installation_that_would_not_work_is_said_before_anything_is_written(cluster: Cluster) -> None:
    where = await site(cluster, f"1x {H100}", env={"WITH_REBOOT": "true"})
    await where.wants(SEVENTHS)
    await said(cluster, POLICY, "Accepted", "False", "WouldReboot")

    async def driver_says_so() -> bool:
        status = (await cluster.client.get(DRIVERS, cluster.name)).get("status", {})
        return [c["reason"] for c in status.get("conditions", ())] == ["WouldReboot"]

    await eventually(driver_says_so)


async def test_a_file_that_somebody_deletes_is_made_anew(cluster: Cluster) -> None:
    where = await site(cluster, f"1x {H100}")
    await where.gets(SEVENTHS)
    await cluster.client.delete(CONFIG_MAPS, where.software.config_map, namespace=where.software.operator_namespace)
    await where.gets(MIXED)
    await where.announces(where.nodes[0], _3g_40gb=1, _2g_20gb=1, _1g_10gb=2)
    assert {"all-disabled", "all-enabled", await where.assigned(where.nodes[0])} <= await entries(where)


async def test_entries_that_nobody_names_any_more_leave_the_file(cluster: Cluster) -> None:
    where = await site(cluster, f"1x {H100}", resync=1)
    await where.gets(SEVENTHS)
    first = await where.assigned(where.nodes[0])
    await where.gets(MIXED)
    second = await where.assigned(where.nodes[0])
    await where.gets(whole())
    third = await where.assigned(where.nodes[0])

    async def only_the_last() -> bool:
        assert await entries(where) == {"all-disabled", "all-enabled", third}
        return True

    assert len({first, second, third}) == 3
    await eventually(only_the_last)


async def test_a_plan_names_the_partitions_that_come_and_the_gpus_that_go(cluster: Cluster) -> None:
    where = await site(cluster, f"1x {H100}")
    foreseen = await plan(cluster, "-f", "-", "-o", "json", stdin=policy(POLICY, cluster.name, MIXED))
    assert foreseen.code == 0, foreseen.errors
    (row,) = foreseen.nodes.values()
    assert (row["change"], row["lost"]) == ("Repartition", ["gpu-0"])
    await where.gets(MIXED)
    assert sorted(row["gained"]) == sorted(await where.software.devices(where.nodes[0]))


async def test_gpus_that_somebody_cut_by_hand_are_cut_again_as_they_were_verified(cluster: Cluster) -> None:
    where = await site(cluster, f"1x {H100}", drift=1)
    await where.gets(SEVENTHS)
    node, label = where.nodes[0], await where.assigned(where.nodes[0])
    async with Watcher(cluster) as history:
        await where.software.by_hand(node, ["7g.80gb@0"])
        await history.saw(NODE_STATES, node, phase="Verifying")
        await reaches(cluster, node, "UpToDate")
    await where.announces(node, _1g_10gb=7)
    assert await where.assigned(node) == label


async def test_a_node_whose_gpus_a_device_plugin_offers_is_left_out_until_it_is_cleaned_up(cluster: Cluster) -> None:
    where = await site(cluster, f"1x {H100}", f"1x {H100}")
    theirs, ours = where.nodes
    await offer(cluster, theirs, "1")
    await where.wants(SEVENTHS)
    await where.announces(ours, _1g_10gb=7)
    body = await stalled(cluster, POLICY, "DevicePluginPresent")
    assert f"node {theirs} is skipped: a device plugin offers its GPUs as nvidia.com/gpu" in str(body)
    assert await phases(cluster) == {theirs: "Skipped", ours: "UpToDate"}
    await where.announces(theirs, whole=1)
    foreseen = await plan(cluster, "-o", "json")
    assert (foreseen.nodes[theirs]["state"], foreseen.nodes[ours]["state"]) == ("Skipped", "UpToDate")
    await offer(cluster, theirs, "0")
    await ready(cluster, POLICY)
    await where.announces(theirs, _1g_10gb=7)


async def offer(cluster: Cluster, node: str, gpus: str) -> None:
    """What a device plugin's registration leaves on the Node."""
    told = {"capacity": {"nvidia.com/gpu": gpus}, "allocatable": {"nvidia.com/gpu": gpus}}
    await cluster.client.patch(NODES, node, {"status": told}, subresource="status")


# ── when it goes wrong ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_node_that_lost_its_partitions_to_a_failure_gets_its_former_ones_back(cluster: Cluster) -> None:
    where = await site(cluster, f"2x {H100}")
    await where.gets(SEVENTHS)
    node, before = where.nodes[0], await where.assigned(where.nodes[0])
    await where.wants(MIXED)
    new = await where.other_target(before)
    await where.software.faults(node, f"apply-fails=cleared@config={new}")
    await stalled(cluster, POLICY, "RolledBack")
    await at_rest(cluster)
    assert await where.assigned(node) == before
    await where.announces(node, _1g_10gb=14)


async def test_a_gpu_that_a_process_outside_of_kubernetes_has_open_keeps_its_cut_and_the_node_is_opened_again(
    cluster: Cluster,
) -> None:
    where = await site(cluster, f"2x {H100}")
    node = where.nodes[0]
    await where.software.faults(node, "in-use=0,leaves-paused")
    await where.wants(SEVENTHS)
    body = await stalled(cluster, POLICY, "RolledBack")
    (failed,) = body["status"]["failedNodes"]
    assert failed["node"] == node
    assert "mig-manager failed" in failed["message"]
    assert "has paused nvidia.com/gpu.deploy.dcgm" in failed["message"]
    await at_rest(cluster)
    await where.announces(node, whole=2)
    await where.software.faults(node, None)
    await annotate(cluster, POLICIES, POLICY, retry="the process has ended")
    await ready(cluster, POLICY, within=60)
    await where.announces(node, _1g_10gb=14)


async def test_a_label_that_a_clouds_own_agent_writes_again_is_left_to_it_and_it_is_named(cluster: Cluster) -> None:
    where = await site(cluster, f"1x {H100}")
    await where.gets(SEVENTHS)
    node, ours = where.nodes[0], await where.assigned(where.nodes[0])
    theirs = ("label", "node", node, "--overwrite", f"{CONFIG}=all-disabled", "--field-manager=cloud-agent")
    async with Watcher(cluster) as history:
        await cluster.kubectl(*theirs)
        await history.saw(NODE_STATES, node, phase="Applying")
        await ready(cluster, POLICY, within=60)
        assert await where.assigned(node) == ours
        await at_rest(cluster)
        await cluster.kubectl(*theirs)
        await stalled(cluster, POLICY, "AssignmentContested")
    (record,) = (await records(cluster)).values()
    assert record["status"]["phase"] == "Skipped"
    assert "cloud-agent changed its label" in record["status"]["message"]
    assert await where.assigned(node) == "all-disabled"


async def test_a_mig_manager_that_has_an_old_copy_of_the_file_is_replaced_and_told_again(cluster: Cluster) -> None:
    where = await site(cluster, f"1x {H100}")
    node = where.nodes[0]
    await where.software.faults(node, "stale-mount")
    (before,) = await where.software.pods(node, where.software.mig_manager)
    await where.gets(SEVENTHS)
    (after,) = await where.software.pods(node, where.software.mig_manager)
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    await where.announces(node, _1g_10gb=7)


@pytest.mark.parametrize("wedged", ["before", "after"])
async def test_a_mig_manager_that_never_answers_is_not_waited_for_for_ever(cluster: Cluster, wedged: str) -> None:
    where = await site(cluster, f"1x {H100}", applying_mig=5)
    node = where.nodes[0]
    await where.software.faults(node, f"wedged={wedged}")
    await where.wants(SEVENTHS)
    await reaches(cluster, node, "RollingBack")
    await where.software.faults(node, None)
    await stalled(cluster, POLICY, "RolledBack")
    await where.announces(node, whole=1)


async def test_a_node_that_is_half_changed_is_brought_back_as_a_whole(cluster: Cluster) -> None:
    where = await site(cluster, f"2x {H100}")
    await where.gets(SEVENTHS)
    node, before = where.nodes[0], await where.assigned(where.nodes[0])
    await where.wants(MIXED)
    new = await where.other_target(before)
    await where.software.faults(node, f"apply-fails=partly@config={new}")
    await stalled(cluster, POLICY, "RolledBack")
    await where.announces(node, _1g_10gb=14)


async def test_a_whole_gpu_that_should_be_gone_is_seen(cluster: Cluster) -> None:
    where = await site(cluster, f"1x {H100}", verifying=3)
    node = where.nodes[0]
    await where.software.faults(node, "shows-whole")
    await where.wants(SEVENTHS)
    record = await reaches(cluster, node, "RollingBack")
    assert "1 are there that should be gone, such as gpu-0" in record["status"]["message"]
    await stalled(cluster, POLICY, "RolledBack")
    await where.announces(node, whole=1)


async def test_slices_and_answers_that_come_late_are_waited_for(cluster: Cluster) -> None:
    where = await site(cluster, f"1x {H100}")
    await where.software.faults(where.nodes[0], "late-slices=3,late-state=2,slow-apply=2")
    await where.gets(SEVENTHS)
    await where.announces(where.nodes[0], _1g_10gb=7)


async def test_a_state_that_lies_is_not_believed(cluster: Cluster) -> None:
    where = await site(cluster, f"1x {H100}", verifying=3)
    node = where.nodes[0]
    await where.software.faults(node, "wrong-state=success")
    await where.wants(SEVENTHS)
    await stalled(cluster, POLICY, "RolledBack")
    await where.announces(node, whole=1)


async def test_a_node_that_failed_is_tried_again_when_somebody_asks(cluster: Cluster) -> None:
    where = await site(cluster, f"1x {H100}")
    node = where.nodes[0]
    await where.gets(MIXED)
    await where.software.faults(node, "apply-fails")
    await where.wants(SEVENTHS)
    await reaches(cluster, node, "Failed")
    assert (await where.software.labels(node))[STATE] == "failed"
    await where.software.faults(node, None)
    await annotate(cluster, POLICIES, POLICY, retry="1")
    await ready(cluster, POLICY, within=60)
    await where.announces(node, _1g_10gb=7)
    await at_rest(cluster)


async def test_a_node_that_loses_a_gpu_midway_is_released_with_the_others_and_not_rolled_back(cluster: Cluster) -> None:
    where = await site(cluster, f"3x {H100}", verifying=6, start_anew=2)
    node = where.nodes[0]
    await where.gets(SEVENTHS)
    before = await where.assigned(node)
    async with Watcher(cluster) as history:
        await where.wants(MIXED)
        new = await where.other_target(before)
        await where.software.faults(node, f"gpu-gone=1@config={new}")
        body = await ready(cluster, POLICY, within=60)
        await at_rest(cluster)
    assert f"1 without all of their GPUs: {node}" in str(body)
    assert {"RollingBack", "Failed"}.isdisjoint(history.phases(node))
    (record,) = (await records(cluster)).values()
    assert (record["status"]["phase"], record["status"]["reason"]) == ("UpToDate", "HardwareDegraded")
    assert "1 of 3 GPUs are missing, such as gpu-1" in record["status"]["message"]
    await where.announces(node, _3g_40gb=2, _2g_20gb=2, _1g_10gb=4)


async def test_a_node_that_failed_for_a_dead_gpu_gets_its_layout_on_the_others_after_a_reboot_when_somebody_asks(
    cluster: Cluster,
) -> None:
    where = await site(cluster, f"3x {H100}", verifying=6, start_anew=2)
    node = where.nodes[0]
    await where.gets(SEVENTHS)
    before = await where.assigned(node)
    await where.wants(MIXED)
    new = await where.other_target(before)
    await where.software.faults(node, f"gpu-dies=1@config={new}")
    await reaches(cluster, node, "Failed", within=60)
    await where.software.faults(node, "gpu-gone=1")  # after a reboot it is not found any more
    await cluster.kubelet_stops(node)
    await cluster.kubelet_starts(node, rebooted=True)
    await where.software.becomes(node, "success")
    await annotate(cluster, POLICIES, POLICY, retry="1")
    body = await ready(cluster, POLICY, within=90)
    assert f"1 without all of their GPUs: {node}" in str(body)
    await at_rest(cluster)
    await where.announces(node, _3g_40gb=2, _2g_20gb=2, _1g_10gb=4)


# ── reboots, and drivers of another release ───────────────────────────────────────────────────────────────────────────


async def test_a_node_that_lost_its_partitions_in_a_reboot_is_opened_when_they_are_published_again(
    cluster: Cluster,
) -> None:
    where = await site(cluster, f"1x {H100}", start_anew=3, not_ready=1)
    node = where.nodes[0]
    await where.gets(SEVENTHS)
    (before,) = await where.software.pods(node, where.software.plugin)
    async with Watcher(cluster) as history:
        await cluster.kubelet_stops(node)
        await cluster.kubelet_starts(node, rebooted=True)
        await history.saw(NODE_STATES, node, phase="Verifying")
        await reaches(cluster, node, "UpToDate", within=60)
    await where.announces(node, _1g_10gb=7)
    (after,) = await where.software.pods(node, where.software.plugin)
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    await at_rest(cluster)


async def test_where_gpus_cannot_be_reset_a_node_is_rebooted_if_the_driver_allows_it(cluster: Cluster) -> None:
    where = await site(cluster, f"1x {A100}", env={"WITH_REBOOT": "true"}, spec={"reboot": "Allow"}, applying_reboot=60)
    node = where.nodes[0]
    boot = (await cluster.client.get(NODES, node))["status"]["nodeInfo"]["bootID"]
    await where.software.faults(node, "no-reset")
    await where.gets(profiles(("1g.5gb", 7)))
    await where.announces(node, _1g_5gb=7)
    assert (await cluster.client.get(NODES, node))["status"]["nodeInfo"]["bootID"] != boot


async def test_profiles_of_another_release_of_the_driver_are_the_same_layout(cluster: Cluster) -> None:
    where = await site(cluster, f"1x {H100}")
    await where.software.faults(where.nodes[0], "other-names")
    await where.gets(profiles("7g.79gb"))
    await where.announces(where.nodes[0], _7g_79gb=1)
