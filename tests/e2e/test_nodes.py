"""What nodes do by themselves, on a real control plane: they reboot, vanish, join, lose GPUs, drift, and others work on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.e2e import publishing, rollout
from tests.e2e.harness import NODE_STATES, POLICIES, eventually, taint_rules
from tests.e2e.history import Watcher
from tests.e2e.rollout import condition
from tests.e2e.stage import HALVES, WHOLE, Stage, halted_in, stage

from gpupartition.kube import DEVICE_TAINT_RULES, NODES
from gpupartition.names import (
    ABANDON,
    FIELD_MANAGER,
    FULL_NODE_NAME,
    LAYOUT,
    MANAGED_BY,
    SKIP,
    STARTUP_TAINT,
    STEP,
    TAINT_KEY,
    taint_rule,
)

if TYPE_CHECKING:
    from tests.e2e.harness import Cluster

    from gpupartition.kube import Object

SOON = "0.3"  # seconds after which the simulated driver puts back what the kubelet wiped


async def in_halves(cluster: Cluster, count: int, *, spec: Object | None = None, **seconds: float) -> Stage:
    """So many nodes, all verified in halves and at rest."""
    scene = await stage(cluster, count, TESTBED_SYNC_SECONDS=SOON)
    await rollout.operator(cluster, **seconds)
    name = await scene.want_halves(rollout={"maxUnavailable": count, **(spec or {})})
    await rollout.ready(cluster, name)
    await rollout.at_rest(cluster)
    return scene


async def reason(cluster: Cluster, node: str, phase: str, word: str, *, within: float = 30) -> Object:
    """Wait until a node is in a phase for this reason; returns its status."""

    async def look() -> Object:
        status: Object = (await cluster.client.get(NODE_STATES, node))["status"]
        assert (status["phase"], status.get("reason", "")) == (phase, word), status
        return status

    return await eventually(look, within=within)


# ── rebooted, or away ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_node_that_reboots_is_closed_until_it_publishes_what_it_did(cluster: Cluster) -> None:
    scene = await in_halves(cluster, 2)
    node, other = scene.nodes
    pod = await scene.pod_uid(node)
    before = (await cluster.client.get(NODE_STATES, node))["status"]["bootID"]
    async with Watcher(cluster) as history:
        await cluster.kubelet_stops(node)
        await cluster.kubelet_starts(node, rebooted=True)
        await history.saw(NODE_STATES, node, phase="Verifying")
        await rollout.reaches(cluster, node, "UpToDate")
        await rollout.ready(cluster, cluster.name)
        await rollout.at_rest(cluster)
    assert history.phases(node) == ["Quiescing", "Verifying", "Releasing", "UpToDate"]
    assert all(now.quiesced() == {node} for now in history.instants() if now.phases()[node] == "Verifying")
    assert len(history.assignments(node)) == 1, "nothing was assigned anew"
    assert await scene.pod_uid(node) == pod, "no driver was started anew"
    assert (await cluster.client.get(NODE_STATES, node))["status"]["bootID"] != before
    assert not history.touched(NODE_STATES, other)


async def test_a_node_that_is_not_ready_waits_closed_without_a_clock_until_it_is_back(cluster: Cluster) -> None:
    scene = await in_halves(cluster, 1, not_ready=0.5, verifying=2)
    (node,) = scene.nodes
    await cluster.kubelet_stops(node)
    await rollout.reaches(cluster, node, "Verifying")
    policy = await rollout.said(cluster, cluster.name, "Ready", "False", "NodeRecovering")
    assert f"node {node}: is not Ready" in condition(policy, "Ready")["message"]
    assert await scene.closed_by(node)
    assert await scene.in_flight() == [node]
    await cluster.kubelet_starts(node)
    await rollout.ready(cluster, cluster.name)
    await rollout.at_rest(cluster)
    await scene.publishes(HALVES)


async def test_a_node_that_is_not_ready_for_a_moment_costs_not_one_write(cluster: Cluster) -> None:
    scene = await in_halves(cluster, 1, resync=0.3)
    (node,) = scene.nodes
    async with Watcher(cluster) as history:
        for _ in range(3):
            await cluster.kubelet_stops(node)
            await cluster.kubelet_starts(node)
        await scene.publishes(HALVES)
        await rollout.looks_again(cluster.operators[-1])
    assert not history.changes(NODE_STATES)
    assert not history.changes(DEVICE_TAINT_RULES)


async def test_a_node_that_does_not_come_back_with_its_layout_fails_is_never_rolled_back_and_opens_when_it_is_mended(
    cluster: Cluster,
) -> None:
    scene = await in_halves(cluster, 1, verifying=1.5)
    (node,) = scene.nodes
    async with Watcher(cluster) as history:
        await rollout.fault(cluster, node, "wrong-layout")
        await cluster.kubelet_stops(node)
        await cluster.kubelet_starts(node, rebooted=True)
        policy = await rollout.stalled(cluster, cluster.name, "RolloutHalted")
        assert "1 of 24 devices are missing" in condition(policy, "Stalled")["message"]
        assert await scene.closed_by(node)
        await rollout.fault(cluster, node, None)
        await rollout.ready(cluster, cluster.name)
        await rollout.at_rest(cluster)
    assert history.phases(node) == ["Quiescing", "Verifying", "Failed", "Releasing", "UpToDate"]


@pytest.mark.newest
async def test_a_rule_that_comes_too_late_for_a_node_that_was_goes_and_that_of_the_node_of_its_name_stays(
    cluster: Cluster,
) -> None:
    scene = await stage(cluster, 1)
    (node,) = scene.nodes
    await rollout.operator(cluster)
    await halted_in(scene, node, "Draining")
    closed = await scene.closed_by(node)
    for about in (node, "nobody"):
        rule = {
            "apiVersion": DEVICE_TAINT_RULES.api_version,
            "kind": "DeviceTaintRule",
            "metadata": {
                "name": taint_rule(about, "of-the-one-before"),
                "labels": {MANAGED_BY: FIELD_MANAGER},
                "annotations": {FULL_NODE_NAME: about},
            },
            "spec": {
                "deviceSelector": {"driver": scene.base.driver, "pool": about},
                "taint": {"key": TAINT_KEY, "value": "", "effect": "None"},
            },
        }
        await cluster.client.create(DEVICE_TAINT_RULES, rule)

    async def only_its_own() -> bool:
        return len(await taint_rules(cluster.client)) == 1

    await eventually(only_its_own)
    assert await scene.closed_by(node) == closed


async def test_a_node_that_is_gone_for_long_leaves_both_sides_of_the_budget(cluster: Cluster) -> None:
    scene = await stage(cluster, 3)
    down, *others = scene.nodes
    await rollout.operator(cluster, resync=0.5)
    await cluster.kubelet_stops(down)
    name = await scene.want_halves(rollout={"maxUnavailable": "50%", "ignoreNotReadyAfterSeconds": 3600})
    await rollout.said(cluster, name, "Ready", "False", "BudgetExhausted")
    async with Watcher(cluster) as history:
        await scene.want_halves(rollout={"maxUnavailable": "50%", "ignoreNotReadyAfterSeconds": 1})
        for node in others:
            await rollout.reaches(cluster, node, "UpToDate", within=60)
    assert history.most_unavailable(*others) == 1
    assert (await rollout.phases(cluster))[down] == "Pending"
    await cluster.kubelet_starts(down)
    await rollout.ready(cluster, name)


# ── new nodes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_new_nodes_get_their_first_layout_beside_the_budget_and_lose_their_startup_taint(
    cluster: Cluster,
) -> None:
    scene = await in_halves(cluster, 2, spec={"maxUnavailable": 1, "maxInitializing": 2}, not_ready=600)
    await cluster.kubelet_stops(scene.nodes[0])  # the budget is used up
    taint = {"key": STARTUP_TAINT, "effect": "NoSchedule"}
    async with Watcher(cluster) as history:
        new = await cluster.nodes(
            3, pool=scene.base.pool, taints=[taint, {"key": "example.com/mine", "effect": "NoSchedule"}]
        )
        for node in new:
            await rollout.reaches(cluster, node, "UpToDate", within=60)

        async def opened() -> bool:
            bodies = [await cluster.client.get(NODES, node) for node in new]
            return all([t["key"] for t in body["spec"]["taints"]] == ["example.com/mine"] for body in bodies)

        await eventually(opened)
        await rollout.at_rest(cluster)
    assert history.most_unavailable(*new) == 2
    for change in history.touched(NODES, *new):
        keys = [t["key"] for t in change.body["spec"].get("taints", ())]
        record = next((r for r in history.touched(NODE_STATES, change.name) if r.version < change.version), None)
        assert STARTUP_TAINT in keys or record is not None
    assert not history.assignments(scene.nodes[1])[1:]
    await scene.publishes(HALVES, *new)


# ── lost GPUs ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_node_without_all_of_its_gpus_is_skipped_until_it_has_them(cluster: Cluster) -> None:
    scene = await stage(cluster, 2)
    poor, rich = scene.nodes
    await rollout.fault(cluster, poor, "wrong-layout=gpu")
    await scene.publishes(WHOLE - 1, poor)
    await rollout.operator(cluster)
    name = await scene.want_halves()
    policy = await rollout.stalled(cluster, name, "HardwareDegraded")
    assert f"node {poor} is skipped: publishes 7 of 8 GPUs" in condition(policy, "Stalled")["message"]
    assert await rollout.phases(cluster) == {poor: "Skipped", rich: "UpToDate"}
    assert await scene.layout(poor) is None
    await rollout.fault(cluster, poor, None)
    await rollout.ready(cluster, name)


async def test_a_node_that_loses_a_gpu_midway_is_released_with_the_others_and_not_rolled_back(cluster: Cluster) -> None:
    scene = await stage(cluster, 1)
    (node,) = scene.nodes
    await rollout.fault(cluster, node, "wrong-layout=gpu@partitions=2")
    await rollout.operator(cluster, verifying=1.5, drift=0.5, resync=0.3)
    async with Watcher(cluster) as history:
        name = await scene.want_halves()
        policy = await rollout.ready(cluster, name)
        await rollout.looks_again(cluster.operators[-1])
        await rollout.at_rest(cluster)
    assert f"1 without all of their GPUs: {node}" in condition(policy, "Ready")["message"]
    status = await reason(cluster, node, "UpToDate", "HardwareDegraded")
    assert "1 of 8 GPUs are missing" in status["message"]
    assert "RollingBack" not in history.phases(node)
    assert history.phases(node)[-1] == "UpToDate"
    assert len(history.assignments(node)) == 2, "no repair"
    await rollout.fault(cluster, node, None)
    await reason(cluster, node, "UpToDate", "")


# ── drift ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_node_that_drifts_again_and_again_is_repaired_three_times_and_then_left_alone(cluster: Cluster) -> None:
    scene = await in_halves(cluster, 1, drift=0.3)
    (node,) = scene.nodes
    async with Watcher(cluster) as history:
        await rollout.fault(cluster, node, "loses-slices-after=3")
        status = await reason(cluster, node, "Skipped", "DriftUnrepaired", within=90)
        policy = await rollout.stalled(cluster, cluster.name, "DriftUnrepaired")
    assert "repaired 3 times within a day" in status["message"]
    assert node in condition(policy, "Stalled")["message"]
    assert history.phases(node).count("Applying") == 3
    await rollout.fault(cluster, node, "loses-slices-after=600")
    await rollout.annotate(cluster, POLICIES, cluster.name, retry="mended")
    await rollout.ready(cluster, cluster.name)


async def test_an_assignment_that_somebody_else_writes_twice_is_left_to_them_and_they_are_named(
    cluster: Cluster,
) -> None:
    scene = await in_halves(cluster, 1)
    (node,) = scene.nodes
    ours = await scene.layout(node)
    async with Watcher(cluster) as history:
        await cluster.kubectl("label", "node", node, "--overwrite", f"{LAYOUT}=mine")
        await history.saw(NODE_STATES, node, phase="Applying")
        await rollout.ready(cluster, cluster.name)
        assert await scene.layout(node) == ours
        await cluster.kubectl("label", "node", node, "--overwrite", f"{LAYOUT}=mine")
        status = await reason(cluster, node, "Skipped", "AssignmentContested")
    assert "kubectl-label changed its label" in status["message"]
    assert await scene.layout(node) == "mine"
    await rollout.stalled(cluster, cluster.name, "AssignmentContested")
    await rollout.annotate(cluster, POLICIES, cluster.name, retry="settled")
    await rollout.ready(cluster, cluster.name)
    assert await scene.layout(node) == ours


async def test_when_many_nodes_drift_together_nobody_is_touched_until_somebody_accepts_it(cluster: Cluster) -> None:
    scene = await in_halves(cluster, 3, drift=1)
    one, two, well = scene.nodes
    await scene.want_halves(rollout={"paused": True})  # so that both have drifted before one is repaired
    for node in (one, two):
        await rollout.fault(cluster, node, "loses-slices-after=4")
    for node in (one, two):
        await reason(cluster, node, "Pending", "Drift")
    async with Watcher(cluster) as history:
        await scene.want_halves(rollout={"maxUnavailable": 2})
        policy = await rollout.stalled(cluster, cluster.name, "MassDrift")
        assert f"such as {one}, {two}" in condition(policy, "Stalled")["message"]
        assert await rollout.phases(cluster) == {one: "Pending", two: "Pending", well: "UpToDate"}
        await rollout.annotate(cluster, POLICIES, cluster.name, accept_drift="seen")
        for node in (one, two):
            await history.saw(NODE_STATES, node, phase="Verifying")
            await rollout.fault(cluster, node, None)
        policy = await rollout.ready(cluster, cluster.name)
    assert policy["status"]["drift"]["accepted"] == "seen"
    await scene.publishes(HALVES)


async def test_a_look_at_a_policy_that_cannot_be_carried_out_forgets_nothing_of_its_nodes(cluster: Cluster) -> None:
    scene = await in_halves(cluster, 3, drift=1)
    await scene.want_halves(rollout={"paused": True})
    for node in scene.nodes[:2]:
        await rollout.fault(cluster, node, "loses-slices-after=4")
        await reason(cluster, node, "Pending", "Drift")
    await scene.want_halves()
    before = (await rollout.stalled(cluster, cluster.name, "MassDrift"))["status"]
    (operator,) = cluster.operators
    await operator.stop()
    await cluster.kubectl("delete", "rolebinding", "gpupartition-driver", "--namespace", scene.base.namespace)
    await rollout.operator(cluster)
    now = (await rollout.said(cluster, cluster.name, "Ready", "False", "RightsMissing"))["status"]
    assert {field: now.get(field) for field in ("drift", "nodes", "progress", "capacity")} == {
        field: before.get(field) for field in ("drift", "nodes", "progress", "capacity")
    }
    await rollout.grant_namespace(cluster, scene.base.namespace)
    await rollout.stalled(cluster, cluster.name, "MassDrift")


# ── others at work ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("patch", "undo", "who"),
    [
        ({"spec": {"unschedulable": True}}, {"spec": {"unschedulable": None}}, "it is cordoned"),
        (
            {"metadata": {"labels": {"nvidia.com/gpu-driver-upgrade-state": "drain-required"}}},
            {"metadata": {"labels": {"nvidia.com/gpu-driver-upgrade-state": "upgrade-done"}}},
            "its GPU driver is being upgraded",
        ),
        (
            {"spec": {"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]}},
            {"spec": {"taints": None}},
            "Karpenter is about to remove it",
        ),
    ],
    ids=["cordoned", "driver upgrade", "Karpenter"],
)
async def test_a_node_that_others_work_on_is_not_begun_with_until_they_are_done(
    cluster: Cluster, patch: Any, undo: Any, who: str
) -> None:
    scene = await stage(cluster, 1)
    (node,) = scene.nodes
    await cluster.client.patch(NODES, node, patch)
    await rollout.operator(cluster)
    name = await scene.want_halves()
    policy = await rollout.said(cluster, name, "Ready", "False", "ForeignMaintenance")
    assert who in condition(policy, "Ready")["message"]
    status = await reason(cluster, node, "Pending", "ForeignMaintenance")
    assert who in status["message"]
    await cluster.client.patch(NODES, node, undo)
    await rollout.ready(cluster, name)


async def test_a_node_with_the_label_skip_is_left_alone(cluster: Cluster) -> None:
    scene = await stage(cluster, 2, labels={SKIP: "true"})
    node = scene.nodes[0]
    await cluster.client.patch(NODES, scene.nodes[1], {"metadata": {"labels": {SKIP: None}}})
    await rollout.operator(cluster)
    name = await scene.want_halves()
    await rollout.stalled(cluster, name, "SkipRequested")
    assert await rollout.phases(cluster) == {node: "Skipped", scene.nodes[1]: "UpToDate"}
    assert await scene.layout(node) is None
    await cluster.client.patch(NODES, node, {"metadata": {"labels": {SKIP: None}}})
    await rollout.ready(cluster, name)


# ── given up ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("deletion_policy", ["Retain", "Revert"])
async def test_a_node_that_cannot_be_brought_back_is_let_go_when_somebody_says_so(
    cluster: Cluster, deletion_policy: str
) -> None:
    scene = await stage(cluster, 1)
    (node,) = scene.nodes
    await rollout.operator(cluster, applying=1, verifying=1)
    await rollout.fault(cluster, node, "never-ready")
    name = await scene.want_halves(deletionPolicy=deletion_policy)
    await rollout.stalled(cluster, name, "RolloutHalted")
    async with Watcher(cluster) as history:
        await cluster.client.delete(POLICIES, name)
        policy = await rollout.stalled(cluster, name, "Terminating")
    assert f"kubectl annotate node {node} {ABANDON}=true" in rollout.condition(policy, "Stalled")["message"]
    assert history.phases(node) == ["RollingBack", "Failed"], "one more try, and that is all"
    await rollout.annotate(cluster, NODES, node, abandon="true")
    await cluster.gone(POLICIES, name, within=60)
    notes = (await cluster.client.get(NODES, node))["metadata"].get("annotations", {})
    assert not {ABANDON, STEP} & notes.keys(), "it was asked once"
    assert await rollout.records(cluster) == {}
    assert not await scene.closed_by(node)
    assert await scene.in_flight() == []


# ── slices of our own ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_the_operator_itself_publishes_is_there_again_after_a_reboot(cluster: Cluster) -> None:
    own = await publishing.site(cluster, publishing.gpus(2))
    await own.gets(rollout.equal(2))
    (node,) = own.nodes
    good = await own.says(node)
    async with Watcher(cluster) as history:
        await cluster.kubelet_stops(node)
        await own.wiped(node)
        await cluster.kubelet_starts(node, rebooted=True)
        await history.saw(NODE_STATES, node, phase="Verifying")
        await rollout.reaches(cluster, node, "UpToDate")
        await rollout.at_rest(cluster)
    assert history.phases(node) == ["Quiescing", "Verifying", "Releasing", "UpToDate"]
    await own.says_again(good)
