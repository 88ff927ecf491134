"""AMD's modes through Device Config Manager and AMD's DRA driver, both simulated, on a real control plane: what the operator makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testbed.drivers.dcm import STATE
from tests.e2e.amd import MI300X
from tests.e2e.harness import NODE_STATES, eventually
from tests.e2e.history import Watcher
from tests.e2e.modes import POLICY, mode, site
from tests.e2e.rollout import apply, at_rest, phases, policy, reaches, ready, records, said, stalled, whole
from tests.e2e.stage import ONCE

from gpupartition.kube import CONFIG_MAPS, NODES, PODS
from gpupartition.names import STEP

if TYPE_CHECKING:
    from tests.e2e.harness import Cluster

TWO = f"2x {MI300X}"
NEAR = mode("CPX", "NPS4")
EIGHTHS = mode("CPX", "NPS1")
QUARTERS = mode("QPX", "NPS1")
FIRST = 'device.attributes["resource.kubernetes.io"].pciBusID == "0000:05:00.0"'


async def test_nodes_get_modes_and_others_and_are_made_whole_again(cluster: Cluster) -> None:
    where = await site(cluster, TWO, TWO)
    async with Watcher(cluster) as history:
        await where.gets(NEAR)
        for node in where.nodes:
            await where.announces(node, cpx_nps4=16)
        assert len({await where.assigned(node) for node in where.nodes}) == 1
        await where.gets(QUARTERS)
        for node in where.nodes:
            await where.announces(node, qpx_nps1=8)
        await where.gets(whole())
        for node in where.nodes:
            await where.announces(node, spx_nps1=2)
    for node in where.nodes:
        assert history.phases(node)[-23:] == [*ONCE, "Pending", *ONCE, "Pending", *ONCE]
    assert all(len(instant.unavailable()) <= 1 for instant in history.instants())


async def test_a_node_that_is_as_it_is_wanted_is_adopted_untouched(cluster: Cluster) -> None:
    where = await site(cluster, TWO)
    before = (await cluster.client.get(NODES, where.nodes[0]))["metadata"]
    file = await where.file()
    await where.gets(whole())
    after = (await cluster.client.get(NODES, where.nodes[0]))["metadata"]
    assert after["labels"] == before["labels"]
    assert STEP not in after["annotations"]
    assert await where.file() == file


async def test_gpus_of_a_node_get_modes_each_of_its_own_and_some_are_kept(cluster: Cluster) -> None:
    where = await site(cluster, f"4x {MI300X}")
    await where.gets(
        mode("CPX", "NPS1", name="small", match={"indexes": [0, 3]}),
        mode("DPX", "NPS1", name="halves", match={"indexes": [1]}),
        {"name": "rest", "match": {"all": True}, "type": "Keep"},
    )
    await where.announces(where.nodes[0], cpx_nps1=16, dpx_nps1=2, spx_nps1=1)


async def test_who_holds_a_gpu_that_has_its_mode_already_notices_nothing(cluster: Cluster) -> None:
    where = await site(cluster, TWO)
    await where.gets(
        mode("CPX", "NPS1", name="small", match={"indexes": [0]}),
        mode("SPX", "NPS1", name="rest"),
    )
    user = await cluster.namespace("user")
    await cluster.holder("stays", namespace=user, device_class="gpu.amd.com", cel=FIRST)
    pod = await cluster.running("stays", namespace=user)
    await where.gets(EIGHTHS)
    await where.announces(where.nodes[0], cpx_nps1=16)
    still = await cluster.client.get(PODS, "stays", namespace=user)
    assert still["metadata"]["uid"] == pod["metadata"]["uid"]


async def test_a_memory_mode_waits_for_everybody_on_the_node(cluster: Cluster) -> None:
    where = await site(cluster, TWO)
    await where.gets(EIGHTHS)
    user = await cluster.namespace("user")
    await cluster.holder("waits", namespace=user, device_class="gpu.amd.com")
    await cluster.running("waits", namespace=user)
    await where.wants(NEAR)
    await said(cluster, POLICY, "Ready", "False", "WaitingForHolders")
    await where.announces(where.nodes[0], cpx_nps1=16)
    await cluster.client.delete(PODS, "waits", namespace=user)
    await ready(cluster, POLICY)
    await where.announces(where.nodes[0], cpx_nps4=16)


async def test_modes_that_a_model_is_not_known_to_have_are_refused_before_anything_is_written(cluster: Cluster) -> None:
    where = await site(cluster, TWO)
    file = await where.file()
    await where.wants(mode("QPX", "NPS2"))
    body = await said(cluster, POLICY, "Accepted", "False", "UnknownMode")
    assert "CPX/NPS4" in str(body)
    assert await where.file() == file


async def test_a_node_whose_gpus_a_device_plugin_offers_is_left_out_until_it_is_cleaned_up(cluster: Cluster) -> None:
    where = await site(cluster, TWO, TWO)
    theirs, ours = where.nodes
    await offer(cluster, theirs, "2")
    await where.wants(EIGHTHS)
    await where.announces(ours, cpx_nps1=16)
    await stalled(cluster, POLICY, "DevicePluginPresent")
    assert await phases(cluster) == {theirs: "Skipped", ours: "UpToDate"}
    await where.announces(theirs, spx_nps1=2)
    await offer(cluster, theirs, "0")
    await ready(cluster, POLICY, within=60)
    await where.announces(theirs, cpx_nps1=16)


async def offer(cluster: Cluster, node: str, gpus: str) -> None:
    """What a device plugin's registration leaves on the Node."""
    told = {"capacity": {"amd.com/gpu": gpus}, "allocatable": {"amd.com/gpu": gpus}}
    await cluster.client.patch(NODES, node, {"status": told}, subresource="status")


