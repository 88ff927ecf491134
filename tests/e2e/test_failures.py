"""Nodes that fail: what the operator does about a driver that does not publish what it should, and what it says.

Each test breaks the simulated driver of one node by its fault switches (testbed/faults.py). `@partitions=2` breaks the new layout alone, so
that the former one can come back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from tests.e2e import rollout
from tests.e2e.harness import NODE_STATES, POLICIES, eventually
from tests.e2e.history import Watcher
from tests.e2e.rollout import condition
from tests.e2e.stage import HALVES, WHOLE, Stage, gone_from, stage

from gpupartition.kube import NODES, RESOURCE_SLICES

if TYPE_CHECKING:
    from tests.e2e.harness import Cluster


FAULTS: Final = {
    # switch                          the record's reason  what its message names
    "wrong-layout@partitions=2": ("VerifyingFailed", "1 of 24 devices are missing"),
    "wrong-layout=parts@partitions=2": ("VerifyingFailed", "should be gone, such as gpu-"),
    "never-ready@partitions=2": ("ApplyingFailed", "driver pod is not ready"),
    "crash-loop@partitions=2": ("ApplyingFailed", "is CrashLoopBackOff"),
    "publishes-nothing@partitions=2": (
        "VerifyingFailed",
        "gpu-0-full and 8 are there that should be gone",
    ),
    "loses-slices-after=1@partitions=2": ("VerifyingFailed", "24 of 24 devices are missing"),
}


@pytest.mark.parametrize(("switch", "reason", "missing"), [(k, *v) for k, v in FAULTS.items()], ids=list(FAULTS))
async def test_a_node_that_fails_goes_back_to_what_it_had_and_stops_the_roll_out_until_somebody_retries(
    cluster: Cluster, switch: str, reason: str, missing: str
) -> None:
    scene = await stage(cluster, 2)
    failing, other = scene.nodes
    await rollout.fault(cluster, failing, switch)
    pod = await scene.pod_uid(other)
    await rollout.operator(cluster, applying=3, verifying=3, min_ready=1.5)
    async with Watcher(cluster) as history:
        name = await scene.want_halves()
        policy = await rollout.stalled(cluster, name, "RolledBack")
        await rollout.at_rest(cluster)

    record = await cluster.client.get(NODE_STATES, failing)
    assert record["status"]["phase"] == "RolledBack"
    assert record["status"]["reason"] == reason
    assert missing in record["status"]["message"]
    (failed,) = policy["status"]["failedNodes"]
    assert (failed["node"], failed["reason"]) == (failing, reason)
    assert missing in failed["message"]
    assert failing in condition(policy, "Stalled")["message"]
    assert missing in condition(policy, "Stalled")["message"]
    assert condition(policy, "Ready")["status"] == "False"
    assert not condition(policy, "Reconciling")

    # The way back was walked before the node was opened: same assignment, same devices.
    layout, *rest = history.assignments(failing)[1:]
    assert (history.assignments(failing)[0], rest) == (None, [None])
    assert layout is not None
    await scene.publishes(WHOLE, failing)
    assert history.phases(failing)[-3:] == ["RollingBack", "Releasing", "RolledBack"]

    # Nobody else was touched.
    assert history.phases(other) == ["Pending"]
    assert history.assignments(other) == [None]
    assert await scene.pod_uid(other) == pod

    await rollout.fault(cluster, failing, None)
    await rollout.annotate(cluster, POLICIES, name, retry="mended")
    await rollout.ready(cluster, name)
    await scene.publishes(HALVES)
    await rollout.at_rest(cluster)


async def publishes_nothing(cluster: Cluster, node: str) -> bool:
    """Whether no slice of a node is left."""
    return not (await cluster.client.list(RESOURCE_SLICES, field_selector=f"spec.nodeName={node}")).items


async def test_without_a_retry_a_mended_node_is_left_alone(cluster: Cluster) -> None:
    scene = await stage(cluster, 1)
    (node,) = scene.nodes
    await rollout.fault(cluster, node, "wrong-layout@partitions=2")
    await rollout.operator(cluster, verifying=1)
    name = await scene.want_halves()
    await rollout.stalled(cluster, name, "RolledBack")
    await rollout.at_rest(cluster)
    async with Watcher(cluster, NODES, NODE_STATES) as history:
        await rollout.fault(cluster, node, None)
        # An edit that wants the same thing makes the operator look at everything again.
        await scene.want_halves(rollout={"limit": 1})
        await rollout.stalled(cluster, name, "RolledBack")
    assert history.assignments(node) == [None]
    assert not history.changes(NODE_STATES)


async def test_another_layout_is_tried_without_a_retry(cluster: Cluster) -> None:
    scene = await stage(cluster, 1)
    (node,) = scene.nodes
    await rollout.fault(cluster, node, "wrong-layout@partitions=2")
    await rollout.operator(cluster, verifying=1)
    name = await scene.want_halves()
    await rollout.stalled(cluster, name, "RolledBack")
    await rollout.apply(cluster, rollout.policy(name, scene.driver, rollout.equal(4)))
    policy = await rollout.ready(cluster, name)
    assert not policy["status"].get("failedNodes")
    assert (await rollout.phases(cluster))[node] == "UpToDate"


async def test_a_node_that_cannot_go_back_stays_closed_keeps_its_grant_and_is_named_until_it_is_mended(
    cluster: Cluster,
) -> None:
    scene = await stage(cluster, 2)
    failing, other = scene.nodes
    await rollout.operator(cluster, applying=1.5, verifying=1.5)
    await rollout.fault(cluster, failing, "never-ready@partitions=2,publishes-nothing@partitions=0,never-ready")
    async with Watcher(cluster) as history:
        name = await scene.want_halves()
        policy = await rollout.stalled(cluster, name, "RolloutHalted")
    record = await cluster.client.get(NODE_STATES, failing)
    assert record["status"]["phase"] == "Failed"
    assert record["status"]["reason"] == "RollingBackFailed"
    assert "driver pod is not ready" in record["status"]["message"]
    assert "8 of 8 devices are missing" in record["status"]["message"]
    assert await scene.closed_by(failing)
    assert await scene.in_flight() == [failing]
    assert policy["status"]["failedNodes"][0]["node"] == failing
    assert failing in condition(policy, "Stalled")["message"]
    assert history.phases(other) == ["Pending"]
    assert history.assignments(other) == [None]

    # Mended, it is open for claims with what it had, and what was wanted is tried again when somebody asks.
    await rollout.fault(cluster, failing, None)
    await rollout.reaches(cluster, failing, "RolledBack")
    policy = await rollout.stalled(cluster, name, "RolledBack")
    assert "publishes its former layout after all" in condition(policy, "Stalled")["message"]
    await rollout.at_rest(cluster)
    await scene.publishes(WHOLE)
    assert not await scene.closed_by(failing)
    assert await scene.in_flight() == []
    await rollout.annotate(cluster, POLICIES, name, retry="mended")
    await rollout.ready(cluster, name)
    await rollout.at_rest(cluster)
    await scene.publishes(HALVES)


async def test_retrying_a_node_that_is_not_mended_fails_once_more_and_does_not_go_round_in_circles(
    cluster: Cluster,
) -> None:
    scene, node = await failed(cluster)
    name = cluster.name
    async with Watcher(cluster) as history:
        await rollout.annotate(cluster, POLICIES, name, retry="too early")
        await history.saw(NODE_STATES, node, phase="RollingBack")
        await rollout.reaches(cluster, node, "Failed")
        await rollout.stalled(cluster, name, "RolloutHalted")
        await scene.want_halves(rollout={"maxUnavailable": 2})
        await rollout.stalled(cluster, name, "RolloutHalted")
    assert history.phases(node) == ["RollingBack", "Failed"]


async def test_a_commit_that_wants_what_a_failed_node_goes_back_to_tries_that_once_and_says_that_it_failed(
    cluster: Cluster,
) -> None:
    scene, node = await failed(cluster)
    name = cluster.name
    async with Watcher(cluster) as history:
        await rollout.apply(cluster, rollout.policy(name, scene.driver, rollout.whole()))
        await history.saw(NODE_STATES, node, phase="RollingBack")
        policy = await rollout.stalled(cluster, name, "RolloutHalted")
        assert policy["status"]["failedNodes"][0]["reason"] == "Stranded"
        await rollout.fault(cluster, node, None)
        await rollout.ready(cluster, name)
    phases = history.phases(node)
    assert phases == ["RollingBack", "Failed", "Releasing", "RolledBack", "UpToDate"]


async def test_slices_lost_later_are_drift_and_repaired_by_starting_the_plugin_anew(cluster: Cluster) -> None:
    scene = await stage(cluster, 2)
    drifting, other = scene.nodes
    await rollout.operator(cluster, drift=1)
    name = await scene.want_halves()
    await rollout.ready(cluster, name)
    await rollout.at_rest(cluster)
    before = {node: await scene.pod_uid(node) for node in scene.nodes}

    async with Watcher(cluster) as history:
        # Lost when the pod is 5 s old; the plugin that is started anew is well for as long.
        await rollout.fault(cluster, drifting, "loses-slices-after=5")
        policy = await rollout.said(cluster, name, "Ready", "False", "Drift")
        assert condition(policy, "Reconciling")["status"] == "True"
        assert drifting in condition(policy, "Ready")["message"]

        async def another_pod() -> bool:
            return await scene.pod_uid(drifting) != before[drifting]

        await eventually(another_pod)
        await rollout.fault(cluster, drifting, None)
        await rollout.ready(cluster, name)
    await scene.publishes(HALVES, drifting)
    await rollout.at_rest(cluster)
    assert [p for p in history.phases(drifting) if p in {"Pending", "Applying", "UpToDate"}] == [
        "Pending",
        "Applying",
        "UpToDate",
    ]
    assert len(set(history.assignments(drifting))) == 1
    assert not history.touched(NODE_STATES, other)
    assert await scene.pod_uid(other) == before[other]


async def test_a_difference_that_passes_is_no_drift(cluster: Cluster) -> None:
    scene = await stage(cluster, 1)
    (node,) = scene.nodes
    await rollout.operator(cluster, drift=30)
    name = await scene.want_halves()
    await rollout.ready(cluster, name)
    await rollout.at_rest(cluster)
    pod = await scene.pod_uid(node)
    async with Watcher(cluster) as history:
        await rollout.fault(cluster, node, "loses-slices-after=0.1")
        await eventually(lambda: publishes_nothing(cluster, node))
        await rollout.fault(cluster, node, None)
        await scene.publishes(HALVES, node)
        await rollout.ready(cluster, name)
    assert not history.touched(NODE_STATES, node)
    assert await scene.pod_uid(node) == pod


async def test_a_roll_out_is_not_complete_while_a_verified_node_publishes_nothing(cluster: Cluster) -> None:
    scene = await stage(cluster, 2)
    losing, slow = scene.nodes
    await rollout.fault(cluster, losing, "loses-slices-after=2@partitions=2")
    await rollout.fault(cluster, slow, "slow-start=4@partitions=2")
    await rollout.operator(cluster, drift=60)
    name = await scene.want_halves()
    await rollout.reaches(cluster, losing, "UpToDate")
    await eventually(lambda: publishes_nothing(cluster, losing))
    await rollout.reaches(cluster, slow, "UpToDate")

    async def says_so() -> bool:
        ready = condition(await cluster.client.get(POLICIES, name), "Ready")
        return (ready["status"], losing in ready["message"]) == ("False", True)

    await eventually(says_so)
    await rollout.fault(cluster, losing, None)
    await rollout.ready(cluster, name)
    await scene.publishes(HALVES)


async def failed(cluster: Cluster, *, retained: bool = True) -> tuple[Stage, str]:
    """A node whose driver runs neither in halves nor in one piece, so that it has failed; returns it as the only one of its stage."""
    scene = await stage(cluster, 1)
    (node,) = scene.nodes
    await rollout.operator(cluster, applying=1, verifying=1)
    await rollout.fault(cluster, node, "never-ready@partitions=2,never-ready@partitions=0")
    name = await scene.want_halves(deletionPolicy="Retain" if retained else "Revert")
    await rollout.stalled(cluster, name, "RolloutHalted")
    assert (await rollout.phases(cluster))[node] == "Failed"
    return scene, node


async def test_a_failed_node_is_taken_to_another_layout_that_works_without_being_opened_before(
    cluster: Cluster,
) -> None:
    scene, node = await failed(cluster)
    async with Watcher(cluster) as history:
        await rollout.apply(cluster, rollout.policy(cluster.name, scene.driver, rollout.equal(4)))
        await rollout.ready(cluster, cluster.name)
    phases = [phase for phase in history.phases(node) if phase != "Failed"]
    assert phases == ["Draining", "Applying", "Verifying", "Releasing", "UpToDate"]
    for now in history.instants():
        if now.phases()[node] != "UpToDate" and now.phases()[node] != "Releasing":
            assert now.quiesced() == {node}
    await rollout.at_rest(cluster)


@pytest.mark.parametrize("retained", [True, False], ids=["Retain", "Revert"])
async def test_a_policy_with_a_failed_node_goes_only_after_the_node_is_back_on_what_it_had(
    cluster: Cluster, retained: bool
) -> None:
    scene, node = await failed(cluster, retained=retained)
    async with Watcher(cluster) as history:
        await cluster.client.delete(POLICIES, cluster.name)
        await history.saw(NODE_STATES, node, phase="RollingBack")
        await rollout.reaches(cluster, node, "Failed")
        policy = await cluster.client.get(POLICIES, cluster.name)
        assert condition(policy, "Ready")["reason"] == "Terminating"
        assert await scene.closed_by(node)
        await rollout.fault(cluster, node, None)
        await cluster.gone(POLICIES, cluster.name)
    await gone_from(scene, node)
    assert await scene.layout(node) is None
    await scene.publishes(WHOLE)
