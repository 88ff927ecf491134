"""Everything goes wrong at once, round after round: what must always hold holds, and when all calm down, all come to rest.

A round takes a minute: ten are in `make test`, `make chaos ROUNDS=100 SEED=7` plays more and others. A round is replayed by its seed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pytest
from tests.e2e.chaos import Round
from tests.e2e.rollout import site

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.harness import Cluster

ROUNDS: Final = int(os.environ.get("CHAOS_ROUNDS", "10"))
SEED: Final = int(os.environ.get("CHAOS_SEED", "1"))
NODES: Final = 4


@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
async def test_what_must_always_hold_holds_and_calm_brings_rest(cluster: Cluster, tmp_path: Path, seed: int) -> None:
    played = Round(cluster=cluster, site=await site(cluster, NODES), seed=seed, folder=tmp_path)
    violations = await played.play()
    print(played.summary)  # noqa: T201 - shown by `make chaos`
    assert not violations, "\n".join([*map(str, violations), played.told])
