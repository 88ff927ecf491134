"""One node's way, as a table: which exits each phase has, what changes in the record with them, how long the phase may take.

What is true of a node is said in guards.py, steps.py (of the driver's pods, too) and recovery.py, what changes in changes.py; lifecycle.py goes
through the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from gpupartition.api.v1alpha1 import OnTimeout, Phase
from gpupartition.domain import changes, guards, recovery, steps
from gpupartition.domain.changes import Change
from gpupartition.domain.destination import lacks_only_gpus
from gpupartition.domain.guards import Guard, both, clean, dirty, not_
from gpupartition.domain.recovery import recovering, steady
from gpupartition.domain.world import State, World


def as_it_is(state: State, _: World) -> State:
    """Nothing changes but the phase."""
    return state


@dataclass(frozen=True, slots=True)
class Exit:
    """A way out of a phase: taken when `when` holds, unless an earlier one of the row does. `note` is for people."""

    when: Guard
    to: Phase
    note: str
    change: Change = as_it_is
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
    return recovery.clock_of(state, world, world.limits.verifying)


def _limit(name: str) -> Callable[[State, World], timedelta]:
    return lambda _, world: getattr(world.limits, name)


def _draining(_: State, world: World) -> timedelta:
    more = world.limits.force_delete if world.drain.on_timeout is OnTimeout.FORCE_DELETE else timedelta(0)
    return guards.drain_time(world) + more


def _blind(state: State, world: World) -> bool:
    """Where all is there but a GPU, not so late that a pod that starts anew would not be up when the phase's limit is over."""
    remaining, takes = time_left(state, world), min(world.limits.start_anew, world.limits.verifying / 2)
    late = remaining is not None and remaining <= takes
    return steps.looked_too_early(state, world) and not (late and lacks_only_gpus(state, world))


def _give_up(note: str, when: Guard = always) -> tuple[Exit, ...]:
    """Hardware of which nothing is verified must not be let go by giving up."""
    return (
        Exit(dirty(when), Phase.FAILED, f"{note}, and its hardware is unverified"),
        Exit(when, Phase.ABORTING, note, changes.give_up),
    )


def _fail(note: str, when: Guard = always) -> tuple[Exit, ...]:
    """What has been touched is brought back, unless somebody wants to see it as it is."""
    return (
        Exit(both(when, guards.halts), Phase.FAILED, f"{note}, and the policy says Halt", changes.failed),
        Exit(when, Phase.ROLLING_BACK, note, changes.begin_undoing),
    )


def _told_again(phase: Phase, begin: Change) -> tuple[Exit, ...]:
    """A pod that has not seen its config is replaced, once, and told again: the new one has what was there at its start."""
    return (
        Exit(
            steps.knew_too_little,
            phase,
            "the pod that carries out the assignment has not seen its config",
            changes.record_agent_restart,
        ),
        Exit(steps.knows_now, phase, "a new pod has seen the config, and is told again", begin),
    )


DEGRADED: Final = "HardwareDegraded"
ABANDONED: Final = "Abandoned"
CONFIG_LATE: Final = "ConfigLate"
_BACK: Final = "the node is back and publishes what it did"
_GIVEN_UP: Final = (
    "given up as it is (gpupartition.dev/abandon): what it publishes is unverified, its label and config stay, "
    "and its devices are open to new claims"
)
_GONE: Final = Exit(guards.gone, Phase.ABORTING, "the node is gone", changes.give_up)
_POINTLESS: Final = (
    Exit(clean(guards.unwanted), Phase.ABORTING, "the policy no longer wants this node", changes.give_up),
    Exit(
        clean(guards.superseded_by_what_is_there),
        Phase.ABORTING,
        "the node has had the new target all along",
        changes.give_up,
    ),
)
_STUCK: Final = Exit(
    dirty(guards.unwanted), Phase.FAILED, "the policy no longer wants this node, and its hardware is unverified"
)

