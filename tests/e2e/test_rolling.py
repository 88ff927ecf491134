"""Roll-outs over several nodes: how many at once, who is left alone, who is waited for, and what a change of mind comes to."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from tests.e2e.harness import NODE_STATES, POLICIES, eventually
from tests.e2e.history import Watcher
from tests.e2e.rollout import (
    Site,
    apply,
    at_rest,
    condition,
    devices,
    driver_pod,
    equal,
    fault,
    looks_again,
    operator,
    phases,
    policy,
    reaches,
    ready,
    records,
    said,
    site,
    whole,
)
from tests.e2e.stage import ONCE

from gpupartition.kube import EVENTS, NODES, PODS, RESOURCE_CLAIMS
from gpupartition.names import LAYOUT

if TYPE_CHECKING:
    from tests.e2e.harness import Cluster

    from gpupartition.kube import Kind, Object


async def published(cluster: Cluster, where: Site, parts: int) -> None:
    for node in where.nodes:
        await cluster.published(devices(parts), node=node, driver=where.base.driver)


async def hold(cluster: Cluster, where: Site, name: str, node: str) -> Object:
    """Have a pod use one device of a node; returns the pod."""
    await cluster.holder(name, namespace=where.user, node=node, device_class=where.base.driver)
    return await cluster.running(name, namespace=where.user)


async def claim_of(cluster: Cluster, where: Site, pod: str) -> Object:
    """The claim that was made for a pod."""
    body = await cluster.client.get(PODS, pod, namespace=where.user)
    (made,) = body["status"]["resourceClaimStatuses"]
    return await cluster.client.get(RESOURCE_CLAIMS, made["resourceClaimName"], namespace=where.user)


async def release(cluster: Cluster, where: Site, name: str) -> None:
    await cluster.client.delete(PODS, name, namespace=where.user)


def freed_at(history: Watcher, claim: Object) -> int:
    """The version at which a claim was first without allocation, or gone."""
    return next(
        each.version
        for each in history.changes(RESOURCE_CLAIMS, claim["metadata"]["name"])
        if each.what == "DELETED" or "allocation" not in each.body["status"]
    )


def first_touch(history: Watcher, kind: Kind, *names: str) -> int:
    return history.touched(kind, *names)[0].version


async def test_four_nodes_get_halves_and_then_quarters_one_after_another(cluster: Cluster) -> None:
    where = await site(cluster, 4)
    await operator(cluster)
    async with Watcher(cluster) as history:
        await apply(cluster, policy("inference", where.driver, equal(2)))
        await ready(cluster, "inference")
        await published(cluster, where, 2)
        await apply(cluster, policy("inference", where.driver, equal(4)))
        body = await ready(cluster, "inference")
        await published(cluster, where, 4)
        await at_rest(cluster)
    assert history.most_unavailable() == 1
    for node in where.nodes:
        assert [phase for phase in history.phases(node) if phase != "Pending"] == ONCE + ONCE
    assert body["status"]["progress"] == "4/4"
    assert body["status"]["nodes"]["upToDate"] == 4


@pytest.mark.parametrize("allowed", [2, "50%"])
async def test_as_many_nodes_as_allowed_change_at_once_and_never_more(cluster: Cluster, allowed: int | str) -> None:
    where = await site(cluster, 4)
    await operator(cluster)
    async with Watcher(cluster) as history:
        await apply(cluster, policy("two", where.driver, equal(2), rollout={"maxUnavailable": allowed}))
        await ready(cluster, "two")
    assert history.most_unavailable() == 2


async def test_a_driver_caps_what_all_its_policies_change_at_once(cluster: Cluster) -> None:
    where = await site(cluster, 4, max_unavailable=1)
    lanes = {"left": where.nodes[:2], "right": where.nodes[2:]}
    for lane, nodes in lanes.items():
        for node in nodes:
            await cluster.client.patch(NODES, node, {"metadata": {"labels": {"lane": lane}}})
    await operator(cluster)
    async with Watcher(cluster) as history:
        for lane in lanes:
            rollout = {"maxUnavailable": 2}
            await apply(cluster, policy(lane, where.driver, equal(2), selector={"lane": lane}, rollout=rollout))
        for lane in lanes:
            await ready(cluster, lane)
    assert history.most_unavailable() == 1
    waited = [condition(each.body, "Ready") for each in history.changes(POLICIES)]
    assert [each for each in waited if each.get("reason") == "BudgetExhausted"]


async def test_a_roll_out_goes_as_far_as_its_limit_and_each_raise_takes_it_on(cluster: Cluster) -> None:
    where = await site(cluster, 4)
    await operator(cluster)
    async with Watcher(cluster) as history:
        for limit, reason, done in ((1, "LimitReached", 1), ("50%", "LimitReached", 2), ("100%", "RolloutComplete", 4)):
            await apply(cluster, policy("staged", where.driver, equal(2), rollout={"limit": limit}))
            body = await ready(cluster, "staged", reason)
            await at_rest(cluster)
            assert body["status"]["nodes"]["upToDate"] == done
            assert sorted((await phases(cluster)).values()) == ["Pending"] * (4 - done) + ["UpToDate"] * done
    assert all(len(history.assignments(node)) == 2 for node in where.nodes)


async def test_a_node_that_is_not_ready_counts_as_one_of_those_that_may_be_unavailable(cluster: Cluster) -> None:
    where = await site(cluster, 2)
    down, up = where.nodes
    await cluster.kubelet_stops(down)
    program = await operator(cluster, resync=0.3)
    await apply(cluster, policy("one-down", where.driver, equal(2)))
    await said(cluster, "one-down", "Ready", "False", "BudgetExhausted")
    await looks_again(program, times=10)
    assert await phases(cluster) == {down: "Pending", up: "Pending"}
    body = await cluster.client.get(POLICIES, "one-down")
    assert down in condition(body, "Ready")["message"], "who uses up the budget"
    assert body["status"]["nodes"]["unavailable"] == 1
    await cluster.kubelet_starts(down)
    await ready(cluster, "one-down")


# ── holders ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_node_in_use_is_left_alone_until_it_falls_idle_and_the_others_go_on(cluster: Cluster) -> None:
    where = await site(cluster, 3)
    (elsewhere,) = await cluster.nodes(1, pool=where.base.pool, labels={"lane": "other"})
    held, *idle = where.nodes
    for node in where.nodes:
        await cluster.client.patch(NODES, node, {"metadata": {"labels": {"lane": "mine"}}})
    kept = [await hold(cluster, where, "training", held), await hold(cluster, where, "neighbour", elsewhere)]
    claim = await claim_of(cluster, where, "training")
    plugin = await driver_pod(cluster, where.base, held)
    await operator(cluster)
    async with Watcher(cluster) as history:
        await apply(cluster, policy("when-idle", where.driver, equal(2), selector={"lane": "mine"}))
        body = await said(cluster, "when-idle", "Ready", "False", "WaitingForHolders")
        await eventually(lambda: others_are_done(cluster, idle))
        await eventually(lambda: blocked_by(cluster, "when-idle", held, claim, f"{where.user}/training"))
        kept.append(await hold(cluster, where, "newcomer", idle[0]))
        await history.caught_up()
        assert history.phases(held) == ["Pending"]
        assert history.assignments(held) == [None]
        assert {held, elsewhere}.isdisjoint(set().union(*(now.quiesced() for now in history.instants())))
        assert not history.touched(PODS, plugin["metadata"]["name"], "training", "neighbour")
        assert condition(body, "Reconciling")["status"] == "True"
        await told(cluster, where, "training", held)
        await release(cluster, where, "training")
        await ready(cluster, "when-idle")
        await cluster.published(devices(2), node=held, driver=where.base.driver)
    freed = freed_at(history, claim)
    assert first_touch(history, PODS, plugin["metadata"]["name"]) > freed
    assert min(each.version for each in history.changes(NODE_STATES, held) if phase_of(each.body) == "Admitted") > freed
    for pod in kept[1:]:
        await untouched(cluster, history, pod)


async def test_a_node_that_is_waited_for_is_closed_first_and_changed_when_its_holder_has_ended(
    cluster: Cluster,
) -> None:
    where = await site(cluster, 2)
    held = where.nodes[0]
    pod = await hold(cluster, where, "training", held)
    claim = await claim_of(cluster, where, "training")
    plugin = await driver_pod(cluster, where.base, held)
    await operator(cluster, settle=1)
    async with Watcher(cluster) as history:
        rollout = {"drain": {"mode": "Wait"}, "maxUnavailable": 2}
        await apply(cluster, policy("wait", where.driver, equal(2), rollout=rollout))
        await reaches(cluster, held, "Draining")
        await reaches(cluster, where.nodes[1], "UpToDate")
        await said(cluster, "wait", "Ready", "False", "WaitingForHolders")
        await eventually(lambda: blocked_by(cluster, "wait", held, claim, f"{where.user}/training"))
        await cluster.holder("late", namespace=where.user, node=held, device_class=where.base.driver)
        await eventually(lambda: unschedulable(cluster, where, "late"))
        await history.caught_up()
        assert history.phases(held)[-1] == "Draining"
        assert history.assignments(held) == [None]
        assert not history.touched(PODS, plugin["metadata"]["name"])
        assert not [each for each in history.changes(PODS, "training") if each.body["metadata"] != pod["metadata"]]
        await told(cluster, where, "training", held)
        await release(cluster, where, "training")
        await ready(cluster, "wait")
        await cluster.running("late", namespace=where.user)
    freed = freed_at(history, claim)
    assert first_touch(history, PODS, plugin["metadata"]["name"]) > freed
    labelled = [each for each in history.changes(NODES, held) if LAYOUT in each.body["metadata"]["labels"]]
    assert labelled[0].version > freed


# ── a change of mind ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("phase", ["Draining", "Applying", "Verifying"])
async def test_a_superseded_layout_is_never_released(cluster: Cluster, phase: str) -> None:
    where = await site(cluster, 2)
    first, second = where.nodes
    wait = {"drain": {"mode": "Wait"}}
    await operator(cluster, min_ready=3 if phase == "Verifying" else 0.3)
    if phase == "Draining":
        await hold(cluster, where, "training", first)
    if phase == "Applying":
        await fault(cluster, first, "slow-start=3@partitions=2")
    async with Watcher(cluster) as history:
        await apply(cluster, policy("mind", where.driver, equal(2), rollout=wait))
        halves = (await reaches(cluster, first, phase))["status"]["target"]["fingerprint"]
        edited = await apply(cluster, policy("mind", where.driver, equal(4), rollout=wait))
        await eventually(lambda: aims_elsewhere(cluster, first, halves))
        if phase == "Draining":
            await release(cluster, where, "training")
        await ready(cluster, "mind")
        await published(cluster, where, 4)
        await at_rest(cluster)
    for node in where.nodes:
        assert halves not in history.targets(node, "Releasing", after=int(edited["metadata"]["resourceVersion"]))
        assert "RollingBack" not in history.phases(node)
    assert history.phases(first)[-2:] == ["Releasing", "UpToDate"]
    assert (halves in history.assignments(first)) == (phase != "Draining")
    quiesced = [first in now.quiesced() for now in history.instants()]
    turned = [now for former, now in pairwise(quiesced) if former != now]
    assert turned == [True, False], "closed once, opened once"
    if phase != "Draining":  # idle nodes come first: by then the second one had its halves
        assert halves not in history.assignments(second)


async def test_a_change_of_mind_back_to_what_the_nodes_have_leaves_them_as_they_were(cluster: Cluster) -> None:
    where = await site(cluster, 1)
    (node,) = where.nodes
    await hold(cluster, where, "training", node)
    plugin = await driver_pod(cluster, where.base, node)
    wait = {"drain": {"mode": "Wait"}}
    await operator(cluster)
    async with Watcher(cluster) as history:
        await apply(cluster, policy("back", where.driver, equal(2), rollout=wait))
        await reaches(cluster, node, "Draining")
        await apply(cluster, policy("back", where.driver, whole(), rollout=wait))
        await ready(cluster, "back")
        await at_rest(cluster)
        await cluster.holder("next", namespace=where.user, node=node, device_class=where.base.driver)
        await cluster.running("next", namespace=where.user)
    assert "Applying" not in history.phases(node)
    assert history.assignments(node) == [None]
    assert history.touched(PODS, plugin["metadata"]["name"], "training") == []


# ── what is waited for ────────────────────────────────────────────────────────────────────────────────────────────────


def phase_of(record: Object) -> str:
    return str(record.get("status", {}).get("phase", ""))


async def others_are_done(cluster: Cluster, nodes: list[str]) -> bool:
    now = await phases(cluster)
    assert {now[node] for node in nodes} == {"UpToDate"}, now
    return True


async def aims_elsewhere(cluster: Cluster, node: str, fingerprint: str) -> bool:
    status: dict[str, Any] = (await records(cluster))[node]["status"]
    return bool(status["target"]["fingerprint"] != fingerprint)


async def blocked_by(cluster: Cluster, name: str, node: str, claim: Object, pod: str) -> bool:
    """Whether the policy's status names node, claim, pod and device."""
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    status = (await cluster.client.get(POLICIES, name))["status"]
    (blocker,) = status.get("blockedBy", [])
    assert blocker.pop("since")
    assert blocker == {
        "node": node,
        "claim": f"{claim['metadata']['namespace']}/{claim['metadata']['name']}",
        "pod": pod,
        "device": result["device"],
        "reason": "Allocated",
        "pdb": "",
    }
    assert status["nodes"]["blocked"] == 1, status
    return True


