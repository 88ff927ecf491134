"""`gpupartition adopt`: what nodes have by hand becomes drivers and policies, and to apply those changes nothing of any node."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import yaml
from testbed.drivers.mig_manager import CONFIG
from testbed.nodes import is_ready
from tests.e2e import amd, mig, modes, nvidia, publishing
from tests.e2e.by_hand import foreign, restart_by_hand, retemplate
from tests.e2e.harness import DRIVERS, NODE_STATES, POLICIES
from tests.e2e.history import Watcher
from tests.e2e.rollout import at_rest, devices, equal, fault, grant_namespace, operator, ready, said, stalled, writes
from tests.e2e.shell import PLANNER, Answer, account_of, gpupartition, only_read

from gpupartition.backends.mig_parted import key_of
from gpupartition.kube import DEVICE_TAINT_RULES, NODES, PODS, RESOURCE_SLICES

if TYPE_CHECKING:
    from pathlib import Path

    from testbed.programs import Program
    from tests.e2e.harness import Cluster

    from gpupartition.kube import Object

LEFT_OUT: Final = 3
TYPE: Final = "node.kubernetes.io/instance-type"


async def adopt(cluster: Cluster, *arguments: str, kubeconfig: Path | None = None) -> Answer:
    """Run the command."""
    return await gpupartition(cluster, "adopt", *arguments, kubeconfig=kubeconfig)


def policies(answer: Answer) -> dict[str, Any]:
    """The policies' specs, by name."""
    documents = [each for each in yaml.safe_load_all(answer.out) if each]
    return {each["metadata"]["name"]: each["spec"] for each in documents if each["kind"] == "GpuPartitionPolicy"}


def own(node: Object) -> Object:
    """What of a node is nobody's but its owner's, and changes when somebody changes it."""
    meta = node["metadata"]
    return {"labels": meta["labels"], "annotations": meta.get("annotations"), "spec": node["spec"]}


async def take_over(cluster: Cluster, answer: Answer, **seconds: float) -> Program:
    """Apply what was printed and start an operator; waits until all is as it is wanted, and insists that no node was touched."""
    ready_nodes = filter(
        is_ready, (await cluster.client.list(NODES)).items
    )  # of others Kubernetes itself changes the taints
    before = {node["metadata"]["name"]: own(node) for node in ready_nodes}
    written = len(writes(cluster))
    async with Watcher(cluster) as history:
        await cluster.kubectl("apply", "-f", "-", stdin=answer.out)
        program = await operator(cluster, **seconds)
        for name in policies(answer):
            await ready(cluster, name)
        await at_rest(cluster)
    assert foreign(writes(cluster, since=written)) == []
    for change in history.touched(NODES, *before):
        assert own(change.body) == before[change.name]
    for kind in (RESOURCE_SLICES, DEVICE_TAINT_RULES):
        assert history.changes(kind) == []
    for now in history.instants():
        assert set(now.phases().values()) <= {"", "Pending", "UpToDate"}
    return program