PHASES: Final[dict[Phase, Row]] = {
    Phase.ADMITTED: Row(
        (
            _GONE,
            *_POINTLESS,
            Exit(guards.superseded, Phase.ADMITTED, "the policy wants another layout", changes.admitted),
            Exit(
                both(guards.config_there, guards.under_its_users),
                Phase.APPLYING,
                "devices in use stay, and all others change beside them",
                changes.begin_step,
            ),
            Exit(
                guards.config_there,
                Phase.QUIESCING,
                "the way back is on record and the config is in place",
                changes.close_first,
            ),
        ),
        _limit("admitted"),
        (
            Exit(
                always,
                Phase.PENDING,
                "the config could not be put in place in time",
                changes.settle_last,
                CONFIG_LATE,
            ),
        ),
    ),
    Phase.QUIESCING: Row(
        (
            _GONE,
            *_POINTLESS,
            _STUCK,
            Exit(recovering(guards.quiesced), Phase.VERIFYING, "closed to new claims, and compared with what it was"),
            Exit(steady(guards.settled), Phase.DRAINING, "no new claim is allocated here"),
            Exit(
                clean(guards.closed_otherwise),
                Phase.ABORTING,
                "no controller answers its DeviceTaintRule, and the driver says another way to close it by now",
                changes.wait_again,
            ),
        ),
        _quiescing,
        (*_give_up(changes.UNANSWERED, guards.unanswered), *_give_up("the quiesce was not confirmed in time")),
    ),
    Phase.DRAINING: Row(
        (
            _GONE,
            *_POINTLESS,
            _STUCK,
            Exit(guards.superseded, Phase.DRAINING, "the policy wants another layout", changes.retarget),
            Exit(not_(guards.quiesced), Phase.QUIESCING, "the quiesce was taken away"),
            Exit(
                guards.misjudged,
                Phase.DRAINING,
                "what changes is not what it was when the node was admitted",
                changes.judge_anew,
            ),
            Exit(guards.drained, Phase.APPLYING, "no holder is left", changes.begin_step),
        ),
        _draining,
        (
            Exit(
                clean(guards.halts_undrained),
                Phase.ABORTING,
                "holders did not end in time, and the policy says Halt",
                changes.stop_undrained,
            ),
            *_give_up("holders did not end in time"),
        ),
    ),
    Phase.APPLYING: Row(
        (
            _GONE,
            Exit(steps.cancelled, Phase.DRAINING, "a claim was allocated at the last moment", changes.close_first),
            Exit(
                steps.assigned_under_a_holder,
                Phase.ROLLING_BACK,
                "a claim slipped past the quiesce",
                changes.begin_undoing,
            ),
            *_told_again(Phase.APPLYING, changes.begin_step),
            *_fail("the driver failed to take the new config", steps.gave_up),
            Exit(steps.restart_due, Phase.APPLYING, "the driver's pod has to start anew", changes.record_restart),
            Exit(guards.acknowledged, Phase.VERIFYING, "the driver runs with the new config"),
        ),
        _limit("applying"),
        (
            Exit(
                steps.uncounted, Phase.APPLYING, "the driver's pod has to count the GPUs anew", changes.record_restart
            ),
            *_fail("the driver did not take the new config in time"),
        ),
    ),
    Phase.VERIFYING: Row(
        (
            _GONE,
            Exit(recovery.left, Phase.ABORTING, "the policy no longer wants this node", changes.wait_again),
            Exit(recovery.recovered_and_wanted, Phase.RELEASING, _BACK, changes.released(Phase.UP_TO_DATE)),
            Exit(
                recovery.recovered,
                Phase.ABORTING,
                f"{_BACK}, and the policy wants another layout by now",
                changes.wait_again,
            ),
            Exit(_blind, Phase.VERIFYING, "the driver's pod has to start anew", changes.record_restart),
            Exit(
                steady(both(guards.closed, guards.verified_but_superseded)),
                Phase.DRAINING,
                "the policy wants another layout by now",
                changes.retarget_verified,
            ),
            Exit(
                steady(guards.verified),
                Phase.RELEASING,
                "the node publishes exactly what is wanted",
                changes.released(Phase.UP_TO_DATE),
            ),
        ),
        _verifying,
        (
            Exit(
                guards.verified_but_for_lost_gpus,
                Phase.RELEASING,
                "GPUs are missing, and the others publish exactly what is wanted",
                changes.released(Phase.UP_TO_DATE),
                DEGRADED,
            ),
            Exit(
                recovery.unassigned,
                Phase.ABORTING,
                "the node came back without what was cut by hand, and is to get it as any other node",
                changes.wait_again,
            ),
            Exit(recovering(always), Phase.FAILED, "the node did not come back with what it published", changes.failed),
            *_fail("the node does not publish what is wanted"),
        ),
    ),
    Phase.RELEASING: Row(
        (
            Exit(guards.unquiesced_after_failure, Phase.ROLLED_BACK, "back on its former layout", changes.settle_down),
            Exit(guards.unquiesced, Phase.UP_TO_DATE, "open for claims with the new layout", changes.settle_down),
        ),
    ),
    Phase.ROLLING_BACK: Row(
        (
            _GONE,
            *_told_again(Phase.ROLLING_BACK, changes.begin_step_back),
            Exit(steps.gave_up, Phase.FAILED, "the driver failed to take the former config", changes.failed),
            Exit(steps.restart_due, Phase.ROLLING_BACK, "the driver's pod has to start anew", changes.record_restart),
            Exit(
                both(guards.former_pool_is_back_but_for_lost_gpus, steps.looked_again),
                Phase.RELEASING,
                "GPUs are missing after another look too, and the others publish the former layout again",
                changes.released(Phase.ROLLED_BACK),
            ),
            Exit(_blind, Phase.ROLLING_BACK, "the driver's pod has to start anew once more", changes.record_restart),
            Exit(
                guards.former_pool_is_back,
                Phase.RELEASING,
                "the node publishes its former layout again",
                changes.released(Phase.ROLLED_BACK),
            ),
            Exit(guards.hopeless, Phase.FAILED, "somebody asked to let go of it as it is", changes.failed),
        ),
        lambda _, world: world.limits.applying + world.limits.verifying,
        (
            Exit(
                guards.former_pool_is_back_but_for_lost_gpus,
                Phase.RELEASING,
                "GPUs are missing, and the others publish the former layout again",
                changes.released(Phase.ROLLED_BACK),
            ),
            Exit(always, Phase.FAILED, "the former layout did not come back in time", changes.failed),
        ),
    ),
    Phase.FAILED: Row(
        (
            _GONE,
            Exit(guards.let_go, Phase.ABORTING, _GIVEN_UP, changes.wait_again, ABANDONED),
            Exit(recovery.left, Phase.ABORTING, "the policy no longer wants this node", changes.wait_again),
            Exit(recovery.recovered_and_wanted, Phase.RELEASING, _BACK, changes.released(Phase.UP_TO_DATE)),
            Exit(
                guards.mended,
                Phase.RELEASING,
                "the node publishes its former layout after all",
                changes.released(Phase.ROLLED_BACK),
            ),
            # What was asked stays open: once the node is back, the same request has it try the target again.
            Exit(guards.retried, Phase.ROLLING_BACK, "somebody asked to try again", changes.begin_step_back),
            Exit(
                guards.worth_going_back,
                Phase.ROLLING_BACK,
                "nothing is wanted but what the node goes back to",
                changes.begin_step_back,
            ),
            Exit(
                both(guards.superseded, not_(guards.wanted_back)),
                Phase.DRAINING,
                "the policy wants another layout",
                changes.retarget_dirty,
            ),
        ),
    ),
    Phase.ABORTING: Row(
        (
            Exit(
                guards.unquiesced_after_failure,
                Phase.ROLLED_BACK,
                "open for claims again, unchanged, and counts as failed",
                changes.settle_down,
            ),
            Exit(guards.unquiesced, Phase.PENDING, "open for claims again, unchanged", changes.settle_down),
        )
    ),
}


def time_left(state: State, world: World) -> timedelta | None:
    """Until the phase's limit is over; None where it may wait for ever."""
    row = PHASES[state.phase]
    limit = row.limit(state, world) if row.limit is not None else None
    return None if limit is None or state.since is None else limit - (world.now - state.since)
