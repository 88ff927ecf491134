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

from gpupartition.api.v1alpha1 import OnTimeout, Phase
from gpupartition.domain.changes import (
    UNANSWERED,
    Change,
    admitted,
    begin_step,
    begin_step_back,
    begin_undoing,
    cause,
    close_first,
    failed,
    give_up,
    in_the_way,
    judge_anew,
    record_agent_restart,
    record_restart,
    released,
    retarget,
    retarget_dirty,
    retarget_verified,
    settle_down,
    stop_undrained,
    wait_again,
    with_blockers,
    with_doubt,
    with_what_lacks,
)
from gpupartition.domain.guards import (
    STRANDED,
    Guard,
    acknowledged,
    assigned,
    assigned_under_a_holder,
    cancelled,
    config_there,
    drain_time,
    drained,
    expected_pool,
    former_pool_is_back,
    former_pool_is_back_but_for_lost_gpus,
    gave_up,
    goes_live,
    gone,
    halts,
    halts_undrained,
    hopeless,
    in_vain,
    knew_too_little,
    knows_now,
    lacking,
    lacks_only_gpus,
    let_go,
    looked_again,
    looked_too_early,
    mended,
    misjudged,
    missing_gpus,
    quiesced,
    restart_due,
    retried,
    settled,
    superseded,
    superseded_by_what_is_there,
    unanswered,
    under_its_users,
    unquiesced,
    unquiesced_after_failure,
    unwanted,
    verified,
    verified_but_for_lost_gpus,
    verified_but_superseded,
    wanted_back,
)
from gpupartition.domain.recovery import (
    clock_of,
    left,
    recovered,
    recovered_and_wanted,
    recovering,
    steady,
    unassigned,
)
from gpupartition.domain.world import State, Step, World


def _as_it_is(state: State, _: World) -> State:
    return state


@dataclass(frozen=True, slots=True)
class Exit:
    """A way out of a phase: taken when `when` holds, unless an earlier one of the row does. `note` is for people."""

    when: Guard
    to: Phase
    note: str
    change: Change = _as_it_is
    reason: str = ""  # for the record, where neither failing nor arriving says enough


@dataclass(frozen=True, slots=True)
class Row:
    """A phase: its exits in order, its time limit, and the exits that are open when that is over. No limit: it may wait for ever."""

    exits: tuple[Exit, ...]
    limit: Callable[[State, World], timedelta | None] | None = None
    late: tuple[Exit, ...] = ()


def always(_: State, __: World) -> bool:
    """For exits that only lateness opens."""
    return True


def _quiescing(state: State, world: World) -> timedelta | None:
    return None if state.recovering else world.limits.quiescing


def _verifying(state: State, world: World) -> timedelta | None:
    return clock_of(state, world, world.limits.verifying)


def _limit(name: str) -> Callable[[State, World], timedelta]:
    return lambda _, world: getattr(world.limits, name)


def _draining(_: State, world: World) -> timedelta:
    more = world.limits.force_delete if world.drain.on_timeout is OnTimeout.FORCE_DELETE else timedelta(0)
    return drain_time(world) + more


def _not(guard: Guard) -> Guard:
    return lambda state, world: not guard(state, world)


def _closed(state: State, _: World) -> bool:
    """For a node that was never closed another layout is another change."""
    return not goes_live(state)


def _clean(guard: Guard) -> Guard:
    return lambda state, world: guard(state, world) and not state.dirty


def _dirty(guard: Guard) -> Guard:
    return lambda state, world: guard(state, world) and state.dirty


def _wanted_back(state: State, world: World) -> bool:
    """A node that would go back to what it was to be is not tried again and again: somebody has to ask. What is given up is not tried."""
    target, previous = state.target, state.previous
    elsewhere = target is not None and previous is not None and target.fingerprint != previous.fingerprint
    given_up = world.abandoned and unwanted(state, world)
    untried = state.reason != STRANDED and (elsewhere or unwanted(state, world))
    return wanted_back(state, world) and untried and not given_up


def _due(which: str) -> Guard:
    return lambda state, world: restart_due(state, world, getattr(state, which))


def _blind(which: str) -> Guard:
    """Where all is there but a GPU, not so late that a pod that starts anew would not be up when the phase's limit is over."""

    def due(state: State, world: World) -> bool:
        remaining, takes = time_left(state, world), min(world.limits.start_anew, world.limits.verifying / 2)
        late = remaining is not None and remaining <= takes
        return looked_too_early(state, world, getattr(state, which)) and not (late and lacks_only_gpus(state, world))

    return due


def _uncounted(state: State, world: World) -> bool:
    """The plugin publishes what it found before this step: perhaps that fails because a GPU has died since."""
    recorded = state.restart is not None and state.restart.step == state.step
    looks = world.observed.restarts and world.observed.plugin is not None
    return assigned(state, world) and looks and not recorded and not world.holders


def _give_up(note: str, when: Guard = always) -> tuple[Exit, ...]:
    """Hardware of which nothing is verified must not be let go by giving up."""
    return (
        Exit(_dirty(when), Phase.FAILED, f"{note}, and its hardware is unverified"),
        Exit(when, Phase.ABORTING, note, give_up),
    )