async def test_nodes_of_the_example_driver_are_adopted_as_they_are_and_rolled_back_to_that(cluster: Cluster) -> None:
    base = await cluster.example_driver()
    if not await asyncio.to_thread(cluster.controlplane.files.kubeconfig("operator").exists):
        await cluster.controlplane.install_operator()
    await grant_namespace(cluster, base.namespace)
    whole = await cluster.nodes(2, pool=base.pool, labels={TYPE: "large"})
    (cut,) = await cluster.nodes(1, pool=base.pool)
    (away,) = await cluster.nodes(1, pool=base.pool)
    for node in (*whole, cut, away):
        await cluster.published(devices(0), node=node, driver=base.driver)
    await retemplate(cluster, base, env=[{"name": "GPU_PARTITIONS", "value": "2"}])
    await restart_by_hand(cluster, base, cut)
    await cluster.published(devices(2), node=cut, driver=base.driver)
    await cluster.kubelet_stops(away)

    answer = await adopt(cluster, "--fail-on=left-out", kubeconfig=await account_of(cluster, PLANNER))

    assert answer.code == LEFT_OUT
    assert answer.errors.splitlines() == [f"left out: {away}: it is not Ready", "found: left-out"]
    assert f"# left out: {away}: it is not Ready" in answer.out
    assert only_read(cluster, PLANNER)
    found = policies(answer)
    assert {name: spec["nodeSelector"] for name, spec in found.items()} == {
        "example-whole": {"matchLabels": {TYPE: "large"}},
        "example-parts-2": {"matchLabels": {"kubernetes.io/hostname": cut}},
    }

    await take_over(cluster, answer, verifying=1)
    again = await adopt(cluster, "--fail-on=left-out")
    assert (again.code, policies(again)) == (LEFT_OUT, {})
    assert f"has a policy: {whole[0]}, {whole[1]}: GpuPartitionPolicy example-whole has it" in again.errors

    before = [await cluster.published(devices(0), node=node, driver=base.driver) for node in whole]
    for node in whole:
        await fault(cluster, node, "wrong-layout@partitions=4")
    quarters = [{"name": "quarters", "match": {"all": True}, "type": "Equal", "equal": {"parts": 4}}]
    await cluster.client.patch(POLICIES, "example-whole", {"spec": {"layouts": quarters}})
    await stalled(cluster, "example-whole", "RolledBack")
    await at_rest(cluster)
    after = [await cluster.published(devices(0), node=node, driver=base.driver) for node in whole]
    for then, now in zip(before, after, strict=True):
        assert [each["spec"]["devices"] for each in now] == [each["spec"]["devices"] for each in then]


async def without_driver(cluster: Cluster) -> None:
    """Take the GpuPartitionDriver away that came with the operator's rights: the command has to find out itself."""
    await cluster.client.delete(DRIVERS, cluster.name)
    await cluster.gone(DRIVERS, cluster.name)


async def test_nodes_that_were_cut_by_mig_by_hand_are_adopted_as_they_are_and_rolled_back_to_that(
    cluster: Cluster,
) -> None:
    software = await nvidia.install(cluster)
    await software.configure(thirds=nvidia.every({"3g.40gb": 2}), enabled=nvidia.every({}))
    cut, whole, odd = await software.nodes(f"2x {nvidia.H100}", f"2x {nvidia.A100}", f"1x {nvidia.H100}")
    await software.apply(cut, "thirds")
    await software.apply(odd, "enabled")
    for node in (cut, odd):
        await software.restart(node, software.plugin)
    await mig.driver(cluster, software)
    await without_driver(cluster)
    where = mig.Site(cluster=cluster, software=software, nodes=[cut, whole])
    await where.announces(cut, _3g_40gb=2 * 2)

    answer = await adopt(cluster, "--fail-on=left-out")

    assert answer.code == LEFT_OUT
    assert f"left out: {odd}: it publishes nothing" in answer.errors.splitlines()
    found = policies(answer)
    assert found["mig-2x3g-40gb"]["layouts"][0]["profiles"] == [{"name": "3g.40gb", "count": 2}]
    assert found["mig-2x3g-40gb"]["nodeSelector"] == {"matchLabels": {"kubernetes.io/hostname": cut}}
    assert found["mig-whole"]["nodeSelector"] == {"matchLabels": {"kubernetes.io/hostname": whole}}

    await take_over(cluster, answer, config_age=1.5, applying_mig=60, verifying=1)
    before = await where.announced(cut)
    await software.faults(cut, f"apply-fails=cleared@config={key_of(nvidia.every({'1g.10gb': 7}))}")
    sevenths = mig.profiles(("1g.10gb", 7))
    await cluster.client.patch(POLICIES, "mig-2x3g-40gb", {"spec": {"layouts": [sevenths]}})
    await stalled(cluster, "mig-2x3g-40gb", "RolledBack", within=60)
    assert await where.announced(cut) == before
    assert (await software.labels(cut))[CONFIG] == "thirds"


