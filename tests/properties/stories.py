"""Tells stories about the small cluster: what one operator does that nobody disturbs, and what happens line by line.

A line is what a step is called; `n0: ` and `a worker ` may be left out of it. `until X` lets one operator work undisturbed until X is written,
while whoever was stopped before stays so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tests.properties import moves, server
from tests.properties.invariants import broken, false_success, quiet
from tests.properties.rollout import Rollout
from tests.properties.state import State, Step, renamed
from tests.properties.surroundings import around
from tests.properties.workers import readings

ENOUGH: Final = 3000  # steps; whoever has not come to an end by then never does


@dataclass(frozen=True, kw_only=True)
class Told:
    """What happened, one step after another, what each has broken, and the lines that could not happen."""

    steps: tuple[Step, ...]
    broke: tuple[str, ...]
    refused: tuple[str, ...]

    @property
    def state(self) -> State:
        """How it ends."""
        return self.steps[-1].state

    @property
    def written(self) -> list[str]:
        """All that was written."""
        return [s.what.replace("written: ", "") for s in self.steps if "written: " in s.what]

    @property
    def all_broken(self) -> set[str]:
        """Every invariant that was broken on the way."""
        return {number for line in self.broke for number in line.split()}


def tell(rollout: Rollout, lines: Sequence[str]) -> Told:
    """Let happen what the lines say, as far as it can."""
    state, told, refused = renamed(rollout.initial()), list[Step](), list[str]()
    for line in lines:
        steps = (
            _until(rollout, state, line.removeprefix("until "))
            if line.startswith("until ")
            else _one(rollout, state, line)
        )
        if not steps:
            refused.append(line)
        told += steps
        state = told[-1].state if told else state
    return Told(steps=tuple(told), broke=tuple(broken_by(rollout, step) for step in told), refused=tuple(refused))


def calm_down(rollout: Rollout, state: State) -> tuple[State, set[str]]:
    """Whoever is late is dead; one operator goes on until nothing is to be done. Returns how it ends, and what is broken on the way."""
    patient, state, found = replace(rollout, patient=True), renamed(state._replace(late=())), set[str]()
    for _ in range(ENOUGH):
        step = undisturbed(patient, state)
        if step is None:
            break
        state = step.state
        found |= set(broken_by(rollout, step).split())
    assert quiet(state), f"it never comes to rest: {state}"
    return state, found


def undisturbed(rollout: Rollout, state: State) -> Step | None:
    """What happens next where one operator is never stopped and nothing goes wrong; None when nothing is to be done."""
    for step in around(rollout, state):
        if step.helps:
            return step._replace(state=renamed(step.state))
    for step in readings(rollout, state):
        (added,) = (Counter(step.state.late) - Counter(state.late)).elements()
        done = server.done(rollout, state, added)
        return Step(done.what, renamed(done.state), f"{step.broken} {done.broken}".strip())
    return None


def _until(rollout: Rollout, state: State, written: str) -> list[Step]:
    patient, steps = replace(rollout, patient=True), list[Step]()
    for _ in range(ENOUGH):
        step = undisturbed(patient, state)
        if step is None or (steps and step.state == state):
            return []
        steps.append(step)
        state = step.state
        if step.what.replace("written: ", "") in {written, f"n0: {written}"}:
            return steps
    return []


def _one(rollout: Rollout, state: State, line: str) -> list[Step]:
    names = {line, f"n0: {line}", f"n0: a worker {line}", f"a worker {line}"}
    found = {renamed(s.state): s for s in moves.steps(rollout, state) if s.what in names}
    assert len(found) <= 1, f"{line!r} may mean {len(found)} things"
    return [step._replace(state=after) for after, step in found.items()]


def broken_by(rollout: Rollout, step: Step) -> str:
    """The invariants that a step breaks, or that do not hold after it."""
    false = "5" if false_success(step.state, rollout.path) else ""
    return f"{step.broken} {broken(step.state)} {false}".strip()
