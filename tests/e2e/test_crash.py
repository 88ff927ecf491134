"""The operator dies, hangs and comes back at the worst moments, and there may be two of it: the end is the same, and nothing happens twice."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Final

import pytest
from testbed.faultproxy import FaultProxy, Injury, Rule, To
from tests.e2e import rollout
from tests.e2e.crashes import killed_in, nothing_happened_twice, stopped_in
from tests.e2e.harness import NODE_STATES, POLICIES, eventually
from tests.e2e.history import Watcher
from tests.e2e.stage import IN_FLIGHT, WHOLE, lose_what_is_ours, stage

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.harness import Cluster


@pytest.mark.parametrize("phase", IN_FLIGHT)
async def test_killed_on_the_way_it_finishes_after_its_restart_and_does_nothing_twice(
    cluster: Cluster, phase: str
) -> None:
    scene = await stage(cluster, 2)
    async with Watcher(cluster) as history, killed_in(cluster, phase):
        await scene.want_halves()
        await rollout.ready(cluster, cluster.name)
        await nothing_happened_twice(scene, history)


async def test_killed_while_rolling_back_it_brings_the_node_back_and_can_be_asked_to_retry(cluster: Cluster) -> None:
    scene = await stage(cluster, 2)
    failing, _ = scene.nodes
    await rollout.fault(cluster, failing, "wrong-layout@partitions=2")
    async with Watcher(cluster) as history, killed_in(cluster, "RollingBack", verifying=1):
        await scene.want_halves()
        await rollout.stalled(cluster, cluster.name, "RolledBack")
        await scene.publishes(WHOLE, failing)
        await rollout.fault(cluster, failing, None)
        await rollout.annotate(cluster, POLICIES, cluster.name, retry="mended")
        await rollout.ready(cluster, cluster.name)
        await nothing_happened_twice(scene, history)
    assert len(history.assignments(failing)) == 4


async def test_killed_while_giving_up_it_opens_the_node_again_and_comes_back_to_it_later(cluster: Cluster) -> None:
    scene = await stage(cluster, 2)
    first, _ = scene.nodes
    holder = await scene.hold(first)
    async with Watcher(cluster) as history:
        async with killed_in(cluster, "Aborting", draining_wait=1):
            await scene.want_halves(rollout={"drain": {"mode": "Wait"}})
            await eventually(lambda: was_opened_again(history, first))
            await holder.end()
            await rollout.ready(cluster, cluster.name)
        await nothing_happened_twice(scene, history)
    assert len(holder.layouts(history)) == 1


def was_opened_again(history: Watcher, node: str) -> bool:
    """Whether a node was let go after an attempt."""
    return "Aborting Pending" in " ".join(history.phases(node))


@pytest.mark.parametrize("phase", ["Draining", "Applying", "Verifying"])
async def test_a_roll_out_whose_records_and_grants_are_lost_midway_is_taken_up_as_it_stands_and_nothing_happens_twice(
    cluster: Cluster, phase: str
) -> None:
    scene = await stage(cluster, 3)
    program = await rollout.operator(cluster)
    version = (await cluster.client.list(NODE_STATES)).resource_version
    async with Watcher(cluster) as history:
        await scene.want_halves()
        await stopped_in(cluster, program, phase, version)
        await program.kill()
        await lose_what_is_ours(cluster)
        await rollout.driver(cluster, scene.base)
        await scene.want_halves()
        await rollout.operator(cluster)
        await rollout.ready(cluster, cluster.name)
        await nothing_happened_twice(scene, history)


async def test_two_operators_at_once_keep_every_promise_of_one(cluster: Cluster) -> None:
    scene = await stage(cluster, 3)
    await rollout.operator(cluster)
    await rollout.operator(cluster)
    async with Watcher(cluster) as history:
        await scene.want_halves()
        await rollout.ready(cluster, cluster.name)
        await nothing_happened_twice(scene, history)


@pytest.mark.parametrize("phase", ["Draining", "Applying", "Verifying", "Releasing"])
async def test_an_operator_that_wakes_up_after_another_has_finished_its_work_changes_nothing_any_more(
    cluster: Cluster, phase: str
) -> None:
    scene = await stage(cluster, 2)
    sleeper = await rollout.operator(cluster)
    version = (await cluster.client.list(NODE_STATES)).resource_version
    async with Watcher(cluster) as history:
        await scene.want_halves()
        await stopped_in(cluster, sleeper, phase, version)
        await rollout.operator(cluster)
        await rollout.ready(cluster, cluster.name)
        await rollout.at_rest(cluster)
        await history.caught_up()
        before = history.touched(NODE_STATES, *scene.nodes)
        os.kill(sleeper.pid, signal.SIGCONT)
        # Both have looked at everything again when a newcomer is done.
        newcomers = await cluster.nodes(1, pool=scene.base.pool)
        await rollout.reaches(cluster, newcomers[0], "UpToDate")
        await rollout.ready(cluster, cluster.name)
        await nothing_happened_twice(scene, history, *newcomers)
    assert history.touched(NODE_STATES, *scene.nodes) == before


ENDS: Final = Rule(injury=Injury.EXPIRED, to=To.WATCHES, share=1, path=r"/gpupartitionpolicies$", seconds=(2, 3))


async def test_an_operator_that_cannot_list_policies_any_more_ends_and_the_next_one_goes_on(
    cluster: Cluster, tmp_path: Path
) -> None:
    scene = await stage(cluster, 2)
    await cluster.controlplane.install_operator()
    account = cluster.controlplane.files.kubeconfig("operator")
    async with FaultProxy(account, tmp_path, seed=1, rules=[ENDS]) as line:
        deaf = await cluster.start_operator("--kubeconfig", str(line.kubeconfig), env=rollout.fast())
        await eventually(lambda: "watching 0 policies" in deaf.log.read_text())
        line.rules = (ENDS, Rule(injury=Injury.EXPIRED, to=To.READS, share=1, path=ENDS.path))
        await eventually(lambda: not deaf.alive)
    assert deaf.returncode == 1
    assert "stopped: kopf watches policies and drivers no longer" in deaf.log.read_text()
    await rollout.operator(cluster)
    await scene.want_halves()
    await rollout.ready(cluster, cluster.name)


async def test_a_policy_that_is_deleted_while_nobody_watches_claims_no_node_any_more(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Of what is deleted while it lists anew, kopf tells nobody."""
    scene = await stage(cluster, 1)
    await cluster.controlplane.install_operator()
    account = cluster.controlplane.files.kubeconfig("operator")
    for name, parts in (("one", 2), ("two", 4)):
        await rollout.apply(cluster, rollout.policy(name, scene.driver, rollout.equal(parts)))
    async with FaultProxy(account, tmp_path, seed=1, rules=[ENDS]) as line:
        await cluster.start_operator("--kubeconfig", str(line.kubeconfig), env=rollout.fast())
        await rollout.said(cluster, "two", "Ready", "False", "Conflict")
        line.rules = (ENDS, Rule(injury=Injury.HANG, to=To.READS, share=1, path=ENDS.path, seconds=(5, 5)))
        await eventually(lambda: sum(each.injury is Injury.HANG for each in line.log) >= 2)  # kopf's, and our own
        await cluster.client.delete(POLICIES, "one")
        await cluster.gone(POLICIES, "one")
        line.rules = ()
        await rollout.ready(cluster, "two")
    await scene.publishes(rollout.devices(4))
