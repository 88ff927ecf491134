"""Comings and goings: nodes, holders and policies that appear, leave and change their mind at any moment of a roll-out."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Final

import pytest
from testbed import nodes as simulated
from tests.e2e import rollout
from tests.e2e.harness import DRIVERS, NODE_STATES, POLICIES, eventually, follow
from tests.e2e.history import Watcher
from tests.e2e.rollout import condition
from tests.e2e.stage import (
    HALVES,
    IN_FLIGHT,
    WAIT,
    WHOLE,
    Stage,
    gone_from,
    halted_in,
    is_blocked,
    stage,
    step_is_written,
    writes,
)

from gpupartition.kube import DAEMON_SETS, NODES, PODS, RESOURCE_CLAIMS, Invalid, NotFound

if TYPE_CHECKING:
    from tests.e2e.harness import Cluster

    from gpupartition.kube import Object

TEAM: Final = {"team": "a"}  # what the policies of some tests select, so that a node can leave them


async def delete_node(cluster: Cluster, node: str) -> None:
    """Delete a node, with the pods that its kubelet ran."""
    await cluster.client.delete(NODES, node)
    for pod in (await cluster.client.list(PODS, field_selector=f"spec.nodeName={node}")).items:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        try:
            await cluster.client.kill(PODS, name, namespace=namespace)
        except NotFound:
            continue


# ── nodes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_node_that_joins_is_taken_on_and_rolled(cluster: Cluster) -> None:
    scene = await stage(cluster, 1)
    await rollout.operator(cluster)
    name = await scene.want_halves()
    await rollout.ready(cluster, name)
    (newcomer,) = await cluster.nodes(1, pool=scene.base.pool)
    await rollout.reaches(cluster, newcomer, "UpToDate")
    policy = await rollout.ready(cluster, name)
    assert policy["status"]["progress"] == "2/2"
    await scene.publishes(HALVES, newcomer)
    await rollout.at_rest(cluster)


@pytest.mark.parametrize("phase", ["Pending", "Draining", "Applying", "UpToDate"])
async def test_a_node_that_is_deleted_leaves_nothing_behind_and_holds_nobody_up(cluster: Cluster, phase: str) -> None:
    scene = await stage(cluster, 2)
    leaving, other = scene.nodes
    await rollout.operator(cluster)
    await halted_in(scene, leaving, phase)
    await delete_node(cluster, leaving)
    await gone_from(scene, leaving)
    policy = await rollout.ready(cluster, cluster.name)
    assert policy["status"]["progress"] == "1/1"
    await scene.publishes(HALVES, other)
    await rollout.at_rest(cluster)


@pytest.mark.parametrize("phase", ["Draining", "Applying", "UpToDate"])
async def test_a_node_that_comes_back_under_its_name_is_another_node(cluster: Cluster, phase: str) -> None:
    scene = await stage(cluster, 1)
    (node,) = scene.nodes
    await rollout.operator(cluster)
    await halted_in(scene, node, phase)
    first = (await cluster.client.get(NODES, node))["metadata"]["uid"]
    await rollout.fault(cluster, node, None)
    await delete_node(cluster, node)
    body = simulated.node(node, zone=simulated.ZONES[0], labels={**cluster.labels, "pool": scene.base.pool})
    second = (await cluster.client.create(NODES, body))["metadata"]["uid"]
    assert first != second

    async def anew() -> Object:
        record = await cluster.client.get(NODE_STATES, node)
        assert record["spec"]["nodeUID"] == second
        assert record["status"]["phase"] == "UpToDate"
        return record

    record = await eventually(anew, within=60)
    assert record["status"]["original"].get("assignment") is None
    await rollout.ready(cluster, cluster.name)
    await scene.publishes(HALVES)
    await rollout.at_rest(cluster)


@pytest.mark.parametrize("deletion_policy", ["Retain", "Revert"])
@pytest.mark.parametrize("phase", ["Pending", "Draining", "Applying", "UpToDate"])
async def test_a_node_that_leaves_the_selector_keeps_what_it_has_or_gets_back_what_it_had(
    cluster: Cluster, phase: str, deletion_policy: str
) -> None:
    scene = await stage(cluster, 2, labels=TEAM)
    leaving, other = scene.nodes
    await rollout.operator(cluster)
    async with Watcher(cluster) as history:
        holder = await halted_in(scene, leaving, phase, selector=TEAM, deletionPolicy=deletion_policy)
        await rollout.reaches(cluster, other, "UpToDate") if phase == "UpToDate" else None
        await cluster.client.patch(NODES, leaving, {"metadata": {"labels": {"team": None}}})
        await gone_from(scene, leaving)
        policy = await rollout.ready(cluster, cluster.name)
    assert policy["status"]["progress"] == "1/1"
    changed = phase in {"Applying", "UpToDate"}
    assert len(history.assignments(leaving)) == 1 + changed + (changed and deletion_policy == "Revert")
    stays = changed and deletion_policy == "Retain"
    await scene.publishes(HALVES if stays else WHOLE, leaving)
    assert (await scene.layout(leaving) is not None) == stays
    assert history.most_unavailable() == 1
    if holder:
        assert len(holder.layouts(history)) == 1
    await rollout.at_rest(cluster)


async def test_a_record_that_somebody_spoils_holds_up_its_node_alone_until_it_is_mended(cluster: Cluster) -> None:
    """Beside a claim that is nested as deep as an API server takes it, which anybody may create who may create claims."""
    scene = await stage(cluster, 2, labels=TEAM)
    spoilt, other = scene.nodes
    program = await rollout.operator(cluster, resync=0.3)
    holder = await scene.hold(spoilt)
    name = await scene.want_halves(selector=TEAM, rollout={**WAIT, "maxUnavailable": 2})
    record = await rollout.reaches(cluster, spoilt, "Draining")
    closed = await eventually(lambda: scene.closed_by(spoilt))

    with pytest.raises(Invalid, match=r"status\.since"):
        await cluster.client.patch(NODE_STATES, spoilt, {"status": {"since": "0000-01-01T00:00:00Z"}})
    await create_deep_claim(cluster, scene.base.namespace)
    await cluster.client.patch(NODE_STATES, spoilt, {"status": {"target": {"pool": "half of a pool"}}})
    policy = await rollout.stalled(cluster, name, "RecordUnreadable")
    assert f"node {spoilt}: its record cannot be read" in condition(policy, "Ready")["message"]
    await holder.end()
    (newcomer,) = await cluster.nodes(1, pool=scene.base.pool, labels=TEAM)
    for node in (other, newcomer):
        await rollout.reaches(cluster, node, "UpToDate", within=60)
    await rollout.looks_again(program)
    assert await scene.closed_by(spoilt) == closed
    assert (await scene.layout(spoilt), spoilt in await scene.in_flight()) == (None, True)

    pool = record["status"]["target"]["pool"]
    await cluster.client.patch(NODE_STATES, spoilt, {"status": {"target": {"pool": pool}}})
    await rollout.ready(cluster, name)
    await scene.publishes(HALVES, spoilt, other, newcomer)
    await rollout.at_rest(cluster)


@pytest.mark.parametrize("phase", ["UpToDate", "Draining", "Applying"])
async def test_a_record_that_nobody_can_correct_is_made_anew(cluster: Cluster, phase: str) -> None:
    scene = await stage(cluster, 1)
    (node,) = scene.nodes
    await rollout.operator(cluster)
    holder = await halted_in(scene, node, phase)
    if phase == "UpToDate":
        await rollout.at_rest(cluster)
    spoilt = await cluster.client.get(NODE_STATES, node)
    async with Watcher(cluster) as history:
        await cluster.client.patch(NODE_STATES, node, {"status": {"target": {"pool": "zlib:cut off"}}})
        policy = await rollout.stalled(cluster, cluster.name, "RecordUnreadable")
        told = condition(policy, "Ready")["message"]
        assert (f"kubectl delete gpupartitionnodestate {node}" in told) == (phase == "UpToDate"), told
        if phase != "UpToDate":
            away = {"key": "mending", "effect": "NoSchedule"}
            await cluster.client.patch(NODES, node, {"spec": {"taints": [away]}})
            await cluster.client.patch(NODE_STATES, node, {"metadata": {"finalizers": None}})
        await cluster.client.delete(NODE_STATES, node)
        await holder.end() if holder else None
        await rollout.reaches(cluster, node, "UpToDate", within=60)
        await rollout.ready(cluster, cluster.name)
        await rollout.at_rest(cluster)
    assert (await cluster.client.get(NODE_STATES, node))["metadata"]["uid"] != spoilt["metadata"]["uid"]
    await scene.publishes(HALVES)
    if phase == "UpToDate":
        assert len(history.assignments(node)) == 1, "nothing is done to the node for it"
    if holder:
        assert len(holder.layouts(history)) == 1


async def create_deep_claim(cluster: Cluster, namespace: str) -> None:
    """Have a claim with parameters of 4,900 levels, as no client in Python would send one."""
    opaque = {"driver": "gpu.example.com", "parameters": {"deep": None}}
    request = {"name": "gpu", "exactly": {"deviceClassName": "nobodys"}}
    body = {
        "apiVersion": RESOURCE_CLAIMS.api_version,
        "kind": "ResourceClaim",
        "metadata": {"name": "deep", "namespace": namespace},
        "spec": {"devices": {"requests": [request], "config": [{"opaque": opaque}]}},
    }
    text = json.dumps(body).replace("null", "[" * 4900 + "]" * 4900)
    await cluster.controlplane.kubectl("create", "--validate=false", "-f", "-", stdin=text)


# ── policies ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def variants(scene: Stage) -> list[str]:
    """The DaemonSets of layouts."""
    sets = (await scene.cluster.client.list(DAEMON_SETS, namespace=scene.base.namespace)).items
    return sorted(each["metadata"]["name"] for each in sets if each["metadata"]["name"] != scene.base.daemon_set)


async def test_a_deleted_policy_lets_its_nodes_keep_their_layout_and_nothing_else(cluster: Cluster) -> None:
    scene = await stage(cluster, 2)
    await rollout.operator(cluster)
    name = await scene.want_halves()
    await rollout.ready(cluster, name)
    pods = [await scene.pod_uid(node) for node in scene.nodes]
    before = await variants(scene)
    await cluster.client.delete(POLICIES, name)
    await cluster.gone(POLICIES, name)
    await gone_from(scene, *scene.nodes)
    await scene.publishes(HALVES)
    assert [await scene.pod_uid(node) for node in scene.nodes] == pods
    assert all([await scene.layout(node) for node in scene.nodes])
    assert await variants(scene) == before

    # Whoever wants the same layout later finds it there.
    written = len(writes(cluster, "nodes"))
    await rollout.apply(cluster, rollout.policy("successor", scene.driver, rollout.equal(2)))
    await rollout.ready(cluster, "successor")
    assert len(writes(cluster, "nodes")) == written


@pytest.mark.parametrize("phase", ["Draining", "Applying"])
async def test_a_policy_deleted_under_a_node_in_flight_goes_when_the_node_is_at_rest(
    cluster: Cluster, phase: str
) -> None:
    scene = await stage(cluster, 2)
    moving, other = scene.nodes
    await rollout.operator(cluster)
    async with Watcher(cluster) as history:
        await halted_in(scene, moving, phase)
        await cluster.client.delete(POLICIES, cluster.name)
        await cluster.gone(POLICIES, cluster.name)
        await gone_from(scene, moving, other)
        await rollout.at_rest(cluster)
    # It went last: at no instant was a node in flight without a policy.
    for now in history.instants():
        if not now.objects(POLICIES):
            assert not {n for n, p in now.phases().items() if p in IN_FLIGHT}
    assert (await scene.layout(moving) is not None) == (phase == "Applying")
    await scene.publishes(HALVES if phase == "Applying" else WHOLE, moving)
    if phase == "Applying":  # a node without holders goes first, so the other one had its turn before Draining
        assert history.assignments(other) == [None]


@pytest.mark.parametrize("when", ["complete", "decided-later", "half-way"])
async def test_a_deleted_policy_that_reverts_brings_every_node_back_one_at_a_time(cluster: Cluster, when: str) -> None:
    scene = await stage(cluster, 3)
    await rollout.operator(cluster)
    async with Watcher(cluster) as history:
        if when == "complete":
            await scene.want_halves(deletionPolicy="Revert")
            await rollout.ready(cluster, cluster.name)
        elif when == "decided-later":  # when nothing is left to do that would make the policy wait for us
            await scene.want_halves()
            await rollout.ready(cluster, cluster.name)
            await rollout.at_rest(cluster)
            await scene.want_halves(deletionPolicy="Revert")
            await rollout.ready(cluster, cluster.name)
        else:
            await rollout.fault(cluster, scene.nodes[2], "slow-start=3@partitions=2")
            await scene.want_halves(deletionPolicy="Revert")
            await history.saw(NODE_STATES, scene.nodes[0], phase="UpToDate")
            await history.saw(NODE_STATES, scene.nodes[2], phase="Applying")
        await cluster.client.delete(POLICIES, cluster.name)
        await cluster.gone(POLICIES, cluster.name, within=60)
        await gone_from(scene, *scene.nodes)
        await scene.publishes(WHOLE)
    assert [await scene.layout(node) for node in scene.nodes] == [None] * 3
    assert history.most_unavailable() == 1
    for node in scene.nodes:
        assert history.assignments(node)[0] is None
        assert history.assignments(node)[-1] is None
        assert len(history.assignments(node)) in ({1, 3} if when == "half-way" else {3})


async def test_a_driver_stays_until_no_policy_and_no_node_needs_it_any_more(cluster: Cluster) -> None:
    scene = await stage(cluster, 1)
    (node,) = scene.nodes
    await rollout.operator(cluster)
    await halted_in(scene, node, "Applying")
    await cluster.client.delete(DRIVERS, scene.driver)
    await rollout.reaches(cluster, node, "UpToDate")
    await rollout.ready(cluster, cluster.name)
    ready = rollout.condition(await cluster.client.get(DRIVERS, scene.driver), "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "Terminating")
    assert ready["message"].endswith(f"policy {cluster.name}")
    await cluster.client.delete(POLICIES, cluster.name)
    await cluster.gone(POLICIES, cluster.name)
    await cluster.gone(DRIVERS, scene.driver)
    await gone_from(scene, node)
    await scene.publishes(HALVES)


async def test_a_paused_policy_finishes_the_node_in_flight_and_begins_no_other(cluster: Cluster) -> None:
    scene = await stage(cluster, 2)
    moving, other = scene.nodes
    await rollout.operator(cluster)
    async with Watcher(cluster) as history:
        await halted_in(scene, moving, "Applying")
        await scene.want_halves(rollout={"paused": True})
        await rollout.reaches(cluster, moving, "UpToDate")
        await rollout.said(cluster, cluster.name, "Ready", "False", "Paused")
        await rollout.at_rest(cluster)
    assert history.phases(other) == ["Pending"]
    assert history.assignments(other) == [None]
    await scene.want_halves()
    await rollout.ready(cluster, cluster.name)
    await scene.publishes(HALVES)


async def test_a_freeze_stops_everything_that_has_not_begun_and_says_why(cluster: Cluster) -> None:
    scene = await stage(cluster, 2)
    moving, other = scene.nodes
    await rollout.operator(cluster)
    async with Watcher(cluster) as history:
        await halted_in(scene, moving, "Applying")
        await rollout.freeze(cluster, "the year-end closing runs")
        await rollout.reaches(cluster, moving, "UpToDate")
        policy = await rollout.said(cluster, cluster.name, "Ready", "False", "Frozen")
        await rollout.at_rest(cluster)
    assert "the year-end closing runs" in condition(policy, "Ready")["message"]
    assert history.phases(other) == ["Pending"]
    assert history.assignments(other) == [None]
    await rollout.unfreeze(cluster)
    await rollout.ready(cluster, cluster.name)
    await scene.publishes(HALVES)


async def test_a_policy_that_observes_says_what_would_change_and_touches_nothing(cluster: Cluster) -> None:
    scene = await stage(cluster, 2)
    await rollout.operator(cluster)
    async with Watcher(cluster) as history:
        name = await scene.want_halves(mode="Observe")
        policy = await rollout.ready(cluster, name, "Observing")
    assert policy["status"]["nodes"]["wouldChange"] == 2
    told = {each["objectRef"]["resource"] for each in writes(cluster)}
    assert told <= {"gpupartitionpolicies", "gpupartitiondrivers", "events", "leases"}
    for node in scene.nodes:
        assert history.assignments(node) == [None]
    assert not await rollout.records(cluster)

    await scene.want_halves()
    await rollout.ready(cluster, name)
    await scene.want_halves(mode="Observe")
    policy = await rollout.ready(cluster, name, "Observing")
    assert policy["status"]["nodes"].get("wouldChange", 0) == 0


async def test_what_was_begun_is_brought_to_rest_before_a_policy_that_observes_by_now_is_called_ready(
    cluster: Cluster,
) -> None:
    scene = await stage(cluster, 2)
    held, _ = scene.nodes
    holder = await scene.hold(held)
    operator = await rollout.operator(cluster, resync=60)
    name = await scene.want_halves(rollout=WAIT)
    await rollout.reaches(cluster, held, "Draining")
    await scene.want_halves(rollout=WAIT, mode="Observe")
    policy = await rollout.said(cluster, name, "Ready", "False", "RollingOut")
    assert (
        condition(policy, "Ready")["message"]
        == f"only observes from now on; what was begun is brought to rest first: {held}"
    )
    before = await rollout.turns(operator)
    await rollout.reaches(cluster, held, "Draining")
    await holder.end()
    await rollout.ready(cluster, name, "Observing")
    assert await rollout.turns(operator) - before < 30, "it looks again when something changes, and not all the time"
    assert (await rollout.phases(cluster))[held] == "UpToDate"


# ── holders that come at the last moment ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.newest
async def test_a_holder_that_slips_in_while_an_idle_node_drains_keeps_its_device_and_the_node_is_opened_again(
    cluster: Cluster,
) -> None:
    scene = await stage(cluster, 1)
    (node,) = scene.nodes
    await rollout.operator(cluster, settle=1, idle_gap=3, draining_when_idle=5)
    async with Watcher(cluster) as history:
        name = await scene.want_halves()
        await rollout.reaches(cluster, node, "Draining")
        holder = await scene.hold(node, tolerating=True)
        policy = await rollout.said(cluster, name, "Ready", "False", "WaitingForHolders")
        await history.saw(NODE_STATES, node, phase="Aborting")
        await eventually(lambda: is_blocked(cluster, node))
        await rollout.at_rest(cluster)
        assert not await scene.closed_by(node)
        policy = await rollout.said(cluster, name, "Ready", "False", "WaitingForHolders")
    assert "Applying" not in history.phases(node)
    assert history.assignments(node) == [None]
    assert len(holder.layouts(history)) == 1
    (blocker,) = policy["status"]["blockedBy"]
    assert (blocker["node"], blocker["claim"]) == (node, f"{holder.namespace}/{holder.claim}")
    await holder.end()
    await rollout.ready(cluster, name)
    await scene.publishes(HALVES)


@pytest.mark.newest
async def test_a_claim_allocated_at_the_very_last_moment_sends_the_node_back_to_draining(cluster: Cluster) -> None:
    scene = await stage(cluster, 4)
    program = await rollout.operator(cluster, settle=1)
    version = (await cluster.client.list(NODE_STATES)).resource_version
    async with Watcher(cluster) as history:
        await scene.want_halves(rollout=WAIT)
        caught = ""
        async for _, body in follow(cluster.client, NODE_STATES, version):
            if body.get("status", {}).get("phase") != "Applying":
                continue
            os.kill(program.pid, signal.SIGSTOP)
            caught = body["metadata"]["name"]
            if not await step_is_written(cluster, caught, body["status"]["step"]):
                break
            os.kill(program.pid, signal.SIGCONT)  # too late for this one
        holder = await scene.hold(caught, tolerating=True)
        os.kill(program.pid, signal.SIGCONT)
        await rollout.reaches(cluster, caught, "Draining")
        assert history.assignments(caught) == [None]
        await holder.end()
        await rollout.ready(cluster, cluster.name)
    phases = history.phases(caught)
    assert phases[phases.index("Applying") :][:3] == ["Applying", "Draining", "Applying"]
    assert len(holder.layouts(history)) == 1
    await scene.publishes(HALVES)


@pytest.mark.newest
async def test_a_claim_that_slips_past_the_quiesce_while_the_driver_changes_gets_its_layout_back(
    cluster: Cluster,
) -> None:
    scene = await stage(cluster, 1)
    (node,) = scene.nodes
    await rollout.fault(cluster, node, "slow-start=15@partitions=2")
    await rollout.operator(cluster, settle=1)
    async with Watcher(cluster) as history:
        name = await scene.want_halves()
        record = await rollout.reaches(cluster, node, "Applying")
        await eventually(lambda: step_is_written(cluster, node, record["status"]["step"]))
        holder = await scene.hold(node, tolerating=True)
        policy = await rollout.stalled(cluster, name, "RolledBack")
        await rollout.at_rest(cluster)
    assert "slipped past the quiesce" in policy["status"]["failedNodes"][0]["message"]
    assert len(holder.layouts(history)) == 1
    assert await scene.layout(node) is None
    await scene.publishes(WHOLE)
    await rollout.fault(cluster, node, None)
    await holder.end()
    await rollout.annotate(cluster, POLICIES, name, retry="now")
    await rollout.ready(cluster, name)
    await scene.publishes(HALVES)


async def test_a_daemon_set_of_a_layout_that_somebody_deletes_is_put_back(cluster: Cluster) -> None:
    scene = await stage(cluster, 1)
    (node,) = scene.nodes
    await rollout.operator(cluster)
    await scene.want_halves()
    await rollout.ready(cluster, cluster.name)
    layout, before = await scene.layout(node), await scene.pod_uid(node)
    assert layout is not None
    name = f"{scene.base.daemon_set}-{layout}"
    await cluster.client.delete(DAEMON_SETS, name, namespace=scene.base.namespace)

    async def another_runs() -> bool:
        return await scene.pod_uid(node) != before

    await eventually(another_runs)
    await rollout.reaches(cluster, node, "UpToDate")
    await scene.publishes(HALVES)
    assert await scene.layout(node) == layout
