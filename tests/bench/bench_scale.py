"""What 5,000 nodes ask of the operator, on a real API server: to start, to stand by, to hear of nothing that matters, and of much that does.

The nodes have 10,000 slices and 20,000 claims, then 25,000 slices. A policy that only observes wants another layout on each, so its first true
status is a plan of all of them. Only etcd and the API server run beside the operator, which is as people run it, with its defaults.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from typing import TYPE_CHECKING, Final

from testbed.progress import Progress
from tests.bench import beside, fleet, following
from tests.bench.figures import Figure
from tests.bench.fleet import Fleet
from tests.bench.watching import MUTATING, audited, bare_server, cpu_of, highest, measuring, operator, until
from tests.e2e.harness import DRIVERS, POLICIES
from tests.e2e.rollout import asks
from tests.e2e.stage import OPERATOR

from gpupartition.kube import NODES, Client

if TYPE_CHECKING:
    from testbed.controlplane import ControlPlane
    from testbed.programs import Program

    from gpupartition.kube import Object

COUNT: Final = 5_000
FLEETS: Final = (
    Fleet(nodes=COUNT, claims=4, layout=fleet.HALVES),  # two slices a node
    Fleet(nodes=COUNT, claims=4, layout=fleet.CHOICES),  # five, with 208 devices
)
COLD_BOUND: Final = 1.5
MEMORY_BOUND: Final = 300  # MB
LAG_BOUND: Final = 0.1  # seconds
IDLE: Final = 60  # seconds
IDLE_BOUND: Final = 1  # % of a core
LOOKS_BOUND: Final = 10


def measure() -> list[Figure]:
    """Figures of each fleet, with the number of its slices in their names."""
    return [figure for each in FLEETS for figure in asyncio.run(_measured(each))]


async def _measured(wanted: Fleet) -> list[Figure]:
    progress = Progress(sys.stderr)
    async with bare_server(progress) as (controlplane, client):
        async with progress.step(f"{wanted.nodes} nodes"):
            slices = await wanted.populate(client)
        await client.create(DRIVERS, fleet.driver())
        return await _looked_at(controlplane, client, wanted, slices, progress)


async def _looked_at(
    controlplane: ControlPlane, client: Client, wanted: Fleet, slices: int, progress: Progress
) -> list[Figure]:
    async with progress.step("a bare program reads them"):
        bare = await _bare(controlplane)
    policy = await client.create(POLICIES, fleet.policy("fleet", fleet.QUARTERS, mode="Observe"))
    program = operator(controlplane)
    try:
        async with progress.step("the operator plans them"):
            begun = time.monotonic()
            await program.start()
            await until(client, policy, lambda body: _counts(body, "wouldChange") == wanted.nodes)
            cold = time.monotonic() - begun
        memory, before = highest(program.pid), await _metrics(program)
        async with progress.step(f"{IDLE} s of nothing"):
            await asyncio.sleep(IDLE)  # what followed from the start is over
            log, cpu, begun = controlplane.files.audit_log.stat().st_size, cpu_of(program.pid), time.monotonic()
            await asyncio.sleep(IDLE)
            idle = 100 * (cpu_of(program.pid) - cpu) / (time.monotonic() - begun)
            written = _writes(controlplane, log)
        async with progress.step("a heartbeat of every node"):
            looks = -await _turns(program)
            await wanted.beat(client)
            policy, last = await client.get(POLICIES, "fleet"), wanted.names()[-1]
            await client.patch(NODES, last, {"metadata": {"labels": {"pool": "none"}}})
            await until(client, policy, lambda body: _counts(body, "matched") == wanted.nodes - 1)
            looks += await _turns(program)
        of = f"{slices} slices"
        async with progress.step("slices are written"):
            behind = await following.lag(controlplane, client, program, of)
        after = await _metrics(program)
    finally:
        await program.stop()
    compared: list[Figure] = []
    if wanted is FLEETS[0]:
        async with progress.step("kopf's own index does the same"):
            compared = await beside.figures(controlplane.kubeconfig, client, wanted, slices)
    told = f"{wanted.nodes} nodes, {slices} slices, {wanted.nodes * wanted.claims} claims"
    return [
        Figure(
            name=f"first plan, beside a bare reader ({of})",
            value=round(cold / bare, 2),
            unit="times",
            bound=COLD_BOUND,
            how=f"{told}: operator {cold:.1f} s from its start to the plan, reader {bare:.1f} s",
        ),
        Figure(name=f"memory ({of})", value=memory, unit="MB", bound=MEMORY_BOUND, how="at its highest until then"),
        Figure(
            name=f"event loop held up ({of})",
            value=_late(after),
            unit="times",
            bound=0,
            how=f"for more than {LAG_BOUND} s, of {_asked(after):.0f} times that it was felt; {_late(before)} until the plan",
        ),
        Figure(name=f"idle ({of})", value=round(idle, 2), unit="% CPU", bound=IDLE_BOUND, how=f"over {IDLE} s"),
        Figure(
            name=f"writes while idle ({of})", value=len(written), bound=0, how="by the audit log", rounds=written[:10]
        ),
        Figure(
            name=f"looks for a heartbeat of each node ({of})",
            value=looks,
            bound=LOOKS_BOUND,
            how="at nodes, policies and drivers; one node was labelled in the end, to know when it had heard of all",
        ),
        behind,
        *compared,
    ]


def _counts(policy: Object, what: str) -> int:
    return int(policy.get("status", {}).get("nodes", {}).get(what, 0))


async def _metrics(program: Program) -> str:
    """What it tells Prometheus."""
    return await asks(program, "/metrics")


async def _turns(program: Program) -> float:
    """How often it has looked at anything."""
    return sum(_values(await _metrics(program), "gpupartition_turn_seconds_count"))


def _values(metrics: str, name: str, labels: str = "") -> list[float]:
    return [float(each) for each in re.findall(rf"^{name}(?:{{[^}}]*{labels}[^}}]*}})? (\S+)$", metrics, re.MULTILINE)]


def _late(metrics: str) -> int:
    """How often the event loop was later than LAG_BOUND."""
    (in_time,) = _values(metrics, "gpupartition_loop_lag_seconds_bucket", f'le="{LAG_BOUND}"')
    return round(_asked(metrics) - in_time)


def _asked(metrics: str) -> float:
    (asked,) = _values(metrics, "gpupartition_loop_lag_seconds_count")
    return asked


async def _bare(controlplane: ControlPlane) -> float:
    """Seconds of a program that only reads."""
    begun = time.monotonic()
    program = await measuring("bare", controlplane.kubeconfig)
    out, _ = await program.communicate()
    assert json.loads(out)[0] == COUNT, out
    return time.monotonic() - begun


def _writes(controlplane: ControlPlane, since: int) -> list[str]:
    """What the operator has written beyond so many bytes of the audit log."""
    return [
        f"{each['verb']} {each['requestURI']}"
        for each in audited(controlplane, OPERATOR, since=since)
        if each["verb"] in MUTATING and "dryRun" not in each["requestURI"]
    ]
