"""Two instances of the operator with leader election: one works and one stands by, and it changes only when it must."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from tests.e2e.crashes import nothing_happened_twice
from tests.e2e.harness import POLICIES, eventually
from tests.e2e.history import Watcher
from tests.e2e.rollout import (
    apply,
    asks,
    at_rest,
    condition,
    equal,
    fast,
    looks_again,
    phases,
    policy,
    ready,
    site,
    writes,
)
from tests.e2e.stage import stage

from gpupartition.kube import LEASES, NODES
from gpupartition.names import OPERATOR_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from testbed.programs import Program
    from tests.e2e.harness import Cluster

DURATION: Final = 15.0  # seconds after which a Lease that stands still is taken over
TAKEN_OVER: Final = 20.0


async def instance(cluster: Cluster) -> Program:
    """Start an instance that takes part in the election; returns when it leads or stands by."""
    program = await cluster.start_operator(env={**fast(resync=0.3), "GPUPARTITION_LEADER_ELECTION": "true"})
    await eventually(lambda: asks(program, "/readyz"))
    return program


async def leads(program: Program) -> bool:
    """Whether an instance says that it works."""
    return "gpupartition_leading 1.0" in await asks(program, "/metrics")


async def holder(cluster: Cluster) -> str:
    lease = await cluster.client.get(LEASES, "gpupartition", namespace=OPERATOR_NAMESPACE)
    return str(lease["spec"]["holderIdentity"])


async def test_a_second_instance_stands_by_and_takes_over_a_roll_out_when_the_first_is_killed(cluster: Cluster) -> None:
    where = await site(cluster, 3)
    first = await instance(cluster)
    second = await instance(cluster)
    assert await leads(first)
    assert not await leads(second)
    assert await asks(second, "/readyz") == "standing by"
    await apply(cluster, policy("inference", where.driver, equal(2)))
    await eventually(lambda: underway(cluster))
    killed, before = time.monotonic(), await holder(cluster)
    await first.kill()
    await eventually(lambda: leads(second), within=TAKEN_OVER)
    # Reading the Lease takes a moment, so the second may have begun to count some retries before the first died.
    assert time.monotonic() - killed > DURATION - 2 * 2.4
    assert await holder(cluster) != before
    await ready(cluster, "inference")
    await at_rest(cluster)


async def test_an_instance_that_is_asked_to_end_hands_over_at_once(cluster: Cluster) -> None:
    where = await site(cluster, 1)
    first = await instance(cluster)
    second = await instance(cluster)
    await first.stop()
    assert first.returncode == 0
    await eventually(lambda: leads(second), within=DURATION / 2)
    await apply(cluster, policy("inference", where.driver, equal(2)))
    await ready(cluster, "inference")


async def test_the_lead_changes_hands_again_and_again_in_one_roll_out_and_nothing_happens_twice(
    cluster: Cluster,
) -> None:
    scene = await stage(cluster, 5)
    leading, standing_by = await instance(cluster), await instance(cluster)
    async with Watcher(cluster) as history, unrest(cluster, scene.nodes):
        await scene.want_halves()
        for done in (1, 2, 3):
            await eventually(partial(at_least, cluster, done))
            await leading.stop()
            leading, standing_by = standing_by, await instance(cluster)
        await ready(cluster, cluster.name)
        await nothing_happened_twice(scene, history)


async def at_least(cluster: Cluster, count: int) -> bool:
    """Whether so many nodes are done."""
    return list((await phases(cluster)).values()).count("UpToDate") >= count


@asynccontextmanager
async def unrest(cluster: Cluster, nodes: list[str]) -> AsyncIterator[None]:
    """Have somebody write to the nodes all the time, so that much of what is written to them comes too late."""

    async def write() -> None:
        for count in itertools.count():
            note = {"metadata": {"annotations": {"somebody.example/count": str(count)}}}
            await asyncio.gather(*(cluster.client.patch(NODES, node, note) for node in nodes))
            await asyncio.sleep(0.1)  # ten times a second: as often as an agent that labels nodes in a hurry

    writing = asyncio.create_task(write())
    try:
        yield
        assert not writing.done(), writing
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


async def test_an_instance_that_wakes_up_when_another_one_leads_ends_with_an_error(cluster: Cluster) -> None:
    where = await site(cluster, 2)
    first = await instance(cluster)
    second = await instance(cluster)
    await apply(cluster, policy("inference", where.driver, equal(2)))
    await eventually(lambda: underway(cluster))
    os.kill(first.pid, signal.SIGSTOP)
    try:
        await eventually(lambda: leads(second), within=TAKEN_OVER)
    finally:
        os.kill(first.pid, signal.SIGCONT)
    await eventually(lambda: not first.alive)
    assert first.returncode == 1
    assert "stopped: the Lease" in first.log.read_text()
    await ready(cluster, "inference")
    assert await leads(second)


async def test_an_idle_leader_writes_nothing_but_its_lease(cluster: Cluster) -> None:
    where = await site(cluster, 1)
    first = await instance(cluster)
    await apply(cluster, policy("inference", where.driver, equal(2)))
    await ready(cluster, "inference")
    await at_rest(cluster)
    await looks_again(first)
    already = len(writes(cluster))
    renewed = (await cluster.client.get(LEASES, "gpupartition", namespace=OPERATOR_NAMESPACE))["spec"]["renewTime"]

    async def again() -> bool:
        lease = await cluster.client.get(LEASES, "gpupartition", namespace=OPERATOR_NAMESPACE)
        return bool(lease["spec"]["renewTime"] != renewed)

    await eventually(again)
    await looks_again(first)
    assert set(writes(cluster, since=already)) == {"update leases/gpupartition"}
    assert condition(await cluster.client.get(POLICIES, "inference"), "Ready")["status"] == "True"


async def underway(cluster: Cluster) -> bool:
    return bool(set((await phases(cluster)).values()) & {"Quiescing", "Draining", "Applying", "Verifying"})