async def test_nodes_whose_modes_were_set_by_hand_are_adopted_as_they_are(cluster: Cluster) -> None:
    software = await amd.install(cluster)
    await software.configure(near=amd.profile(amd.entry("CPX-NPS4", 2)))
    cut, whole = await software.nodes(*[f"2x {amd.MI300X}"] * 2)
    await software.apply(cut, "near")
    await software.restart(cut, software.plugin)
    await modes.driver(cluster, software)
    await without_driver(cluster)
    await software.announces(cut, cpx_nps4=16)

    answer = await adopt(cluster, "--fail-on=left-out")

    assert (answer.code, answer.errors) == (0, "")
    found = policies(answer)
    assert found["amd-cpx-nps4"]["layouts"][0]["mode"] == {"compute": "CPX", "memory": "NPS4"}
    assert found["amd-cpx-nps4"]["nodeSelector"] == {"matchLabels": {"kubernetes.io/hostname": cut}}
    assert found["amd-whole"]["nodeSelector"] == {"matchLabels": {"kubernetes.io/hostname": whole}}
    await take_over(cluster, answer, config_age=1.5)
    assert {r["metadata"]["name"] for r in (await cluster.client.list(NODE_STATES)).items} == {cut, whole}


async def by_nvidia_smi(cluster: Cluster, *, nodes: tuple[tuple[str, str | None], ...]) -> mig.Site:
    """Nodes, each of a product and with a label or none, whose GPUs somebody has cut into halves on the node itself."""
    software = await nvidia.install(cluster)
    await software.configure()
    names = [(await software.nodes(f"1x {product}", config=config))[0] for product, config in nodes]
    for name in names:
        await software.by_hand(name, ["3g.40gb@0", "3g.40gb@4"])
    await mig.driver(cluster, software)
    await without_driver(cluster)
    where = mig.Site(cluster=cluster, software=software, nodes=names)
    for name in names:
        await where.announces(name, _3g_40gb=2)
    return where


async def test_nodes_cut_with_nvidia_smi_are_adopted_without_a_label_and_rolled_back_to_that(cluster: Cluster) -> None:
    where = await by_nvidia_smi(cluster, nodes=((nvidia.H100, None), (nvidia.H100, None)))
    node, other = where.nodes

    answer = await adopt(cluster, "--fail-on=left-out", f"--selector=kubernetes.io/hostname={node}")

    assert (answer.code, answer.errors) == (0, "")
    ((name, spec),) = policies(answer).items()
    assert spec["layouts"][0]["profiles"] == [{"name": "3g.40gb", "count": 2}]
    assert spec["nodeSelector"] == {"matchLabels": {"kubernetes.io/hostname": node}}
    assert "mode" not in spec
    user = await cluster.namespace("user")
    await cluster.holder("works", namespace=user, node=node, device_class="mig.nvidia.com")
    pod = await cluster.running("works", namespace=user)

    await take_over(cluster, answer, config_age=1.5, applying_mig=60, verifying=1)

    assert await where.assigned(node) is None
    still = await cluster.client.get(PODS, "works", namespace=user)
    assert still["metadata"]["uid"] == pod["metadata"]["uid"]
    await cluster.client.delete(PODS, "works", namespace=user)
    await cluster.gone(PODS, "works", namespace=user)
    before = await where.announced(node)
    await where.software.faults(node, f"apply-fails=cleared@config={key_of(nvidia.every({'1g.10gb': 7}))}")
    await cluster.client.patch(POLICIES, name, {"spec": {"layouts": [mig.profiles(("1g.10gb", 7))]}})
    await stalled(cluster, name, "RolledBack", within=60)
    await at_rest(cluster)
    assert await where.announced(node) == before
    assert await where.assigned(node) == key_of(nvidia.every({"3g.40gb": 2}))
    assert await where.assigned(other) is None


async def test_what_was_cut_with_nvidia_smi_is_there_again_after_a_reboot_and_has_a_label_then(
    cluster: Cluster,
) -> None:
    where = await by_nvidia_smi(cluster, nodes=((nvidia.H100, None),))
    (node,) = where.nodes
    answer = await adopt(cluster, "--fail-on=left-out")
    await take_over(cluster, answer, config_age=1.5, applying_mig=60, verifying=6, start_anew=2)
    (name,) = policies(answer)
    async with Watcher(cluster) as history:
        await cluster.kubelet_stops(node)
        await cluster.kubelet_starts(node, rebooted=True)
        await history.saw(NODE_STATES, node, phase="Verifying")
        await history.saw(NODE_STATES, node, phase="Admitted")
        await ready(cluster, name, within=90)
        await at_rest(cluster)
    await where.announces(node, _3g_40gb=2)
    assert await where.assigned(node) == key_of(nvidia.every({"3g.40gb": 2}))
    assert "Failed" not in history.phases(node)