def _fail(note: str, when: Guard = always) -> tuple[Exit, ...]:
    """What has been touched is brought back, unless somebody wants to see it as it is."""
    return (
        Exit(_both(when, halts), Phase.FAILED, f"{note}, and the policy says Halt", failed),
        Exit(when, Phase.ROLLING_BACK, note, begin_undoing),
    )


def _both(one: Guard, other: Guard) -> Guard:
    return lambda state, world: one(state, world) and other(state, world)


def _told_again(phase: Phase, begin: Change) -> tuple[Exit, ...]:
    """A pod that has not seen its config is replaced, once, and told again: the new one has what was there at its start."""
    return (
        Exit(
            knew_too_little,
            phase,
            "the pod that carries out the assignment has not seen its config",
            record_agent_restart,
        ),
        Exit(knows_now, phase, "a new pod has seen the config, and is told again", begin),
    )


DEGRADED: Final = "HardwareDegraded"
ABANDONED: Final = "Abandoned"
_BACK: Final = "the node is back and publishes what it did"
_GIVEN_UP: Final = (
    "given up as it is (gpupartition.dev/abandon): what it publishes is unverified, its label and config stay, "
    "and its devices are open to new claims"
)
_GONE: Final = Exit(gone, Phase.ABORTING, "the node is gone", give_up)
_POINTLESS: Final = (
    Exit(_clean(unwanted), Phase.ABORTING, "the policy no longer wants this node", give_up),
    Exit(_clean(superseded_by_what_is_there), Phase.ABORTING, "the node has had the new target all along", give_up),
)
_STUCK: Final = Exit(
    _dirty(unwanted), Phase.FAILED, "the policy no longer wants this node, and its hardware is unverified"
)

