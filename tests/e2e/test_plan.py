"""`gpupartition plan`: what it says beforehand is what is done afterwards, and it takes no right to write."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.e2e.harness import NODE_STATES, POLICIES, eventually
from tests.e2e.history import Watcher
from tests.e2e.rollout import Site, apply, condition, equal, operator, policy, ready, said, site
from tests.e2e.shell import PLANNER, account_of, only_read, plan

from gpupartition.kube import DAEMON_SETS, NODES, RESOURCE_SLICES
from gpupartition.names import LAYOUT

if TYPE_CHECKING:
    from tests.e2e.harness import Cluster


FOUND: Final = 3


async def as_yet_unseen(cluster: Cluster, where: Site, nodes: list[str]) -> None:
    """Bring nodes to halves by a policy that is then forgotten: they have the layout, and nobody has a record of them."""
    running = await operator(cluster)
    for node in nodes:
        await cluster.client.patch(NODES, node, {"metadata": {"labels": {"lane": "first"}}})
    await apply(cluster, policy("first", where.driver, equal(2), selector={"lane": "first"}))
    await ready(cluster, "first")
    await cluster.client.delete(POLICIES, "first")
    await cluster.gone(POLICIES, "first")
    for node in nodes:
        await cluster.gone(NODE_STATES, node)
    await running.stop()


async def test_what_is_planned_is_what_is_done_node_by_node(cluster: Cluster) -> None:
    where = await site(cluster, 4)
    right, held = where.nodes[0], where.nodes[1]
    await as_yet_unseen(cluster, where, [right])
    await cluster.holder("job-7", namespace=where.user, node=held, device_class=where.base.driver)
    await cluster.running("job-7", namespace=where.user)
    body = policy("inference", where.driver, equal(2))
    kubeconfig = await account_of(cluster, PLANNER)
    before = {n: await names_on(cluster, where, n) for n in where.nodes}

    planned = await plan(cluster, "-f", "-", "-o", "json", "--fail-on=blocked", stdin=body, kubeconfig=kubeconfig)

    assert planned.code == FOUND, planned.errors
    assert planned.nodes[right]["state"] == "UpToDate"
    assert planned.nodes[held]["state"] == "Blocked"
    (blocker,) = planned.nodes[held]["blockers"]
    assert blocker["pod"] == f"{where.user}/job-7"

    async with Watcher(cluster) as history:
        await operator(cluster)
        await apply(cluster, body)
        await eventually(lambda: up_to_date(cluster, "inference", 3))
        await said(cluster, "inference", "Ready", "False", "WaitingForHolders")
        await history.caught_up()
    started: list[str] = []
    classes: dict[str, str] = {}
    for each in history.changes(NODE_STATES):
        status = each.body.get("status", {})
        if status.get("phase") == "Admitted" and each.name not in started:
            started.append(each.name)
            classes[each.name] = status["change"]
    assert [[node] for node in started] == planned.policy["waves"]
    assert classes == {n: planned.nodes[n]["change"] for n in started}
    for node in where.nodes:
        after, rows = await names_on(cluster, where, node), planned.nodes[node]
        done = rows["wave"] > 0
        gained, lost = (set(rows["gained"]), set(rows["lost"])) if done else (set(), set())
        assert after == (before[node] - lost) | gained, node
    assert not history.touched(NODES, right, held)


async def test_a_new_driver_image_is_planned_as_a_restart_that_no_holder_blocks(cluster: Cluster) -> None:
    where = await site(cluster, 2)
    await operator(cluster)
    await apply(cluster, policy("inference", where.driver, equal(2)))
    await ready(cluster, "inference")
    await cluster.holder("job-7", namespace=where.user, node=where.nodes[0], device_class=where.base.driver)
    await cluster.running("job-7", namespace=where.user)
    base = await cluster.client.get(DAEMON_SETS, where.base.daemon_set, namespace=where.base.namespace)
    # Stop the operator first: it would begin at once.
    for program in cluster.operators:
        await program.stop()
    base["spec"]["template"]["spec"]["containers"][0]["image"] += "-next"
    await cluster.client.replace(DAEMON_SETS, base)
    answer = await plan(cluster, "inference", "-o", "json", "--fail-on=blocked,infeasible")
    assert answer.code == 0, answer.errors
    assert {row["change"] for row in answer.nodes.values()} == {"Restart"}
    assert all(not row["gained"] and not row["lost"] and not row["blockers"] for row in answer.nodes.values())


async def test_planning_writes_nothing_and_is_refused_nothing(cluster: Cluster) -> None:
    where = await site(cluster, 2)
    kubeconfig = await account_of(cluster, PLANNER)
    answer = await plan(cluster, "-f", "-", stdin=policy("inference", where.driver, equal(2)), kubeconfig=kubeconfig)
    assert answer.code == 0, answer.errors
    assert "2 of 2 nodes would change (2 Repartition), in 2 waves" in answer.out
    assert only_read(cluster, PLANNER)


async def test_an_account_without_the_role_is_told_which_right_it_lacks(cluster: Cluster) -> None:
    where = await site(cluster, 1)
    namespace = await cluster.namespace("nobody")
    token = await cluster.controlplane.token(namespace, "default")
    kubeconfig = await asyncio.to_thread(cluster.controlplane.parts.write_kubeconfig, namespace, token)
    answer = await plan(cluster, "-f", "-", stdin=policy("inference", where.driver, equal(2)), kubeconfig=kubeconfig)
    assert answer.code == 1
    assert "cannot list resource" in answer.errors
    assert "gpupartition-plan" in answer.errors


async def test_a_policy_that_observes_says_what_a_plan_says(cluster: Cluster) -> None:
    where = await site(cluster, 3)
    await cluster.holder("job-7", namespace=where.user, node=where.nodes[0], device_class=where.base.driver)
    await cluster.running("job-7", namespace=where.user)
    await operator(cluster)
    await apply(cluster, policy("inference", where.driver, equal(2), mode="Observe"))
    await ready(cluster, "inference", "Observing")

    async def same() -> bool:
        body = await cluster.client.get(POLICIES, "inference")
        answer = await plan(cluster, "inference", "-o", "json")
        said_there = condition(body, "Ready")["message"]
        assert said_there == f"{answer.policy['summary']}; nothing is touched"
        assert f"blocked by {where.user}/job-7" in said_there
        return True

    await eventually(same)
    for node in where.nodes:
        assert LAYOUT not in (await cluster.client.get(NODES, node))["metadata"]["labels"]


async def up_to_date(cluster: Cluster, name: str, nodes: int) -> bool:
    status = (await cluster.client.get(POLICIES, name))["status"]
    assert status.get("nodes", {}).get("upToDate") == nodes, status
    return True


async def names_on(cluster: Cluster, where: Site, node: str) -> set[str]:
    """Names of the devices that a node publishes."""
    selector = f"spec.nodeName={node},spec.driver={where.base.driver}"
    listed = await cluster.client.list(RESOURCE_SLICES, field_selector=selector)
    return {device["name"] for each in listed.items for device in each["spec"].get("devices", ())}


async def test_a_plan_that_cannot_be_written_down_is_an_error_in_one_line(cluster: Cluster) -> None:
    where = await site(cluster, 1)
    body = policy("inference", where.driver, equal(2))
    with Path("/dev/full").open("wb") as full:  # noqa: ASYNC230 - a device
        answer = await plan(cluster, "-f", "-", stdin=body, stdout=full)
    assert (answer.code, answer.errors.splitlines()) == (
        1,
        ["error: the plan could not be written: No space left on device"],
    )
