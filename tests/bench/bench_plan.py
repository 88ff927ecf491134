"""How long a plan for 5,000 nodes takes, from the listed objects to the plan, without network and start-up.

The bound is CPU time of this process, so that busy neighbours count little; the best of some rounds counts, because they still count some.
"""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Final

from tests.bench.figures import Figure
from tests.unit.fleet import Fleet, policy

from gpupartition.cli.documents import Document
from gpupartition.cli.foresight import foresee
from gpupartition.settings import Settings

NODES: Final = 5_000
ROUNDS: Final = 3
BOUND: Final = 3.0  # seconds: an answer that a person at a shell waits for


def measure() -> list[Figure]:
    """Seconds of CPU for one policy over all nodes, every tenth of which has a holder."""
    fleet = Fleet(NODES)
    for node in fleet.nodes[::10]:
        fleet.hold(node, claim=f"team/{node}")
    document = Document(at="policy", body=policy(rollout={"maxUnavailable": "10%"}))
    seconds = [_once(fleet, document) for _ in range(ROUNDS)]
    how = f"{NODES} nodes, read from lists; best of {ROUNDS}"
    return [Figure(name="plan", value=min(seconds), unit="s CPU", bound=BOUND, how=how, rounds=seconds)]


def _once(fleet: Fleet, document: Document) -> float:
    gc.collect()
    begun = time.process_time()
    (found,) = asyncio.run(foresee(fleet.client, Settings(), [document]))
    took = time.process_time() - begun
    assert len(found.nodes) == NODES
    assert sum(map(len, found.waves)) == NODES - NODES // 10
    return round(took, 2)
