"""Two instances of the operator with leader election: one works and one stands by, and it changes only when it must."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Final

from tests.e2e.harness import POLICIES, eventually
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

from gpupartition.kube import LEASES
from gpupartition.names import OPERATOR_NAMESPACE

if TYPE_CHECKING:
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
