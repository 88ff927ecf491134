"""How long it takes to say what 5,000 nodes have, from the listed objects to the policies, without network and start-up.

The bound is CPU time of this process, so that busy neighbours count little; the best of some rounds counts, because they still count some.
"""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Final

from tests.bench.figures import Figure
from tests.unit.fleet import Fleet

from gpupartition.cli.adopt import as_yaml
from gpupartition.cli.survey import survey
from gpupartition.settings import Settings

NODES: Final = 5_000
ROUNDS: Final = 3
BOUND: Final = 5.0  # seconds: asked once, by a person at a shell


def measure() -> list[Figure]:
    """Seconds of CPU for nodes of which each is compiled and compared by itself."""
    fleet = Fleet(NODES)
    seconds = [_once(fleet) for _ in range(ROUNDS)]
    how = f"{NODES} nodes, read from lists; best of {ROUNDS}"
    return [Figure(name="adopt", value=min(seconds), unit="s CPU", bound=BOUND, how=how, rounds=seconds)]


def _once(fleet: Fleet) -> float:
    gc.collect()
    begun = time.process_time()
    found = asyncio.run(survey(fleet.client, Settings()))
    as_yaml(found)
    took = time.process_time() - begun
    assert sum(len(policy.nodes) for policy in found.policies) == NODES
    return round(took, 2)
