"""A cluster small enough to go through all of its states, in which the real decisions are made by workers that may be late."""

from __future__ import annotations

from collections.abc import Iterator

from tests.properties.rollout import Rollout
from tests.properties.server import done
from tests.properties.state import State, Step
from tests.properties.surroundings import around
from tests.properties.workers import looked, readings


def steps(rollout: Rollout, state: State) -> Iterator[Step]:
    """Everything that may happen next."""
    yield from around(rollout, state)
    for i, write in enumerate(state.late):
        rest = state._replace(late=state.late[:i] + state.late[i + 1 :])
        yield Step(f"a worker dies before {write.kind} n{write.node}", rest)
        yield from looked(rollout, rest, write) if write.kind == "look" else (done(rollout, rest, write),)
    if len(state.late) < rollout.workers:
        yield from readings(rollout, state)