async def unschedulable(cluster: Cluster, where: Site, name: str) -> bool:
    pod = await cluster.client.get(PODS, name, namespace=where.user)
    return condition(pod, "PodScheduled").get("reason") == "Unschedulable"


async def told(cluster: Cluster, where: Site, pod: str, node: str) -> None:
    """Wait until the pod's namespace has the one event that says that its GPU is wanted."""

    async def look() -> bool:
        about = f"involvedObject.name={pod},reason=GpuWanted"
        (event,) = (await cluster.client.list(EVENTS, namespace=where.user, field_selector=about)).items
        return node in event["message"]

    await eventually(look)
    assert "GpuWanted" in await cluster.kubectl("describe", "pod", pod, "--namespace", where.user)


async def untouched(cluster: Cluster, history: Watcher, pod: Object) -> None:
    """Check that a pod is the same one still, and that its claim was never without its device."""
    meta = pod["metadata"]
    now = await cluster.client.get(PODS, meta["name"], namespace=meta["namespace"])
    assert now["metadata"]["uid"] == meta["uid"]
    assert now["status"]["phase"] == "Running"
    (made,) = now["status"]["resourceClaimStatuses"]
    claim = await cluster.client.get(RESOURCE_CLAIMS, made["resourceClaimName"], namespace=meta["namespace"])
    allocations = [
        each.body["status"].get("allocation") for each in history.changes(RESOURCE_CLAIMS, made["resourceClaimName"])
    ]
    held = [each for each in allocations if each is not None]
    assert held == [claim["status"]["allocation"]] * len(held)
    assert None not in allocations[len(allocations) - len(held) :]
