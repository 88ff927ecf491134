"""New claims kept off a node by a cordon: where the API server has no DeviceTaintRules, or the driver says so."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.e2e import rollout
from tests.e2e.harness import DRIVERS, NODE_STATES, POLICIES, eventually
from tests.e2e.history import Watcher
from tests.e2e.servers import served_by
from tests.e2e.stage import CLOSED, HALVES, Stage, closed_while_at_work, gone_from, stage

from gpupartition.kube import DEVICE_TAINT_RULES, NODES
from gpupartition.names import CORDONED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from testbed.controlplane import ControlPlane
    from tests.e2e.harness import Cluster

    from gpupartition.kube import Object

ONE_BY_ONE: Final = {"maxUnavailable": 1}
WAIT: Final = {"drain": {"mode": "Wait"}}


@pytest.fixture(scope="module")
async def without_rules(controlplane: ControlPlane) -> AsyncIterator[Path]:
    """As on Kubernetes 1.36: no DeviceTaintRules."""
    async with served_by(controlplane, runtime_config="resource.k8s.io/v1/devicetaintrules=false") as kubeconfig:
        yield kubeconfig


async def quiesce(scene: Stage, way: str) -> None:
    await scene.cluster.client.patch(DRIVERS, scene.driver, {"spec": {"quiesce": way}})


async def node_of(scene: Stage, name: str) -> tuple[bool, str | None]:
    """Whether a node is cordoned, and for whom."""
    body = await scene.cluster.client.get(NODES, name)
    return cordon(body)


def cordon(body: Object) -> tuple[bool, str | None]:
    return bool(body["spec"].get("unschedulable")), body["metadata"].get("annotations", {}).get(CORDONED)


async def test_without_taint_rules_nodes_are_cordoned_and_uncordoned_one_at_a_time(
    cluster: Cluster, without_rules: Path
) -> None:
    scene = await stage(cluster, 2)
    async with Watcher(cluster) as history:
        await rollout.operator(cluster, without_rules)
        name = await scene.want_halves(rollout=ONE_BY_ONE)
        await rollout.ready(cluster, name)
        await rollout.at_rest(cluster)
    await scene.publishes(HALVES)
    closed_while_at_work(history)
    assert history.most_unavailable() == 1
    assert history.changes(DEVICE_TAINT_RULES) == []
    for node in scene.nodes:
        told = [said for said, _ in groupby(cordon(change.body) for change in history.changes(NODES, node))]
        tokens = {c.body["status"].get("token") for c in history.changes(NODE_STATES, node)}
        assert [closed for closed, _ in told] in ([True, False], [False, True, False]), told
        assert {by for closed, by in told if closed} <= tokens
        assert await node_of(scene, node) == (False, None)


async def test_a_node_that_somebody_else_has_cordoned_stays_cordoned(cluster: Cluster, without_rules: Path) -> None:
    scene = await stage(cluster, 2)
    mine, theirs = scene.nodes
    client = cluster.client
    await client.patch(NODES, theirs, {"spec": {"unschedulable": True}})
    async with Watcher(cluster) as history:
        await rollout.operator(cluster, without_rules)
        name = await scene.want_halves(rollout={"maxUnavailable": 2})
        await rollout.reaches(cluster, mine, "UpToDate")
        await rollout.at_rest(cluster)
        before = len(history.changes(NODES, theirs))
        await client.patch(NODES, theirs, {"spec": {"unschedulable": None}})
        await rollout.ready(cluster, name)
    assert {cordon(change.body) for change in history.changes(NODES, theirs)[:before]} <= {(True, None)}
    assert await node_of(scene, theirs) == (False, None)


async def test_a_node_that_somebody_uncordons_is_cordoned_again_and_waits_anew(
    cluster: Cluster, without_rules: Path
) -> None:
    scene = await stage(cluster, 1)
    (node,) = scene.nodes
    holder = await scene.hold(node)
    async with Watcher(cluster) as history:
        await rollout.operator(cluster, without_rules)
        name = await scene.want_halves(rollout=WAIT)
        record = await rollout.reaches(cluster, node, "Draining")
        token = record["status"]["token"]
        assert await node_of(scene, node) == (True, token)
        await cluster.client.patch(NODES, node, {"spec": {"unschedulable": None}})
        await eventually(lambda: history.phases(node).count("Draining") == 2)
        assert await node_of(scene, node) == (True, token)
        late = await cluster.holder("late", namespace=holder.namespace, node=node, device_class=scene.base.driver)
        await holder.end()
        await rollout.ready(cluster, name)
    assert history.phases(node)[:5] == ["Pending", "Admitted", "Quiescing", "Draining", "Quiescing"]
    assert history.phases(node)[5:] == ["Draining", "Applying", "Verifying", "Releasing", "UpToDate"]
    assert len(holder.layouts(history)) == 1, "nothing was changed under the holder"
    await cluster.running(late["metadata"]["name"], namespace=holder.namespace)


async def test_a_policy_that_goes_midway_leaves_no_cordon(cluster: Cluster, without_rules: Path) -> None:
    scene = await stage(cluster, 1)
    (node,) = scene.nodes
    await scene.hold(node)
    await rollout.operator(cluster, without_rules)
    name = await scene.want_halves(rollout=WAIT)
    await rollout.reaches(cluster, node, "Draining")
    await cluster.client.delete(POLICIES, name)
    await gone_from(scene, node)
    assert await node_of(scene, node) == (False, None)


async def test_a_driver_that_insists_on_the_taint_is_told_of_the_cordon(cluster: Cluster, without_rules: Path) -> None:
    scene = await stage(cluster, 1)
    await quiesce(scene, "DeviceTaint")
    await rollout.operator(cluster, without_rules)
    name = await scene.want_halves()
    body = await rollout.stalled(cluster, name, "QuiesceUnavailable")
    assert "write quiesce: Cordon" in rollout.condition(body, "Stalled")["message"]
    assert await node_of(scene, scene.nodes[0]) == (False, None)
    await quiesce(scene, "Cordon")
    await rollout.ready(cluster, name)


@pytest.mark.newest
async def test_where_only_the_beta_of_taint_rules_is_served_it_is_used(cluster: Cluster) -> None:
    only_beta = "resource.k8s.io/v1/devicetaintrules=false,resource.k8s.io/v1beta2/devicetaintrules=true"
    scene = await stage(cluster, 1)
    async with served_by(cluster.controlplane, runtime_config=only_beta) as kubeconfig, Watcher(cluster) as history:
        await quiesce(scene, "DeviceTaint")
        running = await rollout.operator(cluster, kubeconfig)
        name = await scene.want_halves()
        await rollout.ready(cluster, name)
        await rollout.at_rest(cluster)
        await running.stop()
    await scene.publishes(HALVES)
    closed_while_at_work(history)
    assert history.changes(DEVICE_TAINT_RULES)
    assert not any(closed for closed, _ in (cordon(c.body) for c in history.changes(NODES)))


@pytest.mark.newest
async def test_both_is_both(cluster: Cluster) -> None:
    scene = await stage(cluster, 1)
    (node,) = scene.nodes
    await quiesce(scene, "Both")
    async with Watcher(cluster) as history:
        await rollout.operator(cluster)
        name = await scene.want_halves()
        await rollout.ready(cluster, name)
        await rollout.at_rest(cluster)
    for now in history.instants():
        if now.phases().get(node) in CLOSED:
            (rule,) = now.objects(DEVICE_TAINT_RULES)
            assert rule["spec"]["taint"]["effect"] == "NoSchedule"
            assert any(cordon(body)[0] for body in now.objects(NODES))
    assert await node_of(scene, node) == (False, None)


@pytest.mark.newest
@pytest.mark.parametrize("answer", ["the controller's", "Cordon"])
async def test_a_rule_that_no_controller_answers_is_told_of_until_one_does_or_the_driver_says_another_way(
    cluster: Cluster, answer: str
) -> None:
    scene = await stage(cluster, 1)
    (node,) = scene.nodes
    await rollout.operator(cluster)
    manager = cluster.controlplane.programs["kube-controller-manager"]
    await manager.stop()
    try:
        name = await scene.want_halves()

        async def told() -> Any:
            status = (await cluster.client.get(NODE_STATES, node))["status"]
            assert status.get("reason") == "QuiesceUnconfirmed", status
            return status

        status = await eventually(told)
        assert status["phase"] == "Quiescing"
        assert "write quiesce: Cordon in the driver" in status["message"]
        if answer == "Cordon":
            await quiesce(scene, answer)
            await rollout.reaches(cluster, node, "Applying")
            assert (await scene.closed_by(node)).startswith("cordon ")
            assert await scene.rule(node) is None
    finally:
        await cluster.controlplane.start_again("kube-controller-manager")
    await rollout.ready(cluster, name)
