"""One node's way, as a table: what each phase does, which exits it has, how long it may take.

`advance` gives the record's next state; whoever calls it persists that state under the resourceVersion of the record that was read, and
only then carries out `effects`. So every effect follows from a persisted state, and a crash anywhere is repaired by running it again.

Why it holds against a worker that is stopped between any check and any write (each rule taken away breaks an invariant):
* Objects that will be written are read before the record, facts after it; writes carry the resourceVersion of that earlier read.
* Entering Applying or RollingBack sets a fresh `step`. The assignment carries the step with it in one write, so each step is used once.
* Applying goes back to Draining only after its step was used up without effect. Rolling back always writes its step.
* A grant is taken by the record before it leaves the ledger, and stays in the ledger until the record is at rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from gpupartition.api.v1alpha1 import DrainMode, Phase
from gpupartition.domain.changes import (
    Change,
    answer_retry,
    begin_step,
    give_up,
    record_restart,
    released,
    retarget,
    retarget_dirty,
    settle_down,
)
from gpupartition.domain.guards import (
    Guard,
    acknowledged,
    assigned_under_a_holder,
    cancelled,
    config_there,
    difference,
    drained,
    expected_pool,
    former_pool_is_back,
    gone,
    quiesced,
    restart_due,
    retried,
    settled,
    superseded,
    superseded_by_what_is_there,
    unquiesced,
    unwanted,
    verified,
)
from gpupartition.domain.world import State, Step, World


@dataclass(frozen=True, slots=True)
class Exit:
    """A way out of a phase: taken when `when` holds, unless an earlier one of the row does. `note` is for people."""

    when: Guard
    to: Phase
    note: str
    change: Change = lambda state, _: state


@dataclass(frozen=True, slots=True)
class Row:
    """A phase: its exits in order, its time limit, and where it goes when that is over. No limit: it may wait for ever."""

    exits: tuple[Exit, ...]
    limit: Callable[[State, World], timedelta] | None = None
    late: Exit | None = None


def _limit(name: str) -> Callable[[State, World], timedelta]:
    return lambda _, world: getattr(world.limits, name)


def _draining(_: State, world: World) -> timedelta:
    return world.limits.draining_wait if world.drain is DrainMode.WAIT else world.limits.draining_when_idle


def _not(guard: Guard) -> Guard:
    return lambda state, world: not guard(state, world)


def _clean(guard: Guard) -> Guard:
    return lambda state, world: guard(state, world) and not state.dirty


def _dirty(guard: Guard) -> Guard:
    return lambda state, world: guard(state, world) and state.dirty


def _due(which: str) -> Guard:
    return lambda state, world: restart_due(state, world, getattr(state, which))


_GONE: Final = Exit(gone, Phase.ABORTING, "the node is gone", give_up)
_UNWANTED: Final = (
    Exit(_clean(unwanted), Phase.ABORTING, "the policy no longer wants this node", give_up),
    Exit(_dirty(unwanted), Phase.FAILED, "the policy no longer wants this node, whose hardware is unverified"),
    Exit(_clean(superseded_by_what_is_there), Phase.ABORTING, "the node has had the new target all along", give_up),
)

PHASES: Final[dict[Phase, Row]] = {
    Phase.ADMITTED: Row(
        (
            _GONE,
            *_UNWANTED,
            Exit(superseded, Phase.ADMITTED, "the policy wants another layout", retarget),
            Exit(config_there, Phase.QUIESCING, "the way back is on record and the config is in place"),
        ),
        _limit("admitted"),
        Exit(lambda *_: True, Phase.PENDING, "the config could not be put in place in time", settle_down),
    ),
    Phase.QUIESCING: Row(
        (
            _GONE,
            *_UNWANTED,
            Exit(superseded, Phase.QUIESCING, "the policy wants another layout", retarget),
            Exit(settled, Phase.DRAINING, "no new claim is allocated here"),
        ),
        _limit("quiescing"),
        Exit(lambda *_: True, Phase.ABORTING, "the quiesce was not confirmed in time", give_up),
    ),
    Phase.DRAINING: Row(
        (
            _GONE,
            *_UNWANTED,
            Exit(superseded, Phase.DRAINING, "the policy wants another layout", retarget),
            Exit(_not(quiesced), Phase.QUIESCING, "the quiesce was taken away"),
            Exit(drained, Phase.APPLYING, "no holder is left", begin_step),
        ),
        _draining,
        Exit(lambda *_: True, Phase.ABORTING, "holders did not end in time", give_up),
    ),
    Phase.APPLYING: Row(
        (
            _GONE,
            Exit(cancelled, Phase.DRAINING, "a claim was allocated at the last moment"),
            Exit(assigned_under_a_holder, Phase.ROLLING_BACK, "a claim slipped past the quiesce", begin_step),
            Exit(_due("target"), Phase.APPLYING, "the driver's pod has to start anew", record_restart),
            Exit(acknowledged, Phase.VERIFYING, "the driver runs with the new config"),
        ),
        _limit("applying"),
        Exit(lambda *_: True, Phase.ROLLING_BACK, "the driver did not take the new config in time", begin_step),
    ),
    Phase.VERIFYING: Row(
        (
            _GONE,
            Exit(superseded, Phase.DRAINING, "the policy wants another layout", retarget),
            Exit(
                verified,
                Phase.RELEASING,
                "the node publishes exactly what is wanted",
                released(Phase.UP_TO_DATE),
            ),
        ),
        _limit("verifying"),
        Exit(lambda *_: True, Phase.ROLLING_BACK, "the node does not publish what is wanted", begin_step),
    ),
    Phase.RELEASING: Row(
        (
            Exit(
                lambda s, w: unquiesced(s, w) and s.outcome is Phase.ROLLED_BACK,
                Phase.ROLLED_BACK,
                "back on its former layout",
                settle_down,
            ),
            Exit(unquiesced, Phase.UP_TO_DATE, "open for claims with the new layout", settle_down),
        ),
    ),
    Phase.ROLLING_BACK: Row(
        (
            _GONE,
            Exit(_due("previous"), Phase.ROLLING_BACK, "the driver's pod has to start anew", record_restart),
            Exit(
                former_pool_is_back,
                Phase.RELEASING,
                "the node publishes its former layout again",
                released(Phase.ROLLED_BACK),
            ),
        ),
        lambda _, world: world.limits.applying + world.limits.verifying,
        Exit(lambda *_: True, Phase.FAILED, "the former layout did not come back in time"),
    ),
    Phase.FAILED: Row(
        (
            _GONE,
            Exit(retried, Phase.ROLLING_BACK, "somebody asked to try again", answer_retry),
            Exit(unwanted, Phase.ROLLING_BACK, "the policy no longer wants this node", begin_step),
            Exit(superseded, Phase.DRAINING, "the policy wants another layout", retarget_dirty),
        ),
    ),
    Phase.ABORTING: Row((Exit(unquiesced, Phase.PENDING, "open for claims again, unchanged", settle_down),)),
}


def advance(state: State, world: World) -> Step | None:
    """The next state of a node in flight, or None while it stays as it is. Success beats lateness: never undo what has just worked."""
    row = PHASES[state.phase]
    for way in row.exits:
        if way.when(state, world):
            return _take(way, state, world)
    late = row.limit is not None and state.since is not None and world.now - state.since >= row.limit(state, world)
    if late and row.late is not None:
        way = row.late
        if state.dirty and way.to is Phase.ABORTING:
            way = Exit(way.when, Phase.FAILED, way.note)
        return _take(way, state, world)
    return None


def _take(way: Exit, state: State, world: World) -> Step:
    changed = way.change(state, world)
    same_phase = way.to is state.phase
    reason, message = reason_of(way, state), why_late(way, state, world)
    return Step(
        changed.model_copy(
            update={
                "phase": way.to,
                "since": state.since if same_phase and changed.target == state.target else world.now,
                "reason": reason,
                "message": message,
            }
        ),
        message,
    )


def reason_of(way: Exit, state: State) -> str:
    """One CamelCase word for the record: what a phase was left for, kept while a failure is being undone."""
    if way.to in {Phase.ROLLING_BACK, Phase.FAILED}:
        return f"{state.phase}Failed"
    if way.to in {Phase.RELEASING, Phase.ROLLED_BACK} and state.reason.endswith("Failed"):
        return state.reason
    return ""


def why_late(way: Exit, state: State, world: World) -> str:
    """The exit's note, and where a node fails, what is really there."""
    failure_goes_on = state.reason.endswith("Failed") and way.to in {Phase.RELEASING, Phase.ROLLED_BACK}
    if failure_goes_on:
        return state.message
    if way.to not in {Phase.ROLLING_BACK, Phase.FAILED}:
        return way.note
    seen = world.observed
    facts = [
        "" if seen.ready else "its driver pod is not ready",
        seen.pool.problem,
        difference(seen.pool, expected_pool(state)),
    ]
    return f"{way.note}: " + "; ".join(f for f in facts if f) if any(facts) else way.note
