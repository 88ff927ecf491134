"""How long a plan for 5,000 nodes takes, and how long it takes to say who of a thousand will find devices, without network and start-up.

The bound is CPU time of this process, so that busy neighbours count little; the best of some rounds counts, because they still count some.
"""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Final

from tests.bench.figures import Figure
from tests.unit.fleet import DRIVER, Fleet, asking, policy

from gpupartition.cli.documents import Document
from gpupartition.cli.fitting import prospect
from gpupartition.cli.planned import planned_for
from gpupartition.domain.fit import Fits
from gpupartition.kube.pauses import unhurried
from gpupartition.settings import Settings

NODES: Final = 5_000
ROUNDS: Final = 3
BOUND: Final = 3.0  # seconds: an answer that a person at a shell waits for
CROWD, SMALL_FLEET, KINDS = 1_000, 500, 10


def measure() -> list[Figure]:
    """Seconds of CPU for one policy over all nodes, every tenth of which has a holder; and for many who wait, of whom nobody gets anything."""
    return [_plan(), _fit()]


def _plan() -> Figure:
    fleet = Fleet(NODES)
    for node in fleet.nodes[::10]:
        fleet.hold(node, claim=f"team/{node}")
    document = Document(at="policy", body=policy(rollout={"maxUnavailable": "10%"}))
    seconds = [_once(fleet, document) for _ in range(ROUNDS)]
    how = f"{NODES} nodes, read from lists; best of {ROUNDS}"
    return Figure(name="plan", value=min(seconds), unit="s CPU", bound=BOUND, how=how, rounds=seconds)


def _fit() -> Figure:
    fleet = Fleet(SMALL_FLEET)
    for number in range(CROWD):
        too_much = f'device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("{90 + number % KINDS}Gi"))'
        fleet.want(f"team/job-{number}", asking(too_much))
    document = Document(at="policy", body=policy(rollout={"maxUnavailable": "10%"}))
    seconds = [_who_fits(fleet, document) for _ in range(ROUNDS)]
    how = f"{CROWD} claims of {KINDS} kinds that fit nowhere, {SMALL_FLEET} nodes, now and after a change; best of {ROUNDS}"
    return Figure(name="what will fit", value=min(seconds), unit="s CPU", bound=BOUND, how=how, rounds=seconds)


def _who_fits(fleet: Fleet, document: Document) -> float:
    async def look() -> float:
        seen = await planned_for(fleet.client, Settings(), [document], ())
        begun = time.process_time()
        with unhurried():
            found = await prospect(fleet.client, seen, lambda: False)
        took = time.process_time() - begun
        assert [each.after.fits for each in found.pending] == [Fits.NO] * CROWD
        return took

    gc.collect()
    return round(asyncio.run(look()), 2)


def _once(fleet: Fleet, document: Document) -> float:
    gc.collect()
    return round(asyncio.run(_whole(fleet, document)), 2)


async def _whole(fleet: Fleet, document: Document) -> float:
    """All that the command does, but for printing."""
    begun = time.process_time()
    with unhurried():
        seen = await planned_for(fleet.client, Settings(), [document], ())
        fit = await prospect(fleet.client, seen, lambda: False)
    took = time.process_time() - begun
    (plan,) = seen.plans
    assert len(plan.nodes) == NODES
    assert sum(map(len, plan.waves)) == NODES - NODES // 10
    assert fit.looked_at == (NODES // 10, NODES // 10)
    return took
