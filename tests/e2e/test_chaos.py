"""Everything goes wrong at once, round after round: what must always hold holds, and when all calm down, all come to rest.

A round takes a minute: ten are in `make test`, `make chaos ROUNDS=100 SEED=7` plays more and others. A round is replayed by its seed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from testbed.admin import Admin
from tests.e2e.chaos import Round
from tests.e2e.rollout import site
from tests.e2e.servers import one_more

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from testbed.controlplane import ControlPlane
    from tests.e2e.harness import Cluster

ROUNDS: Final = int(os.environ.get("CHAOS_ROUNDS", "10"))
SEED: Final = int(os.environ.get("CHAOS_SEED", "1"))
RECORD: Final = os.environ.get("CHAOS_RECORD", "")
"""A file to which a line is added for each round."""
NODES: Final = 4


@pytest.fixture(scope="module")
async def bystander(controlplane: ControlPlane) -> AsyncIterator[Admin]:
    """A client of an API server of its own, which goes on when the other one crashes."""
    async with one_more(controlplane) as admin, Admin.connect(admin, user_agent="testbed") as client:
        yield client


@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
async def test_what_must_always_hold_holds_and_calm_brings_rest(
    cluster: Cluster, bystander: Admin, tmp_path: Path, seed: int
) -> None:
    cluster.client = bystander
    played = Round(cluster=cluster, site=await site(cluster, NODES), seed=seed, folder=tmp_path)
    violations = await played.play()
    record(f"{'VIOLATED' if violations else 'held'}: {played.summary}\n")
    assert not violations, "\n".join([*map(str, violations), played.told])


def record(line: str) -> None:
    """Add it where it is asked for, in one write, so that lines of workers do not mix."""
    if RECORD:
        with Path(RECORD).open("a") as file:
            file.write(line)