async def test_a_layout_of_another_policy_waits_until_no_node_is_being_changed(cluster: Cluster) -> None:
    where = await site(cluster, TWO, TWO, verifying=300)
    first, second = where.nodes
    for node, group in ((first, "a"), (second, "b")):
        await cluster.client.patch(NODES, node, {"metadata": {"labels": {"group": group}}})
    await where.software.faults(first, "wedged=before")
    await apply(cluster, policy(POLICY, cluster.name, EIGHTHS, selector={"group": "a"}))
    await reaches(cluster, first, "Applying")
    before = await where.profiles()
    await apply(cluster, policy("later", cluster.name, QUARTERS, selector={"group": "b"}))
    await said(cluster, "later", "Ready", "False", "ConfigWaits")
    assert await where.profiles() == before
    await where.software.faults(first, None)
    await where.software.restart(first, where.software.config_manager)  # it begins again with what the label says
    await ready(cluster, POLICY, within=60)
    await ready(cluster, "later", within=60)
    await where.announces(first, cpx_nps1=16)
    await where.announces(second, qpx_nps1=8)


async def test_profiles_that_nobody_names_any_more_leave_the_file(cluster: Cluster) -> None:
    where = await site(cluster, TWO, resync=1)
    before = set(await where.profiles())
    await where.gets(EIGHTHS)
    await where.gets(QUARTERS)
    await where.gets(whole())
    assigned = await where.assigned(where.nodes[0])

    async def only_the_last() -> bool:
        assert set(await where.profiles()) == {*before, assigned}
        return True

    await eventually(only_the_last)


async def test_a_policy_that_changes_its_mind_before_a_node_was_told_anything_gets_its_way(cluster: Cluster) -> None:
    where = await site(cluster, TWO)
    user = await cluster.namespace("user")
    await cluster.holder("waits", namespace=user, device_class="gpu.amd.com")
    await cluster.running("waits", namespace=user)
    await where.wants(EIGHTHS, drain={"mode": "Wait"})
    await reaches(cluster, where.nodes[0], "Draining")
    await where.wants(QUARTERS, drain={"mode": "Wait"})
    await cluster.client.delete(PODS, "waits", namespace=user)
    await ready(cluster, POLICY, within=60)
    await where.announces(where.nodes[0], qpx_nps1=8)


# ── when it goes wrong ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_node_of_which_a_gpu_refuses_gets_its_former_modes_back(cluster: Cluster) -> None:
    where = await site(cluster, TWO, applying_dcm=5)
    await where.gets(EIGHTHS)
    node, before = where.nodes[0], await where.assigned(where.nodes[0])
    await where.wants(QUARTERS)
    new = await where.other_target(before)
    await where.software.faults(node, f"gpu-fails=1@config={new}")
    body = await stalled(cluster, POLICY, "RolledBack")
    assert "tries again each minute" in str(body)
    await at_rest(cluster)
    assert await where.assigned(node) == before
    await where.announces(node, cpx_nps1=16)


