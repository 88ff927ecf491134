"""One node's way through the table of its phases, a turn at a time.

`advance` gives the record's next state; whoever calls it persists that state under the resourceVersion of the record that was read, and
only then carries out `effects`. So every effect follows from a persisted state, and a crash anywhere is repaired by running it again.

Why it holds against a worker that is stopped between any check and any write (each rule taken away breaks an invariant):
* Objects that will be written are read before the record, facts after it; writes carry the resourceVersion of that earlier read.
* Entering Applying or RollingBack sets a fresh `step`. The assignment carries the step with it in one write, so each step is used once.
* Applying goes back to Draining only after its step was used up without effect. Rolling back always writes its step.
* A grant is taken by the record before it leaves the ledger, and stays in the ledger until the record is at rest.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from gpupartition.api.v1alpha1 import Phase
from gpupartition.domain.changes import (
    UNANSWERED,
    Change,
    cause,
    in_the_way,
    with_blockers,
    with_doubt,
    with_what_lacks,
)
from gpupartition.domain.destination import STRANDED, expected_now, expected_pool, in_vain, lacking, missing_gpus
from gpupartition.domain.guards import (
    wanted_back,
)
from gpupartition.domain.phases import ABANDONED, DEGRADED, PHASES, Exit, as_it_is, time_left
from gpupartition.domain.world import State, Step, World

# What the record says meanwhile of what the node waits for.
WAITING: Final[dict[Phase, tuple[Change, str]]] = {
    Phase.QUIESCING: (with_doubt, UNANSWERED),
    Phase.DRAINING: (with_blockers, "waits for other holders than before"),
    Phase.APPLYING: (with_what_lacks, "the driver takes its time"),
    Phase.VERIFYING: (with_what_lacks, "the driver takes its time"),
    Phase.ROLLING_BACK: (with_what_lacks, "the driver takes its time"),
}


def advance(state: State, world: World) -> Step | None:
    """The next state of a node in flight, or None while it stays as it is."""
    way = way_out(state, world)
    if way is not None:
        return _take(way, state, world)
    waiting, note = WAITING.get(state.phase, (as_it_is, ""))
    told = waiting(state, world)
    return None if told is state else Step(told, note)


def way_out(state: State, world: World) -> Exit | None:
    """The exit that is taken now. Success beats lateness: never undo what has just worked."""
    row, remaining = PHASES[state.phase], time_left(state, world)
    late = remaining is not None and remaining <= timedelta(0)
    return next((way for way in (*row.exits, *(row.late if late else ())) if way.when(state, world)), None)


def _take(way: Exit, state: State, world: World) -> Step:
    changed = way.change(state, world)
    same_phase = way.to is state.phase
    reason, message = _why(way, state, changed, world)
    return Step(
        changed.model_copy(
            update={
                "phase": way.to,
                "since": state.since if same_phase and changed.target == state.target else world.now,
                "reason": reason,
                "message": message,
            }
        ),
        way.note if same_phase else message,
    )


def _why(way: Exit, state: State, changed: State, world: World) -> tuple[str, str]:
    """One CamelCase word and one sentence for the record. The cause of a failure is kept until it has been undone or has grown worse."""
    if way.reason == DEGRADED:
        return DEGRADED, missing_gpus(world.observed.pool, expected_pool(state))
    if way.reason:
        return way.reason, way.note
    if state.phase is Phase.ABORTING and state.reason == ABANDONED:
        return state.reason, state.message
    undoing = state.phase in {Phase.ROLLING_BACK, Phase.RELEASING, Phase.FAILED, Phase.ABORTING} and bool(state.reason)
    undone = {Phase.ROLLING_BACK, Phase.RELEASING, Phase.ROLLED_BACK, Phase.UP_TO_DATE}
    if state.phase is Phase.FAILED and way.to is Phase.RELEASING:
        return (state.reason, f"{way.note}; before, {state.message}") if in_vain(state) else ("", way.note)
    if undoing and way.to in undone:
        return state.reason, cause(state)
    if way.to is Phase.ABORTING and changed.outcome is Phase.ROLLED_BACK:
        return f"{state.phase}Failed", f"{way.note}: {in_the_way(state, world)}"
    if way.to not in {Phase.ROLLING_BACK, Phase.FAILED}:
        return "", way.note
    found = lacking(world.observed, expected_pool(state))
    if not found and state.phase is Phase.VERIFYING and expected_now(state, world):
        found = "it does now, and did not for long enough at a time"
    stranded = state.phase is Phase.ROLLING_BACK and wanted_back(state, world)
    return STRANDED if stranded else f"{state.phase}Failed", f"{way.note}: {found}" if found else way.note