async def test_a_node_cut_behind_the_back_of_its_label_is_observed_and_enforcing_takes_nothing_from_anybody(
    cluster: Cluster,
) -> None:
    where = await by_nvidia_smi(cluster, nodes=((nvidia.H100, "all-disabled"),))
    (node,) = where.nodes

    answer = await adopt(cluster, "--fail-on=left-out")

    assert answer.code == 0
    assert answer.errors.startswith(
        f"only observed: {node}: all-disabled is assigned to them, which does not say what they publish"
    )
    ((name, spec),) = policies(answer).items()
    assert spec["mode"] == "Observe"
    user = await cluster.namespace("user")
    await cluster.holder("works", namespace=user, node=node, device_class="mig.nvidia.com")
    pod = await cluster.running("works", namespace=user)
    before = (await cluster.client.get(NODES, node))["metadata"]
    await cluster.kubectl("apply", "-f", "-", stdin=answer.out)
    await mig.started(cluster)
    observed = await said(cluster, name, "Ready", "True", "Observing")
    assert observed["status"]["nodes"]["wouldChange"] == 1
    assert (await cluster.client.get(NODES, node))["metadata"]["labels"] == before["labels"]

    await cluster.client.patch(POLICIES, name, {"spec": {"mode": "Enforce"}})
    await ready(cluster, name)
    await at_rest(cluster)
    assert await where.assigned(node) == key_of(nvidia.every({"3g.40gb": 2}))
    assert (await cluster.running("works", namespace=user))["metadata"]["uid"] == pod["metadata"]["uid"]
    assert await where.software.hardware(node) == [["3g.40gb@0", "3g.40gb@4"]]


async def test_modes_that_were_set_with_amd_smi_are_adopted_and_there_again_after_a_reboot(cluster: Cluster) -> None:
    software = await amd.install(cluster)
    await software.configure()
    (node,) = await software.nodes(f"2x {amd.MI300X}")
    await software.by_hand(node, "CPX-NPS1")
    await modes.driver(cluster, software)
    await without_driver(cluster)
    await software.announces(node, cpx_nps1=16)

    answer = await adopt(cluster, "--fail-on=left-out")

    assert (answer.code, answer.errors) == (0, "")
    ((name, spec),) = policies(answer).items()
    assert spec["layouts"][0]["mode"] == {"compute": "CPX", "memory": "NPS1"}
    assert "mode" not in spec
    await take_over(cluster, answer, config_age=1.5, applying_dcm=60, verifying=6, start_anew=2)
    assert software.CONFIG not in await software.labels(node)
    async with Watcher(cluster) as history:
        await cluster.kubelet_stops(node)
        await cluster.kubelet_starts(node, rebooted=True)
        await history.saw(NODE_STATES, node, phase="Admitted")
        await ready(cluster, name, within=90)
        await at_rest(cluster)
    await software.announces(node, cpx_nps1=16)
    assert (await software.labels(node))[software.CONFIG].startswith("gpp-")


async def test_what_a_policy_has_left_behind_is_adopted_by_the_next_one(cluster: Cluster) -> None:
    site = await publishing.site(cluster, publishing.gpus(2), nodes=2)
    await site.gets(equal(2))
    await cluster.client.delete(POLICIES, publishing.POLICY)
    await cluster.gone(POLICIES, publishing.POLICY)
    for node in site.nodes:
        await cluster.gone(NODE_STATES, node)
    await site.program.stop()

    answer = await adopt(cluster, "--fail-on=left-out", "--by-label=pool")

    assert (answer.code, answer.errors) == (0, "")
    (spec,) = policies(answer).values()
    assert spec["driver"] == site.driver
    assert spec["nodeSelector"] == {"matchLabels": {"pool": site.driver}}
    assert [layout["equal"] for layout in spec["layouts"]] == [{"parts": 2}]
    await take_over(cluster, answer)