PHASES: Final[dict[Phase, Row]] = {
    Phase.ADMITTED: Row(
        (
            _GONE,
            *_POINTLESS,
            Exit(superseded, Phase.ADMITTED, "the policy wants another layout", admitted),
            Exit(
                _both(config_there, under_its_users),
                Phase.APPLYING,
                "devices in use stay, and all others change beside them",
                begin_step,
            ),
            Exit(config_there, Phase.QUIESCING, "the way back is on record and the config is in place", close_first),
        ),
        _limit("admitted"),
        (Exit(always, Phase.PENDING, "the config could not be put in place in time", settle_down),),
    ),
    Phase.QUIESCING: Row(
        (
            _GONE,
            *_POINTLESS,
            _STUCK,
            Exit(recovering(quiesced), Phase.VERIFYING, "closed to new claims, and compared with what it was"),
            Exit(steady(settled), Phase.DRAINING, "no new claim is allocated here"),
        ),
        _quiescing,
        (*_give_up(UNANSWERED, unanswered), *_give_up("the quiesce was not confirmed in time")),
    ),
    Phase.DRAINING: Row(
        (
            _GONE,
            *_POINTLESS,
            _STUCK,
            Exit(superseded, Phase.DRAINING, "the policy wants another layout", retarget),
            Exit(_not(quiesced), Phase.QUIESCING, "the quiesce was taken away"),
            Exit(misjudged, Phase.DRAINING, "what changes is not what it was when the node was admitted", judge_anew),
            Exit(drained, Phase.APPLYING, "no holder is left", begin_step),
        ),
        _draining,
        (
            Exit(
                _clean(halts_undrained),
                Phase.ABORTING,
                "holders did not end in time, and the policy says Halt",
                stop_undrained,
            ),
            *_give_up("holders did not end in time"),
        ),
    ),
    Phase.APPLYING: Row(
        (
            _GONE,
            Exit(cancelled, Phase.DRAINING, "a claim was allocated at the last moment", close_first),
            Exit(assigned_under_a_holder, Phase.ROLLING_BACK, "a claim slipped past the quiesce", begin_undoing),
            *_told_again(Phase.APPLYING, begin_step),
            *_fail("the driver failed to take the new config", gave_up),
            Exit(_due("target"), Phase.APPLYING, "the driver's pod has to start anew", record_restart),
            Exit(acknowledged, Phase.VERIFYING, "the driver runs with the new config"),
        ),
        _limit("applying"),
        (
            Exit(_uncounted, Phase.APPLYING, "the driver's pod has to count the GPUs anew", record_restart),
            *_fail("the driver did not take the new config in time"),
        ),
    ),
    Phase.VERIFYING: Row(
        (
            _GONE,
            Exit(left, Phase.ABORTING, "the policy no longer wants this node", wait_again),
            Exit(recovered_and_wanted, Phase.RELEASING, _BACK, released(Phase.UP_TO_DATE)),
            Exit(recovered, Phase.ABORTING, f"{_BACK}, and the policy wants another layout by now", wait_again),
            Exit(_blind("target"), Phase.VERIFYING, "the driver's pod has to start anew", record_restart),
            Exit(
                steady(_both(_closed, verified_but_superseded)),
                Phase.DRAINING,
                "the policy wants another layout by now",
                retarget_verified,
            ),
            Exit(
                steady(verified),
                Phase.RELEASING,
                "the node publishes exactly what is wanted",
                released(Phase.UP_TO_DATE),
            ),
        ),
        _verifying,
        (
            Exit(
                verified_but_for_lost_gpus,
                Phase.RELEASING,
                "GPUs are missing, and the others publish exactly what is wanted",
                released(Phase.UP_TO_DATE),
                DEGRADED,
            ),
            Exit(
                unassigned,
                Phase.ABORTING,
                "the node came back without what was cut by hand, and is to get it as any other node",
                wait_again,
            ),
            Exit(recovering(always), Phase.FAILED, "the node did not come back with what it published", failed),
            *_fail("the node does not publish what is wanted"),
        ),
    ),
    Phase.RELEASING: Row(
        (
            Exit(unquiesced_after_failure, Phase.ROLLED_BACK, "back on its former layout", settle_down),
            Exit(unquiesced, Phase.UP_TO_DATE, "open for claims with the new layout", settle_down),
        ),
    ),
    Phase.ROLLING_BACK: Row(
        (
            _GONE,
            *_told_again(Phase.ROLLING_BACK, begin_step_back),
            Exit(gave_up, Phase.FAILED, "the driver failed to take the former config", failed),
            Exit(_due("previous"), Phase.ROLLING_BACK, "the driver's pod has to start anew", record_restart),
            Exit(
                _both(former_pool_is_back_but_for_lost_gpus, looked_again),
                Phase.RELEASING,
                "GPUs are missing after another look too, and the others publish the former layout again",
                released(Phase.ROLLED_BACK),
            ),
            Exit(
                _blind("previous"), Phase.ROLLING_BACK, "the driver's pod has to start anew once more", record_restart
            ),
            Exit(
                former_pool_is_back,
                Phase.RELEASING,
                "the node publishes its former layout again",
                released(Phase.ROLLED_BACK),
            ),
            Exit(hopeless, Phase.FAILED, "somebody asked to let go of it as it is", failed),
        ),
        lambda _, world: world.limits.applying + world.limits.verifying,
        (
            Exit(
                former_pool_is_back_but_for_lost_gpus,
                Phase.RELEASING,
                "GPUs are missing, and the others publish the former layout again",
                released(Phase.ROLLED_BACK),
            ),
            Exit(always, Phase.FAILED, "the former layout did not come back in time", failed),
        ),
    ),
    Phase.FAILED: Row(
        (
            _GONE,
            Exit(let_go, Phase.ABORTING, _GIVEN_UP, wait_again, ABANDONED),
            Exit(left, Phase.ABORTING, "the policy no longer wants this node", wait_again),
            Exit(recovered_and_wanted, Phase.RELEASING, _BACK, released(Phase.UP_TO_DATE)),
            Exit(
                mended,
                Phase.RELEASING,
                "the node publishes its former layout after all",
                released(Phase.ROLLED_BACK),
            ),
            # What was asked stays open: once the node is back, the same request has it try the target again.
            Exit(retried, Phase.ROLLING_BACK, "somebody asked to try again", begin_step_back),
            Exit(_wanted_back, Phase.ROLLING_BACK, "nothing is wanted but what the node goes back to", begin_step_back),
            Exit(
                _both(superseded, _not(wanted_back)),
                Phase.DRAINING,
                "the policy wants another layout",
                retarget_dirty,
            ),
        ),
    ),
    Phase.ABORTING: Row(
        (
            Exit(
                unquiesced_after_failure,
                Phase.ROLLED_BACK,
                "open for claims again, unchanged, and counts as failed",
                settle_down,
            ),
            Exit(unquiesced, Phase.PENDING, "open for claims again, unchanged", settle_down),
        )
    ),
}


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
    waiting, note = WAITING.get(state.phase, (_as_it_is, ""))
    told = waiting(state, world)
    return None if told is state else Step(told, note)


def way_out(state: State, world: World) -> Exit | None:
    """The exit that is taken now. Success beats lateness: never undo what has just worked."""
    row, remaining = PHASES[state.phase], time_left(state, world)
    late = remaining is not None and remaining <= timedelta(0)
    return next((way for way in (*row.exits, *(row.late if late else ())) if way.when(state, world)), None)


def time_left(state: State, world: World) -> timedelta | None:
    """Until the phase's limit is over; None where it may wait for ever."""
    row = PHASES[state.phase]
    limit = row.limit(state, world) if row.limit is not None else None
    return None if limit is None or state.since is None else limit - (world.now - state.since)


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
        return f"{state.phase}Failed", f"{way.note}: {in_the_way(changed.blockers)}"
    if way.to not in {Phase.ROLLING_BACK, Phase.FAILED}:
        return "", way.note
    found = lacking(world.observed, expected_pool(state))
    stranded = state.phase is Phase.ROLLING_BACK and wanted_back(state, world)
    return STRANDED if stranded else f"{state.phase}Failed", f"{way.note}: {found}" if found else way.note
