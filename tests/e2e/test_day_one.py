"""The first day of an operator in a cluster that works, and its quiet days: what is right already is not touched."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.e2e.by_hand import foreign, restart_by_hand, retemplate
from tests.e2e.harness import NODE_STATES, eventually
from tests.e2e.history import Watcher
from tests.e2e.rollout import (
    apply,
    at_rest,
    devices,
    driver,
    driver_pod,
    equal,
    fault,
    looks_again,
    operator,
    phases,
    policy,
    ready,
    site,
    stalled,
    turns,
    whole,
    writes,
)
from tests.e2e.stage import lose_what_is_ours

from gpupartition.kube import DAEMON_SETS, DEVICE_TAINT_RULES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES

if TYPE_CHECKING:
    from testbed.programs import Program
    from tests.e2e.harness import BaseDriver, Cluster

    from gpupartition.kube import Object

NEW_IMAGE = "registry.k8s.io/dra-example-driver/dra-example-driver:v0.4.1"


# ── day one ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_nodes_that_have_the_layout_already_are_adopted_without_a_write(cluster: Cluster) -> None:
    where = await site(cluster, 3, env={"GPU_PARTITIONS": "2"})
    await cluster.holder("training", namespace=where.user, node=where.nodes[0], device_class=where.base.driver)
    await cluster.running("training", namespace=where.user)
    await operator(cluster)
    async with Watcher(cluster) as history:
        await apply(cluster, policy("adopting", where.driver, equal(2)))
        await ready(cluster, "adopting")
        await at_rest(cluster)
    written = writes(cluster)
    assert "update gpupartitionpolicies/adopting/status" in written
    assert foreign(written) == []
    for node in where.nodes:
        assert history.phases(node) in (["UpToDate"], ["Pending", "UpToDate"])
        assert history.assignments(node) == [None]
    for kind in (PODS, RESOURCE_SLICES, RESOURCE_CLAIMS, DAEMON_SETS, DEVICE_TAINT_RULES):
        assert history.changes(kind) == []


async def test_nodes_whose_policy_and_records_were_lost_are_taken_up_as_they_are(cluster: Cluster) -> None:
    where = await site(cluster, 2)
    first = await operator(cluster)
    await apply(cluster, policy("restored", where.driver, equal(2)))
    await ready(cluster, "restored")
    await at_rest(cluster)
    await first.stop()
    await lose_what_is_ours(cluster)
    before = len(writes(cluster))
    async with Watcher(cluster) as history:
        await driver(cluster, where.base)
        await apply(cluster, policy("restored", where.driver, equal(2)))
        await operator(cluster)
        await ready(cluster, "restored")
        await at_rest(cluster)
    assert foreign(writes(cluster, since=before)) == []
    for node in where.nodes:
        assert len(history.assignments(node)) == 1
        assert history.assignments(node) != [None]
    for kind in (PODS, RESOURCE_SLICES, DAEMON_SETS, DEVICE_TAINT_RULES):
        assert history.changes(kind) == []


async def test_of_nodes_that_were_half_changed_by_hand_only_the_others_are_changed(cluster: Cluster) -> None:
    where = await site(cluster, 2)
    done, other = where.nodes
    await retemplate(cluster, where.base, env=[{"name": "GPU_PARTITIONS", "value": "2"}])
    await restart_by_hand(cluster, where.base, done)
    await cluster.published(devices(2), node=done, driver=where.base.driver)
    pod = await driver_pod(cluster, where.base, done)
    await operator(cluster)
    async with Watcher(cluster) as history:
        await apply(cluster, policy("halfway", where.driver, equal(2)))
        await ready(cluster, "halfway")
        await cluster.published(devices(2), node=other, driver=where.base.driver)
    assert history.assignments(done) == [None]
    assert history.touched(PODS, pod["metadata"]["name"]) == []
    assert not [each for each in writes(cluster) if each.endswith(f"nodes/{done}")]
    # What the base would bring back is no longer what the other node ran: its way back is a variant of its own.
    original = (await cluster.client.get(NODE_STATES, other))["status"]["original"]
    assert original["assignment"]
    assert len(json.loads(original["pool"])["devices"]) == devices(0)


async def test_the_way_back_from_the_first_change_is_to_carry_no_label(cluster: Cluster) -> None:
    where = await site(cluster, 1)
    (node,) = where.nodes
    before = await cluster.published(devices(0), node=node, driver=where.base.driver)
    await fault(cluster, node, "wrong-layout@partitions=2")
    await operator(cluster, verifying=1)
    async with Watcher(cluster) as history:
        await apply(cluster, policy("first", where.driver, equal(2)))
        await stalled(cluster, "first", "RolledBack")
        await at_rest(cluster)
    former, tried, now = history.assignments(node)
    assert (former, now) == (None, None)
    assert tried
    assert "assignment" not in (await cluster.client.get(NODE_STATES, node))["status"]["original"]
    after = await cluster.published(devices(0), node=node, driver=where.base.driver)
    assert [each["spec"]["devices"] for each in after] == [each["spec"]["devices"] for each in before]
    pod = await driver_pod(cluster, where.base, node)
    assert [owner["name"] for owner in pod["metadata"]["ownerReferences"]] == [where.base.daemon_set]


# ── an upgrade of the driver ──────────────────────────────────────────────────────────────────────────────────────────


async def test_an_upgraded_driver_restarts_node_by_node_under_the_hands_of_its_users(cluster: Cluster) -> None:
    where = await site(cluster, 3)
    await operator(cluster)
    await apply(cluster, policy("upgrading", where.driver, equal(2)))
    await ready(cluster, "upgrading")
    users = []
    for number, node in enumerate(where.nodes):
        await cluster.holder(f"user-{number}", namespace=where.user, node=node, device_class=where.base.driver)
        users.append(await cluster.running(f"user-{number}", namespace=where.user))
    old = [await driver_pod(cluster, where.base, node) for node in where.nodes]
    async with Watcher(cluster) as history:
        await retemplate(cluster, where.base, image=NEW_IMAGE)
        await eventually(lambda: all_run(cluster, where.base, where.nodes, NEW_IMAGE), within=60)
        await ready(cluster, "upgrading")
        await at_rest(cluster)
    assert history.most_unavailable() == 1
    for now in history.instants():
        started = {pod["spec"].get("nodeName") for pod in now.objects(PODS) if is_driver(pod) and not is_ready(pod)}
        assert len(started - {None}) <= 1, "one driver at a time"
    assert history.changes(RESOURCE_CLAIMS) == [], "nobody lost a device"
    assert history.changes(RESOURCE_SLICES) == [], "no device went away in between"
    assert [each.name for each in history.changes(PODS) if not is_driver(each.body)] == []
    for user in users:
        meta = user["metadata"]
        body = await cluster.client.get(PODS, meta["name"], namespace=meta["namespace"])
        assert body["metadata"]["uid"] == meta["uid"]
    gone = {each.name for each in history.changes(PODS) if each.what == "DELETED"}
    assert gone == {pod["metadata"]["name"] for pod in old}


def is_driver(pod: Object) -> bool:
    return bool(pod["metadata"].get("labels", {}).get("app.kubernetes.io/name") == "dra-example-driver")


def is_ready(pod: Object) -> bool:
    return {c["type"]: c["status"] for c in pod["status"].get("conditions", ())}.get("Ready") == "True"


async def all_run(cluster: Cluster, base: BaseDriver, nodes: list[str], image: str) -> bool:
    images = {node: (await driver_pod(cluster, base, node))["spec"]["containers"][0]["image"] for node in nodes}
    assert set(images.values()) == {image}, images
    return True


# ── quiet days ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_operator_at_rest_writes_nothing_and_neither_does_one_that_starts(cluster: Cluster) -> None:
    where = await site(cluster, 3)
    await cluster.client.patch(NODES, where.nodes[2], {"metadata": {"labels": {"lane": "in-use"}}})
    await cluster.holder("training", namespace=where.user, node=where.nodes[2], device_class=where.base.driver)
    await cluster.running("training", namespace=where.user)
    first = await operator(cluster, resync=0.3)
    await apply(cluster, policy("quiet", where.driver, equal(2)))
    await apply(cluster, policy("same", where.driver, whole(), selector={"pool": "nowhere"}))
    await eventually(lambda: all_but_the_held_one(cluster, where.nodes))
    await looks_again(first)  # by then it has said what it had to say of the node in use, and swept up
    quiet = len(writes(cluster))
    await looks_again(first, times=10)
    assert writes(cluster, since=quiet) == []
    await first.stop()
    second = await operator(cluster, resync=0.3)
    await eventually(lambda: every_node_once(second, len(where.nodes)))
    await looks_again(second, times=10)
    assert writes(cluster, since=quiet) == []


async def all_but_the_held_one(cluster: Cluster, nodes: list[str]) -> bool:
    return await phases(cluster) == dict(zip(nodes, ("UpToDate", "UpToDate", "Pending"), strict=True))


async def every_node_once(program: Program, nodes: int) -> bool:
    return await turns(program, "node") >= nodes