async def test_a_failure_that_ends_by_itself_is_no_failure(cluster: Cluster) -> None:
    where = await site(cluster, TWO)
    node = where.nodes[0]
    await where.software.faults(node, "in-use=0")
    await where.wants(EIGHTHS)
    await where.software.becomes(node, "failure")
    await where.software.faults(node, None)
    await ready(cluster, POLICY, within=60)
    await where.announces(node, cpx_nps1=16)


async def test_a_stale_success_is_not_taken_for_the_answer(cluster: Cluster) -> None:
    where = await site(cluster, TWO)
    await where.gets(EIGHTHS)
    node = where.nodes[0]
    assert (await where.software.labels(node))[STATE] == "success"
    await where.software.faults(node, "slow-apply=3")
    async with Watcher(cluster) as history:
        await where.gets(QUARTERS)
    assert history.phases(node)[-7:] == ONCE
    await where.announces(node, qpx_nps1=8)


async def test_a_state_that_lies_is_not_believed(cluster: Cluster) -> None:
    where = await site(cluster, TWO, verifying=3)
    node = where.nodes[0]
    await where.software.faults(node, "wrong-state=success")
    await where.wants(EIGHTHS)
    await stalled(cluster, POLICY, "RolledBack")
    await where.announces(node, spx_nps1=2)


async def test_a_manager_of_a_later_release_says_first_that_it_works(cluster: Cluster) -> None:
    where = await site(cluster, TWO)
    await where.software.faults(where.nodes[0], "newer-dcm")
    await where.gets(NEAR)
    await where.announces(where.nodes[0], cpx_nps4=16)


async def test_a_node_that_lost_its_modes_in_a_reboot_is_opened_when_they_are_published_again(cluster: Cluster) -> None:
    where = await site(cluster, TWO, start_anew=3, not_ready=1)
    node = where.nodes[0]
    await where.gets(EIGHTHS)
    async with Watcher(cluster) as history:
        await cluster.kubelet_stops(node)
        await cluster.kubelet_starts(node, rebooted=True)
        await history.saw(NODE_STATES, node, phase="Verifying")
        await reaches(cluster, node, "UpToDate", within=60)
    await where.announces(node, cpx_nps1=16)


async def test_a_node_that_loses_a_gpu_midway_gets_its_modes_on_the_others(cluster: Cluster) -> None:
    where = await site(cluster, f"3x {MI300X}", applying_dcm=8, verifying=6, start_anew=2)
    node = where.nodes[0]
    await where.gets(EIGHTHS)
    await where.software.faults(node, "gpu-gone=1")  # its plugin has not noticed
    await where.wants(QUARTERS)
    body = await ready(cluster, POLICY, within=90)
    await at_rest(cluster)
    assert f"1 without all of their GPUs: {node}" in str(body)
    (record,) = (await records(cluster)).values()
    assert (record["status"]["phase"], record["status"]["reason"]) == ("UpToDate", "HardwareDegraded")
    assert "1 of 3 GPUs are missing, such as 0000:25:00.0" in record["status"]["message"]
    await where.announces(node, qpx_nps1=8)


async def test_where_the_dra_driver_cuts_gpus_itself_nothing_is_done(cluster: Cluster) -> None:
    where = await site(cluster, TWO, env={"FEATURE_GATES": "AutoPartition=true"})
    await where.wants(EIGHTHS)
    await said(cluster, POLICY, "Accepted", "False", "TwoOwners")
    assert await where.assigned(where.nodes[0]) is None


async def test_a_file_that_stops_services_is_refused(cluster: Cluster) -> None:
    where = await site(cluster, TWO)
    text = '{"gpu-config-profiles": {}, "gpuClientSystemdServices": {"names": ["gpuagent"]}}'
    about = where.software
    await cluster.client.patch(
        CONFIG_MAPS, about.config_map, {"data": {"config.json": text}}, namespace=about.operator_namespace
    )
    await where.wants(EIGHTHS)
    await said(cluster, POLICY, "Accepted", "False", "StopsServices")
