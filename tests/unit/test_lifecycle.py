"""One node's way: every exit of every phase, and the rules that the table as a whole must keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import pytest
from tests.unit.worlds import (
    EIGHT,
    FORMER_STEP,
    FRESH,
    HALVES,
    HALVES_RESTARTED,
    LIMITS,
    LONG,
    NEVER,
    QUARTERS,
    STEP,
    T0,
    TOKEN,
    WHOLE,
    WHOLE_UPGRADED,
    cut,
    holder,
    quiesce,
    record,
    seen,
    several,
    world,
)

from gpupartition.api.v1alpha1 import Drain, DrainMode, NodeStateStatus, OnFailure, OnTimeout, Phase, Restart
from gpupartition.domain.backend import Config, Observation
from gpupartition.domain.changes import UNANSWERED
from gpupartition.domain.destination import IN_VAIN, STRANDED
from gpupartition.domain.lifecycle import advance, way_out
from gpupartition.domain.phases import PHASES
from gpupartition.domain.pool import Pool
from gpupartition.domain.rest import rest
from gpupartition.domain.world import AT_REST, Limits, World

Case = tuple[NodeStateStatus, World]
SECOND: Final = timedelta(seconds=1)
IN_FLIGHT: Final = tuple(PHASES)


def same_assignment(phase: Phase, **more: Any) -> NodeStateStatus:
    """On the way to another config by the same value: only the driver's pod can pick it up."""
    return record(phase, target=HALVES_RESTARTED, previous=HALVES, **more)


def failing(layout: Config, *, agent: str = "agent-1", stale: bool = False) -> Observation:
    """The driver says that it failed; the pod that says so may have seen too little."""
    pod = {"metadata": {"name": agent, "namespace": "gpus", "uid": agent}}
    return replace(seen(layout, step=STEP, ready=False), failed="it failed", acknowledged=False, agent=pod, stale=stale)


def too_early(
    layout: Config = HALVES,
    plugin: str = "pod-1",
    *,
    publishes: Config = WHOLE,
    step: str = FORMER_STEP,
) -> Observation:
    """A plugin that found the GPUs as they were before, and nothing tells it that they have been cut since."""
    return replace(seen(layout, step=step, pool=publishes.pool, plugin=plugin), restarts=True)


def replaced(phase: Phase) -> NodeStateStatus:
    """The pod that had not seen its config was to go in this step."""
    return record(phase, restart=Restart(pod_uid="agent-1", step=STEP, agent=True))


def lost(phase: Phase) -> NodeStateStatus:
    """A verified node that was restarted and is verified again."""
    return record(phase, previous=HALVES, recovering=True, step=FORMER_STEP)


def stayed_away() -> NodeStateStatus:
    """A node whose former layout did not come back."""
    return record(Phase.FAILED, reason=IN_VAIN, message="the former layout did not come back in time")


def gone(phase: Phase) -> Case:
    return record(phase), world(there=False)


GONE: Final = "the node is gone"
UNWANTED: Final = "the policy no longer wants this node"
HALTED: Final = ", and the policy says Halt"
UNVERIFIED: Final = ", and its hardware is unverified"
ALL_ALONG: Final = "the node has had the new target all along"
SUPERSEDED: Final = "the policy wants another layout"
ANEW: Final = "the driver's pod has to start anew"
UNSEEN: Final = "the pod that carries out the assignment has not seen its config"
SEEN: Final = "a new pod has seen the config, and is told again"
SLOW_QUIESCE: Final = "the quiesce was not confirmed in time"
BACK: Final = "the node is back and publishes what it did"
BY_HAND: Final = "the node came back without what was cut by hand, and is to get it as any other node"
AFTER_ALL: Final = "the node publishes its former layout after all"
GIVEN_UP: Final = next(way.note for way in PHASES[Phase.FAILED].exits if way.reason == "Abandoned")
SLOW_HOLDERS: Final = "holders did not end in time"

CASES: Final[Mapping[tuple[Phase, str], Case]] = {
    (Phase.ADMITTED, GONE): gone(Phase.ADMITTED),
    (Phase.ADMITTED, UNWANTED): (record(Phase.ADMITTED), world(wanted=None)),
    (Phase.ADMITTED, ALL_ALONG): (record(Phase.ADMITTED), world(wanted=WHOLE)),
    (Phase.ADMITTED, SUPERSEDED): (record(Phase.ADMITTED), world(wanted=QUARTERS)),
    (Phase.ADMITTED, "devices in use stay, and all others change beside them"): (
        record(Phase.ADMITTED, change="Live", quiesce="None"),
        world(),
    ),
    (Phase.ADMITTED, "the way back is on record and the config is in place"): (record(Phase.ADMITTED), world()),
    (Phase.ADMITTED, "the config could not be put in place in time"): (
        record(Phase.ADMITTED),
        world(after=LIMITS.admitted, configs=False),
    ),
    (Phase.QUIESCING, GONE): gone(Phase.QUIESCING),
    (Phase.QUIESCING, UNWANTED): (record(Phase.QUIESCING), world(wanted=None)),
    (Phase.QUIESCING, ALL_ALONG): (record(Phase.QUIESCING), world(wanted=WHOLE)),
    (Phase.QUIESCING, UNWANTED + UNVERIFIED): (record(Phase.QUIESCING, dirty=True), world(wanted=None)),
    (Phase.QUIESCING, "no new claim is allocated here"): (
        record(Phase.QUIESCING),
        world(rule=quiesce(watched=LIMITS.settle)),
    ),
    (Phase.QUIESCING, "closed to new claims, and compared with what it was"): (
        lost(Phase.QUIESCING),
        world(observed=seen(HALVES), rule=quiesce(watched=NEVER)),
    ),
    (Phase.QUIESCING, UNANSWERED): (
        record(Phase.QUIESCING, reason="QuiesceUnconfirmed"),
        world(after=LIMITS.quiescing, rule=quiesce(proven=False)),
    ),
    (Phase.QUIESCING, UNANSWERED + UNVERIFIED): (
        record(Phase.QUIESCING, reason="QuiesceUnconfirmed", dirty=True),
        world(after=LIMITS.quiescing, rule=quiesce(proven=False)),
    ),
    (Phase.QUIESCING, SLOW_QUIESCE): (record(Phase.QUIESCING), world(after=LIMITS.quiescing)),
    (Phase.QUIESCING, SLOW_QUIESCE + UNVERIFIED): (
        record(Phase.QUIESCING, dirty=True),
        world(after=LIMITS.quiescing),
    ),
    (Phase.DRAINING, GONE): gone(Phase.DRAINING),
    (Phase.DRAINING, UNWANTED): (record(Phase.DRAINING), world(wanted=None, rule=quiesce())),
    (Phase.DRAINING, ALL_ALONG): (record(Phase.DRAINING), world(wanted=WHOLE, rule=quiesce())),
    (Phase.DRAINING, UNWANTED + UNVERIFIED): (record(Phase.DRAINING, dirty=True), world(wanted=None, rule=quiesce())),
    (Phase.DRAINING, SUPERSEDED): (record(Phase.DRAINING), world(wanted=QUARTERS, rule=quiesce())),
    (Phase.DRAINING, "the quiesce was taken away"): (record(Phase.DRAINING), world(rule=None)),
    (Phase.DRAINING, "what changes is not what it was when the node was admitted"): (
        record(Phase.DRAINING),
        world(rule=quiesce(), observed=seen(HALVES)),
    ),
    (Phase.DRAINING, "no holder is left"): (
        record(Phase.DRAINING),
        world(rule=quiesce(), idle=LIMITS.idle_gap),
    ),
    (Phase.DRAINING, SLOW_HOLDERS + HALTED): (
        record(Phase.DRAINING),
        world(
            after=LIMITS.draining_when_idle,
            rule=quiesce(),
            holders=[holder()],
            drain=Drain(on_timeout=OnTimeout.HALT),
        ),
    ),
    (Phase.DRAINING, SLOW_HOLDERS): (
        record(Phase.DRAINING),
        world(after=LIMITS.draining_when_idle, rule=quiesce(), holders=[holder()]),
    ),
    (Phase.DRAINING, SLOW_HOLDERS + UNVERIFIED): (
        record(Phase.DRAINING, dirty=True),
        world(after=LIMITS.draining_when_idle, rule=quiesce(), holders=[holder()]),
    ),
    (Phase.APPLYING, GONE): gone(Phase.APPLYING),
    (Phase.APPLYING, "a claim was allocated at the last moment"): (
        record(Phase.APPLYING),
        world(observed=seen(WHOLE, step=STEP), rule=quiesce(), holders=[holder()]),
    ),
    (Phase.APPLYING, "a claim slipped past the quiesce"): (
        record(Phase.APPLYING),
        world(observed=seen(HALVES, step=STEP), rule=quiesce(), holders=[holder()]),
    ),
    (Phase.APPLYING, UNSEEN): (record(Phase.APPLYING), world(observed=failing(HALVES, stale=True))),
    (Phase.APPLYING, SEEN): (replaced(Phase.APPLYING), world(observed=failing(HALVES, agent="agent-2"))),
    (Phase.APPLYING, "the driver failed to take the new config"): (
        record(Phase.APPLYING),
        world(after=LIMITS.min_ready, observed=failing(HALVES)),
    ),
    (Phase.APPLYING, "the driver failed to take the new config" + HALTED): (
        record(Phase.APPLYING),
        replace(world(after=LIMITS.min_ready, observed=failing(HALVES)), on_failure=OnFailure.HALT),
    ),
    (Phase.APPLYING, ANEW): (
        same_assignment(Phase.APPLYING),
        world(wanted=HALVES_RESTARTED, observed=seen(HALVES, step=STEP)),
    ),
    (Phase.APPLYING, "the driver runs with the new config"): (
        record(Phase.APPLYING),
        world(observed=seen(HALVES, step=STEP)),
    ),
    (Phase.APPLYING, "the driver's pod has to count the GPUs anew"): (
        record(Phase.APPLYING),
        world(
            after=LIMITS.applying,
            observed=replace(seen(HALVES, step=STEP, ready=False), restarts=True, acknowledged=False),
        ),
    ),
    (Phase.APPLYING, "the driver did not take the new config in time"): (
        record(Phase.APPLYING),
        world(after=LIMITS.applying, observed=seen(HALVES, step=STEP, ready=False)),
    ),
    (Phase.APPLYING, "the driver did not take the new config in time" + HALTED): (
        record(Phase.APPLYING),
        replace(world(after=LIMITS.applying, observed=seen(HALVES, step=STEP, ready=False)), on_failure=OnFailure.HALT),
    ),
    (Phase.VERIFYING, GONE): gone(Phase.VERIFYING),
    (Phase.VERIFYING, "the policy wants another layout by now"): (
        record(Phase.VERIFYING),
        world(wanted=QUARTERS, observed=seen(HALVES, step=STEP), matched=LIMITS.min_ready),
    ),
    (Phase.VERIFYING, "the node publishes exactly what is wanted"): (
        record(Phase.VERIFYING),
        world(observed=seen(HALVES, step=STEP), matched=LIMITS.min_ready),
    ),
    (Phase.VERIFYING, ANEW): (lost(Phase.VERIFYING), world(observed=too_early())),
    (Phase.ROLLING_BACK, ANEW + " once more"): (
        record(Phase.ROLLING_BACK, restart=Restart(pod_uid="pod-0", step=STEP)),
        world(observed=too_early(WHOLE, publishes=HALVES, step=STEP)),
    ),
    (Phase.VERIFYING, UNWANTED): (lost(Phase.VERIFYING), world(wanted=None, observed=seen(HALVES))),
    (Phase.VERIFYING, BACK): (lost(Phase.VERIFYING), world(observed=seen(HALVES), matched=LIMITS.min_ready)),
    (Phase.VERIFYING, BACK + ", and the policy wants another layout by now"): (
        lost(Phase.VERIFYING),
        world(wanted=QUARTERS, observed=seen(HALVES), matched=LIMITS.min_ready),
    ),
    (Phase.VERIFYING, "the node did not come back with what it published"): (
        lost(Phase.VERIFYING),
        world(after=LIMITS.verifying, observed=seen(HALVES, pool=Pool())),
    ),
    (Phase.VERIFYING, BY_HAND): (
        record(Phase.VERIFYING, target=WHOLE, previous=WHOLE, recovering=True, step=FORMER_STEP),
        world(after=LIMITS.verifying, wanted=WHOLE, observed=seen(WHOLE, pool=cut(2))),
    ),
    (Phase.VERIFYING, "GPUs are missing, and the others publish exactly what is wanted"): (
        record(Phase.VERIFYING, target=EIGHT),
        world(after=LIMITS.verifying, wanted=EIGHT, observed=seen(EIGHT, step=STEP, pool=several(7))),
    ),
    (Phase.VERIFYING, "the node does not publish what is wanted"): (
        record(Phase.VERIFYING),
        world(after=LIMITS.verifying, observed=seen(HALVES, step=STEP, pool=cut(4))),
    ),
    (Phase.VERIFYING, "the node does not publish what is wanted" + HALTED): (
        record(Phase.VERIFYING),
        replace(
            world(after=LIMITS.verifying, observed=seen(HALVES, step=STEP, pool=cut(4))), on_failure=OnFailure.HALT
        ),
    ),
    (Phase.RELEASING, "back on its former layout"): (record(Phase.RELEASING, outcome=Phase.ROLLED_BACK), world()),
    (Phase.RELEASING, "open for claims with the new layout"): (
        record(Phase.RELEASING),
        world(observed=seen(HALVES, step=STEP)),
    ),
    (Phase.ROLLING_BACK, GONE): gone(Phase.ROLLING_BACK),
    (Phase.ROLLING_BACK, UNSEEN): (record(Phase.ROLLING_BACK), world(observed=failing(WHOLE, stale=True))),
    (Phase.ROLLING_BACK, SEEN): (replaced(Phase.ROLLING_BACK), world(observed=failing(WHOLE, agent="agent-2"))),
    (Phase.ROLLING_BACK, "the driver failed to take the former config"): (
        record(Phase.ROLLING_BACK),
        world(after=LIMITS.min_ready, observed=failing(WHOLE)),
    ),
    (Phase.ROLLING_BACK, ANEW): (
        same_assignment(Phase.ROLLING_BACK),
        world(wanted=HALVES_RESTARTED, observed=seen(HALVES_RESTARTED, step=STEP)),
    ),
    (Phase.ROLLING_BACK, "the node publishes its former layout again"): (
        record(Phase.ROLLING_BACK),
        world(observed=seen(WHOLE, step=STEP)),
    ),
    (Phase.ROLLING_BACK, "GPUs are missing after another look too, and the others publish the former layout again"): (
        record(Phase.ROLLING_BACK, previous=EIGHT, restart=Restart(pod_uid="pod-0", step=STEP)),
        world(observed=replace(too_early(EIGHT, step=STEP), pool=several(7))),
    ),
    (Phase.ROLLING_BACK, "somebody asked to let go of it as it is"): (
        record(Phase.ROLLING_BACK, reason=IN_VAIN),
        replace(world(wanted=None), abandoned=True),
    ),
    (Phase.ROLLING_BACK, "GPUs are missing, and the others publish the former layout again"): (
        record(Phase.ROLLING_BACK, previous=EIGHT),
        world(after=LIMITS.applying + LIMITS.verifying, observed=seen(EIGHT, step=STEP, pool=several(7))),
    ),
    (Phase.ROLLING_BACK, "the former layout did not come back in time"): (
        record(Phase.ROLLING_BACK),
        world(after=LIMITS.applying + LIMITS.verifying, observed=seen(HALVES, step=STEP)),
    ),
    (Phase.FAILED, GONE): gone(Phase.FAILED),
    (Phase.FAILED, GIVEN_UP): (
        record(Phase.FAILED),
        replace(world(wanted=None, observed=seen(HALVES, step=STEP)), abandoned=True),
    ),
    (Phase.FAILED, UNWANTED): (lost(Phase.FAILED), world(wanted=None, observed=seen(HALVES))),
    (Phase.FAILED, BACK): (lost(Phase.FAILED), world(observed=seen(HALVES), matched=LIMITS.min_ready)),
    (Phase.FAILED, AFTER_ALL): (stayed_away(), world(observed=seen(WHOLE, step=STEP), matched=LIMITS.min_ready)),
    (Phase.FAILED, "somebody asked to try again"): (record(Phase.FAILED, retry="monday"), world(retry="tuesday")),
    (Phase.FAILED, "nothing is wanted but what the node goes back to"): (record(Phase.FAILED), world(wanted=None)),
    (Phase.FAILED, SUPERSEDED): (record(Phase.FAILED), world(wanted=QUARTERS)),
    (Phase.ABORTING, "open for claims again, unchanged, and counts as failed"): (
        record(Phase.ABORTING, outcome=Phase.ROLLED_BACK),
        world(),
    ),
    (Phase.ABORTING, "open for claims again, unchanged"): (record(Phase.ABORTING), world()),
}
EXITS: Final = {(phase, way.note): way for phase, row in PHASES.items() for way in (*row.exits, *row.late)}


def must(state: NodeStateStatus, turn: World) -> NodeStateStatus:
    """The record after this turn, which has to change it."""
    step = advance(state, turn) if state.phase not in AT_REST else rest(state, turn)
    assert step is not None, f"nothing happens in {state.phase}"
    return step.state


# ------------------------------------------------------------------------------------------------------------------ the table


def test_every_exit_has_a_case() -> None:
    assert len(EXITS) == sum(len(row.exits) + len(row.late) for row in PHASES.values()), (
        "two exits of a phase look alike"
    )
    assert set(CASES) == set(EXITS), "each exit needs a case here that takes it, and only those that exist"


@pytest.mark.parametrize(("phase", "note"), CASES)
def test_the_case_takes_its_exit(phase: Phase, note: str) -> None:
    state, turn = CASES[phase, note]
    assert state.phase is phase
    assert way_out(state, turn) is EXITS[phase, note]
    assert must(state, turn).phase is EXITS[phase, note].to


def test_each_phase_has_a_row_can_be_reached_has_a_way_out_and_a_limit_or_a_reason_to_wait_for_ever() -> None:
    for_ever = {
        Phase.RELEASING: "deleting the rule is retried until it works",
        Phase.ABORTING: "deleting the rule is retried until it works",
        Phase.FAILED: "what is unverified stays closed until somebody says what to do",
    }
    assert set(PHASES) | AT_REST == set(Phase)
    assert not set(PHASES) & AT_REST
    reached = {way.to for way in EXITS.values()} | {Phase.ADMITTED}  # a grant leads to Admitted
    assert set(PHASES) <= reached
    for phase, row in PHASES.items():
        ways = (*row.exits, *row.late)
        assert any(way.to is not phase for way in ways), phase
        assert bool(row.late) == (row.limit is not None), phase
        assert (row.limit is None) == (phase in for_ever), phase


def test_whatever_happens_to_a_node_a_phase_at_rest_can_be_reached() -> None:
    leads: dict[Phase, set[Phase]] = {p: {w.to for w in (*r.exits, *r.late)} for p, r in PHASES.items()}
    resting = set(AT_REST)
    while grown := {p for p in leads if leads[p] & resting} - resting:
        resting |= grown
    assert resting >= set(PHASES)


@pytest.mark.parametrize("phase", IN_FLIGHT)
def test_without_news_a_node_stays_where_it_is(phase: Phase) -> None:
    still = world(observed=seen(WHOLE, ready=False), rule=quiesce(watched=NEVER), configs=False)
    assert advance(record(phase), still) is None


@pytest.mark.parametrize(("phase", "note"), [k for k, w in EXITS.items() if w not in PHASES[k[0]].late])
def test_success_beats_lateness(phase: Phase, note: str) -> None:
    state, turn = CASES[phase, note]
    assert way_out(state, replace(turn, now=turn.now + LONG)) is EXITS[phase, note]


@pytest.mark.parametrize(("phase", "note"), [k for k, w in EXITS.items() if w in PHASES[k[0]].late])
def test_a_limit_is_not_over_a_moment_before(phase: Phase, note: str) -> None:
    state, turn = CASES[phase, note]
    assert way_out(state, replace(turn, now=turn.now - timedelta(milliseconds=1))) is None


def test_the_clock_of_a_phase_goes_on_over_a_restart_of_the_driver_and_begins_anew_with_the_next_phase() -> None:
    state, turn = CASES[Phase.APPLYING, ANEW]
    assert must(state, turn).since == T0
    state, turn = CASES[Phase.APPLYING, "the driver runs with the new config"]
    assert must(state, turn).since == turn.now


def test_waiting_for_holders_may_take_longer_where_the_policy_waits() -> None:
    turn = world(after=LIMITS.draining_when_idle, rule=quiesce(), holders=[holder()], drain=DrainMode.WAIT)
    assert way_out(record(Phase.DRAINING), turn) is None
    assert must(record(Phase.DRAINING), replace(turn, now=T0 + LIMITS.draining_wait)).phase is Phase.ABORTING


def test_a_policy_may_say_for_how_long_holders_are_waited_for() -> None:
    turn = world(
        after=LIMITS.draining_when_idle, rule=quiesce(), holders=[holder()], drain=Drain(timeout_seconds=7 * 24 * 3600)
    )
    assert way_out(record(Phase.DRAINING), turn) is None
    assert must(record(Phase.DRAINING), replace(turn, now=T0 + timedelta(days=7))).phase is Phase.ABORTING


def test_a_node_whose_holders_stay_counts_as_failed_where_the_policy_says_so() -> None:
    state, turn = CASES[Phase.DRAINING, SLOW_HOLDERS + HALTED]
    state = must(must(must(state, replace(turn, now=T0)), turn), replace(turn, quiesce=None, retry="monday"))
    assert (state.phase, state.reason, state.current) == (Phase.ROLLED_BACK, "DrainingFailed", None)
    assert state.message.endswith("and the policy says Halt: claim team/claim of pod team/claim-pod (Allocated)")
    free = replace(turn, grant=None, quiesce=None)
    state = must(state, free)
    assert rest(state, free) is None, "nothing is tried until somebody asks"
    assert must(state, replace(free, retry="tuesday")).phase is Phase.PENDING


def test_nobody_counts_as_failed_because_evictions_were_stopped() -> None:
    turn = world(
        after=LONG,
        rule=quiesce(),
        holders=[holder()],
        drain=Drain(mode=DrainMode.EVICT, on_timeout=OnTimeout.HALT),
    )
    after = must(record(Phase.DRAINING), replace(turn, no_eviction="the policy is paused"))
    assert (after.phase, after.outcome) == (Phase.ABORTING, Phase.PENDING)
    assert must(record(Phase.DRAINING), turn).outcome is Phase.ROLLED_BACK


def test_pods_are_given_time_to_end_after_they_were_deleted_by_force() -> None:
    drain = Drain(mode=DrainMode.EVICT, on_timeout=OnTimeout.FORCE_DELETE)
    turn = world(after=LIMITS.draining_evict, rule=quiesce(), holders=[holder()], drain=drain)
    assert way_out(record(Phase.DRAINING), turn) is None
    later = replace(turn, now=turn.now + LIMITS.force_delete)
    assert must(record(Phase.DRAINING), later).phase is Phase.ABORTING


def test_limits_can_be_set() -> None:
    short = Limits(applying=SECOND)
    assert must(record(Phase.APPLYING), world(limits=short)).phase is Phase.ROLLING_BACK


# ------------------------------------------------------------------------------------------------------------ quiesce, drain


@pytest.mark.parametrize(
    "rule",
    [None, quiesce(active=False), quiesce(proven=False), quiesce(watched=LIMITS.settle - SECOND)],
    ids=["absent", "inert", "unanswered", "not settled"],
)
def test_draining_does_not_begin_before_the_taint_is_seen_by_everybody(rule: Any) -> None:
    assert way_out(record(Phase.QUIESCING), world(rule=rule)) is None


def test_a_node_whose_rule_nobody_answers_says_so_and_what_to_do() -> None:
    turn = world(rule=quiesce(proven=False))
    state = must(record(Phase.QUIESCING), turn)
    assert (state.phase, state.since, state.reason) == (Phase.QUIESCING, T0, "QuiesceUnconfirmed")
    assert "write quiesce: Cordon in the driver" in state.message
    assert advance(state, turn) is None, "it is said once"
    answered = must(state, replace(turn, quiesce=quiesce()))
    assert (answered.phase, answered.reason) == (Phase.DRAINING, "")


@pytest.mark.parametrize("way", ["Cordon", "Both", "DeviceTaint"])
def test_opening_a_cordoned_node_is_a_step_of_its_own(way: str) -> None:
    ends = [
        (Phase.QUIESCING, UNWANTED),
        (Phase.DRAINING, SLOW_HOLDERS),
        (Phase.VERIFYING, "the node publishes exactly what is wanted"),
        (Phase.ROLLING_BACK, "the node publishes its former layout again"),
    ]
    for end in ends:
        state, turn = CASES[end]
        state = state.model_copy(update={"quiesce": way})
        after = must(state, turn)
        assert after.phase in {Phase.ABORTING, Phase.RELEASING}
        assert after.step == (state.step if way == "DeviceTaint" else FRESH), end
        assert after.generation == state.generation, "no slice is written"
        at_rest = must(after, replace(turn, quiesce=None))
        assert at_rest.phase in AT_REST
        assert at_rest.quiesce == "DeviceTaint", "nothing of the attempt is kept"


@pytest.mark.parametrize(
    "turn",
    [
        world(rule=quiesce(), holders=[holder()]),
        world(rule=quiesce(), idle=LIMITS.idle_gap - SECOND),
        world(rule=quiesce(), idle=LONG, configs=False),
        world(rule=quiesce(watched=NEVER), idle=LONG),
    ],
    ids=["held", "one empty list", "config missing", "rule only just put back"],
)
def test_applying_does_not_begin_before(turn: World) -> None:
    assert way_out(record(Phase.DRAINING), turn) is None


def test_a_node_that_is_drained_names_its_holders_as_they_come_and_go() -> None:
    held = world(rule=quiesce(), holders=[holder()])
    waiting = must(record(Phase.DRAINING), held)
    assert waiting.phase is Phase.DRAINING
    assert [blocker.claim for blocker in waiting.blockers] == [holder().claim]
    assert advance(waiting, held) is None
    free = must(waiting, world(rule=quiesce()))
    assert (free.phase, free.since, free.blockers) == (Phase.DRAINING, waiting.since, [])


def test_a_config_that_was_last_touched_before_the_record_named_it_may_be_being_collected() -> None:
    turn = world(rule=quiesce(), idle=LONG)
    assert advance(record(Phase.DRAINING), replace(turn, config_touched=T0 - SECOND)) is None


# ------------------------------------------------------------------------------------------------------- gone, unwanted, refused


@pytest.mark.parametrize("phase", sorted(set(IN_FLIGHT) - {Phase.RELEASING, Phase.ABORTING}))
def test_when_the_node_is_gone_only_what_is_ours_is_undone(phase: Phase) -> None:
    for dirty in (False, True):
        after = must(record(phase, dirty=dirty), world(there=False, rule=quiesce()))
        assert (after.phase, after.token, after.step) == (Phase.ABORTING, TOKEN, record(phase).step)


@pytest.mark.parametrize("phase", [Phase.APPLYING, Phase.VERIFYING, Phase.ROLLING_BACK])
def test_a_hardware_step_is_finished_even_when_nobody_wants_it_any_more(phase: Phase) -> None:
    assert advance(record(phase), world(wanted=None, rule=quiesce())) is None


def test_a_node_that_is_verified_when_nobody_wants_it_any_more_is_released_as_it_is() -> None:
    turn = world(wanted=None, observed=seen(HALVES, step=STEP), matched=LONG)
    assert must(record(Phase.VERIFYING), turn).phase is Phase.RELEASING


@pytest.mark.parametrize("phase", IN_FLIGHT)
def test_a_policy_that_was_refused_stops_nobody_on_the_way_to_what_was_accepted(phase: Phase) -> None:
    turn = world(
        wanted=None, refused=True, observed=seen(WHOLE, ready=False), rule=quiesce(watched=NEVER), configs=False
    )
    assert advance(record(phase), turn) is None


def test_a_failed_node_that_nobody_wants_any_more_is_rolled_back_first() -> None:
    after = must(record(Phase.FAILED), world(wanted=None))
    assert (after.phase, after.step) == (Phase.ROLLING_BACK, FRESH)


@pytest.mark.parametrize("wanted", [None, WHOLE], ids=["nothing", "what it goes back to"])
def test_a_failed_node_of_which_nothing_else_is_wanted_is_tried_once_more_and_then_left_to_people(
    wanted: Config | None,
) -> None:
    turn = world(wanted=wanted, observed=seen(WHOLE, step=STEP, ready=False))
    trying = must(stayed_away(), turn)
    assert trying.phase is Phase.ROLLING_BACK
    left = must(trying, replace(turn, now=turn.now + LONG))
    assert (left.phase, left.reason) == (Phase.FAILED, STRANDED)
    assert "its driver pod is not ready" in left.message
    for later in (turn, replace(turn, now=turn.now + LONG), replace(turn, wanted=None)):
        assert advance(left, later) is None, "nobody has asked"
    asked = must(left, replace(turn, retry="tuesday"))
    assert asked.phase is Phase.ROLLING_BACK
    again = must(asked, replace(turn, retry="tuesday", now=turn.now + LONG))
    assert (again.phase, again.reason, again.retry) == (Phase.FAILED, STRANDED, "tuesday")
    assert must(left, replace(turn, wanted=QUARTERS)).phase is Phase.DRAINING
    back = replace(turn, observed=seen(WHOLE, step=left.step), matched=LIMITS.min_ready)
    assert must(left, back).phase is Phase.RELEASING


def test_what_failed_before_is_let_go_at_once_and_what_is_tried_first_is_not() -> None:
    turn = replace(world(wanted=None, observed=seen(WHOLE, step=STEP, ready=False)), abandoned=True)
    for reason in (IN_VAIN, STRANDED):
        given_up = must(record(Phase.ROLLING_BACK, reason=reason), turn)
        assert must(given_up, turn).phase is Phase.ABORTING
    assert advance(record(Phase.ROLLING_BACK, reason="ApplyingFailed"), turn) is None
    assert advance(record(Phase.ROLLING_BACK, reason=IN_VAIN), replace(turn, wanted=HALVES)) is None


# ------------------------------------------------------------------------------------------------------------------ new target


def test_how_deep_a_change_goes_is_judged_by_what_the_node_publishes_when_it_is_drained() -> None:
    down = record(Phase.DRAINING)  # nothing was published when it was admitted
    same = must(down, world(rule=quiesce(), observed=replace(seen(HALVES), running="an older config")))
    assert (same.phase, same.change, same.since) == (Phase.DRAINING, "Restart", down.since)
    deeper = must(same, world(rule=quiesce(), observed=seen(WHOLE)))
    assert deeper.change == "Repartition"


@pytest.mark.parametrize("phase", [Phase.ADMITTED, Phase.DRAINING])
def test_before_applying_a_new_target_replaces_the_old_one_in_place(phase: Phase) -> None:
    turn = world(wanted=QUARTERS, rule=quiesce())
    after = must(record(phase), turn)
    assert (after.phase, after.since) == (phase, turn.now)
    assert after.target == QUARTERS.assigned("rev").model_copy(update={"since": turn.now})
    assert after.previous == WHOLE.assigned(), "the way back stays the one from before the first touch"


@pytest.mark.parametrize("phase", [Phase.APPLYING, Phase.RELEASING, Phase.ROLLING_BACK, Phase.ABORTING])
def test_in_these_phases_a_new_target_has_to_wait(phase: Phase) -> None:
    turn = world(wanted=QUARTERS, observed=seen(WHOLE, ready=False), rule=quiesce())
    assert advance(record(phase), turn) is None


def test_a_new_target_waits_until_the_node_is_closed_because_what_is_published_is_not_read_anew_before() -> None:
    assert advance(record(Phase.QUIESCING), world(wanted=QUARTERS, rule=quiesce(watched=NEVER))) is None
    after = must(record(Phase.QUIESCING), world(wanted=QUARTERS, rule=quiesce()))
    assert after.phase is Phase.DRAINING
    assert after.target is not None
    assert after.target.fingerprint == HALVES.fingerprint


def test_a_superseded_target_never_reaches_releasing() -> None:
    for matched in (NEVER, LIMITS.min_ready, LONG):
        for pool in (HALVES.pool, cut(4)):
            turn = world(wanted=QUARTERS, observed=seen(HALVES, step=STEP, pool=pool), matched=matched)
            step = advance(record(Phase.VERIFYING), turn)
            assert step is None or step.state.phase is not Phase.RELEASING


def test_hardware_that_is_not_verified_is_not_left_for_a_new_target() -> None:
    wrong = world(wanted=QUARTERS, observed=seen(HALVES, step=STEP, pool=cut(8)), matched=NEVER)
    assert advance(record(Phase.VERIFYING), wrong) is None
    assert must(record(Phase.VERIFYING), replace(wrong, now=T0 + LIMITS.verifying)).phase is Phase.ROLLING_BACK


def test_a_node_that_was_released_with_a_superseded_target_waits_for_its_next_turn() -> None:
    after = must(record(Phase.UP_TO_DATE, token=""), world(wanted=QUARTERS, observed=seen(HALVES)))
    assert (after.phase, after.target and after.target.fingerprint) == (Phase.PENDING, "quarters")


# ------------------------------------------------------------------------------------------------------------------------ dirty


def test_a_new_target_after_a_failure_starts_from_hardware_of_which_nothing_is_verified() -> None:
    after = must(record(Phase.FAILED), world(wanted=QUARTERS))
    assert after.phase is Phase.DRAINING
    assert after.dirty


@pytest.mark.parametrize("phase", IN_FLIGHT)
def test_dirty_hardware_is_never_let_go_by_giving_up(phase: Phase) -> None:
    state = record(phase, dirty=True)
    turns = [
        world(after=after, wanted=wanted, observed=observed, rule=rule, holders=holders)
        for after in (SECOND, LONG)
        for wanted in (HALVES, WHOLE, QUARTERS, None)
        for observed in (seen(WHOLE), seen(HALVES, step=STEP), seen(WHOLE, step=STEP, ready=False))
        for rule in (quiesce(), quiesce(active=False))
        for holders in ((), [holder()])
    ]
    ways = [way for turn in turns if (way := way_out(state, turn))]
    assert all(way.to not in {Phase.ABORTING, Phase.UP_TO_DATE} for way in ways)


def test_dirty_ends_where_something_is_verified() -> None:
    for outcome in (Phase.UP_TO_DATE, Phase.ROLLED_BACK):
        after = must(record(Phase.RELEASING, outcome=outcome, dirty=True), world())
        assert (after.phase, after.dirty) == (outcome, False)


# ------------------------------------------------------------------------------------------------------------------------ steps


def test_entering_applying_begins_a_step_that_never_was() -> None:
    state, turn = CASES[Phase.DRAINING, "no holder is left"]
    after = must(state, turn)
    assert (after.step, after.generation) == (FRESH, state.generation + 1)


@pytest.mark.parametrize("key", [k for k, way in EXITS.items() if way.to is Phase.ROLLING_BACK is not k[0]], ids=str)
def test_rolling_back_always_begins_a_step_of_its_own(key: tuple[Phase, str]) -> None:
    state, turn = CASES[key]
    after = must(state, turn)
    assert (after.step, after.generation) == (FRESH, state.generation + 1)


# ------------------------------------------------------------------------------------- drivers that are told, and answer


def answering(layout: Config, *, acknowledged: bool, plugin: str = "pod-1") -> Observation:
    """A driver that does what the assignment says when it likes, and whose plugin sees nothing of it until it starts anew."""
    has = seen(layout, step=STEP, ready=acknowledged, plugin=plugin)
    return replace(has, acknowledged=acknowledged, restarts=True)


def test_a_plugin_is_not_restarted_before_the_driver_has_done_what_it_was_told() -> None:
    assert advance(record(Phase.APPLYING), world(observed=answering(HALVES, acknowledged=False))) is None
    after = must(record(Phase.APPLYING), world(observed=answering(HALVES, acknowledged=True)))
    assert (after.phase, after.restart) == (Phase.APPLYING, Restart(pod_uid="pod-1", step=STEP))


def test_a_node_is_verified_only_after_its_plugin_has_started_anew() -> None:
    state = record(Phase.APPLYING, restart=Restart(pod_uid="pod-1", step=STEP))
    assert advance(state, world(observed=answering(HALVES, acknowledged=True))) is None
    assert must(state, world(observed=answering(HALVES, acknowledged=True, plugin="pod-2"))).phase is Phase.VERIFYING


def test_a_former_layout_of_such_a_driver_is_back_when_it_stays() -> None:
    state = record(Phase.ROLLING_BACK, restart=Restart(pod_uid="pod-1", step=STEP))
    there = answering(WHOLE, acknowledged=True, plugin="pod-2")
    assert advance(state, world(observed=there)) is None
    assert must(state, world(observed=there, matched=LIMITS.min_ready)).phase is Phase.RELEASING


def test_a_restart_of_an_earlier_step_does_not_count_for_such_a_driver() -> None:
    state = record(Phase.APPLYING, restart=Restart(pod_uid="pod-1", step=FORMER_STEP))
    after = must(state, world(observed=answering(HALVES, acknowledged=True, plugin="pod-2")))
    assert after.restart == Restart(pod_uid="pod-2", step=STEP)


def test_the_pod_that_saw_too_little_goes_on_record_and_then_the_node_is_told_again_by_another_step() -> None:
    after = must(record(Phase.APPLYING), world(observed=failing(HALVES, stale=True)))
    assert (after.phase, after.restart) == (Phase.APPLYING, Restart(pod_uid="agent-1", step=STEP, agent=True))
    assert advance(after, world(observed=failing(HALVES, stale=True))) is None, "it has not gone yet"
    ending = replace(failing(HALVES), agent=None)
    assert advance(after, world(after=LIMITS.min_ready, observed=ending)) is None, "there is no other one yet"
    again = must(after, world(observed=failing(HALVES, agent="agent-2")))
    assert (again.phase, again.step, again.restart) == (Phase.APPLYING, FRESH, after.restart)


def test_a_driver_that_failed_is_not_waited_for_until_the_limit_is_over() -> None:
    assert advance(record(Phase.APPLYING), world(observed=failing(HALVES))) is None, (
        "it may speak of what it was told before"
    )
    after = must(record(Phase.APPLYING), world(after=LIMITS.min_ready, observed=failing(HALVES)))
    assert after.phase is Phase.ROLLING_BACK
    assert "it failed" in after.message


def test_a_plugin_that_looked_too_early_after_a_reboot_is_restarted_as_often_as_need_be_but_not_at_once() -> None:
    state = must(lost(Phase.VERIFYING), world(observed=too_early()))
    assert (state.phase, state.restart) == (Phase.VERIFYING, Restart(pod_uid="pod-1", step=FORMER_STEP))
    assert advance(state, world(observed=too_early())) is None, "it has not gone yet"
    assert advance(state, world(observed=too_early(plugin="pod-2"), plugin_seen=NEVER)) is None, (
        "it may be about to publish"
    )
    again = must(state, world(observed=too_early(plugin="pod-2")))
    assert again.restart == Restart(pod_uid="pod-2", step=FORMER_STEP)
    assert advance(lost(Phase.VERIFYING), world(observed=seen(HALVES, pool=WHOLE.pool))) is None, (
        "it republishes by itself"
    )


def test_a_plugin_that_looked_before_the_driver_was_done_is_restarted_while_the_node_is_verified() -> None:
    state = record(Phase.VERIFYING, restart=Restart(pod_uid="pod-0", step=STEP))
    assert must(state, world(observed=too_early(step=STEP))).restart == Restart(pod_uid="pod-1", step=STEP)
    assert advance(state, world(observed=too_early(step=STEP), holders=[holder()])) is None


def test_a_plugin_is_not_restarted_so_late_that_it_would_not_be_up_when_the_limit_is_over() -> None:
    state = record(Phase.VERIFYING, target=EIGHT, restart=Restart(pod_uid="pod-0", step=STEP))
    lacking = replace(too_early(EIGHT, step=STEP), pool=several(7))
    early, late = (
        world(after=at, wanted=EIGHT, observed=lacking) for at in (NEVER, LIMITS.verifying - LIMITS.start_anew)
    )
    assert must(state, early).restart == Restart(pod_uid="pod-1", step=STEP), "it may have missed one"
    assert advance(state, late) is None
    over = must(state, world(after=LIMITS.verifying, wanted=EIGHT, observed=lacking))
    assert (over.phase, over.reason) == (Phase.RELEASING, "HardwareDegraded")


def test_a_node_that_lost_a_gpu_goes_back_as_soon_as_its_plugin_has_looked_again() -> None:
    state = record(Phase.ROLLING_BACK, previous=EIGHT)
    lacking = world(observed=replace(too_early(EIGHT, step=STEP), pool=several(7)))
    anew = must(state, lacking)
    assert (anew.phase, anew.restart) == (Phase.ROLLING_BACK, Restart(pod_uid="pod-1", step=STEP)), (
        "it may look too early"
    )
    young = world(observed=replace(too_early(EIGHT, "pod-2", step=STEP), pool=several(7)), plugin_seen=NEVER)
    assert advance(anew, young) is None, "it may be about to publish"
    back = must(anew, world(observed=replace(too_early(EIGHT, "pod-2", step=STEP), pool=several(7))))
    assert (back.phase, back.outcome) == (Phase.RELEASING, Phase.ROLLED_BACK)


def test_config_that_pods_see_late_is_old_enough_before_a_node_is_closed() -> None:
    limits = LIMITS.of_driver("applying_mig", seen_late=True)
    young = replace(world(limits=limits), config_written=T0, now=T0 + LIMITS.config_age - SECOND)
    assert advance(record(Phase.ADMITTED), young) is None
    assert must(record(Phase.ADMITTED), replace(young, now=T0 + LIMITS.config_age)).phase is Phase.QUIESCING


def test_the_time_that_config_has_to_age_does_not_count_against_its_phase() -> None:
    limits = LIMITS.of_driver("applying_mig", seen_late=True)
    assert limits.admitted == LIMITS.admitted + LIMITS.config_age
    assert limits.applying == LIMITS.applying_mig
    assert LIMITS.of_driver("applying", seen_late=False).config_age == NEVER


@pytest.mark.parametrize("phase", [Phase.APPLYING, Phase.VERIFYING])
def test_a_layout_that_is_there_counts_only_when_this_step_brought_it(phase: Phase) -> None:
    assert advance(record(phase), world(observed=seen(HALVES, step=FORMER_STEP), matched=LONG)) is None


def test_a_former_layout_that_was_never_left_counts_only_when_this_step_wrote_it() -> None:
    assert advance(record(Phase.ROLLING_BACK), world(observed=seen(WHOLE, step=FORMER_STEP))) is None


def test_applying_returns_to_draining_only_when_its_step_is_used_up() -> None:
    turn = world(observed=seen(WHOLE, step=FORMER_STEP), rule=quiesce(), holders=[holder()])
    assert advance(record(Phase.APPLYING), turn) is None, "somebody may still be about to write this step"


def test_a_driver_that_was_updated_may_see_its_pods_end_while_it_starts() -> None:
    state = record(Phase.APPLYING, target=WHOLE_UPGRADED, previous=WHOLE)
    assert state.change == "Restart"
    turn = world(
        wanted=WHOLE_UPGRADED, observed=seen(WHOLE_UPGRADED, step=STEP, ready=False), holders=[holder(terminating=True)]
    )
    assert advance(state, turn) is None


# --------------------------------------------------------------------------------------------------------------------- restarts


def test_the_pod_that_has_to_go_is_on_record_before_it_goes() -> None:
    state, turn = CASES[Phase.APPLYING, ANEW]
    assert must(state, turn).restart == Restart(pod_uid="pod-1", step=STEP)


@pytest.mark.parametrize(
    ("restart", "plugin", "done"),
    [
        (Restart(pod_uid="pod-1", step=STEP), "pod-2", True),
        (Restart(pod_uid="pod-1", step=STEP), "pod-1", False),
        (Restart(pod_uid="pod-0", step=FORMER_STEP), "pod-1", False),
    ],
    ids=["another pod runs", "still the same pod", "recorded in an earlier step"],
)
def test_only_a_restart_of_this_step_counts(restart: Restart, plugin: str, done: bool) -> None:
    turn = world(wanted=HALVES_RESTARTED, observed=seen(HALVES_RESTARTED, step=STEP, plugin=plugin))
    step = advance(same_assignment(Phase.APPLYING, restart=restart), turn)
    assert (step is not None and step.state.phase is Phase.VERIFYING) == done


def test_a_restart_recorded_in_an_earlier_step_is_recorded_anew() -> None:
    state = same_assignment(Phase.APPLYING, restart=Restart(pod_uid="pod-0", step=FORMER_STEP))
    turn = world(wanted=HALVES_RESTARTED, observed=seen(HALVES, step=STEP))
    assert must(state, turn).restart == Restart(pod_uid="pod-1", step=STEP)


def test_no_pod_is_marked_to_go_while_somebody_needs_it_to_end() -> None:
    turn = world(
        wanted=HALVES_RESTARTED, observed=seen(HALVES, step=STEP), holders=[holder(terminating=True)], rule=quiesce()
    )
    assert advance(same_assignment(Phase.APPLYING), turn) is None


def test_a_change_of_the_assignment_needs_no_restart_by_us() -> None:
    after = must(record(Phase.APPLYING), world(observed=seen(HALVES, step=STEP)))
    assert (after.phase, after.restart) == (Phase.VERIFYING, None)


# ---------------------------------------------------------------------------------------------------------- reasons and messages


def test_the_cause_of_a_failure_is_kept_until_it_has_been_undone() -> None:
    late = world(after=LIMITS.verifying, observed=seen(HALVES, step=STEP, pool=cut(4)))
    state = must(record(Phase.VERIFYING), late)
    assert state.reason == "VerifyingFailed"
    assert state.message == (
        "the node does not publish what is wanted: 2 are there that should be gone, such as gpu-0-part-2"
    )
    cause = state.reason, state.message
    for observed in (seen(WHOLE, step=FRESH), seen(WHOLE)):
        state = must(state, world(observed=observed))
        assert (state.reason, state.message) == cause, state.phase
    assert state.phase is Phase.ROLLED_BACK
    state = must(state, world(observed=seen(WHOLE)))
    assert (state.reason, state.message, state.token) == (*cause, "")
    assert rest(state, world(observed=seen(WHOLE))) is None


def test_restarting_the_driver_hides_no_cause() -> None:
    state, turn = CASES[Phase.ROLLING_BACK, ANEW]
    after = must(state.model_copy(update={"reason": "ApplyingFailed", "message": "why"}), turn)
    assert (after.reason, after.message) == ("ApplyingFailed", "why")


def test_a_failed_node_of_which_only_the_way_back_is_wanted_takes_it() -> None:
    for wanted in (None, WHOLE):
        way = way_out(record(Phase.FAILED, previous=WHOLE), world(wanted=wanted))
        assert way is not None
        assert way.to is Phase.ROLLING_BACK


def test_a_driver_that_published_nonsense_before_the_change_is_back_when_it_publishes_what_it_is_told() -> None:
    state = record(Phase.ROLLING_BACK, previous=replace(WHOLE, pool=QUARTERS.pool))
    back = seen(WHOLE, step=STEP)
    assert advance(state, world(observed=back)) is None
    assert must(state, world(observed=replace(back, as_told=True))).phase is Phase.RELEASING


def test_trying_again_keeps_the_cause_until_there_is_a_new_one() -> None:
    state, turn = CASES[Phase.FAILED, "somebody asked to try again"]
    after = must(state.model_copy(update={"reason": "RollingBackFailed", "message": "why"}), turn)
    assert (after.reason, after.message) == ("RollingBackFailed", "why")


@pytest.mark.parametrize(
    "change",
    [
        {"observed": seen(WHOLE, step=FORMER_STEP)},
        {"observed": replace(seen(WHOLE, step=STEP), assignment=HALVES.assignment)},
        {"observed": seen(WHOLE, step=STEP, ready=False)},
        {"observed": seen(WHOLE, step=STEP, pool=HALVES.pool)},
        {"matched": LIMITS.min_ready - SECOND},
        {"node_ready": False},
    ],
    ids=["another step", "another assignment", "a driver that is down", "another pool", "for a moment", "not Ready"],
)
def test_a_failed_node_stays_closed_while_anything_differs_from_what_it_had(change: dict[str, Any]) -> None:
    state, turn = CASES[Phase.FAILED, AFTER_ALL]
    assert way_out(state, replace(turn, **change)) is None


def test_a_failed_node_of_which_the_way_back_was_not_walked_does_not_open_by_itself() -> None:
    _, turn = CASES[Phase.FAILED, AFTER_ALL]
    assert way_out(record(Phase.FAILED, reason="ApplyingFailed"), turn) is None
    left = same_assignment(Phase.FAILED, reason="VerifyingFailed", restart=Restart(pod_uid="pod-0", step=STEP))
    same = world(wanted=HALVES_RESTARTED, observed=seen(HALVES, step=STEP), matched=LONG)
    assert way_out(left, same) is None, "one value and one pool of two configs: it may run either"


def test_a_failed_node_that_was_mended_counts_as_rolled_back_until_somebody_asks() -> None:
    state, turn = CASES[Phase.FAILED, AFTER_ALL]
    opening = must(state, turn)
    at_rest = must(opening, turn)
    assert (at_rest.phase, at_rest.current, at_rest.dirty) == (Phase.ROLLED_BACK, state.previous, False)
    assert at_rest.message == f"{AFTER_ALL}; before, the former layout did not come back in time"
    given_back = at_rest.model_copy(update={"token": ""})
    assert rest(given_back, turn) is None
    assert must(given_back, replace(turn, retry="once more")).phase is Phase.PENDING


def test_a_failure_names_what_is_missing() -> None:
    late = world(after=LIMITS.applying, observed=seen(HALVES, step=STEP, ready=False, pool=Pool()))
    assert must(record(Phase.APPLYING), late).message == (
        "the driver did not take the new config in time: its driver pod is not ready; "
        "2 of 2 devices are missing, such as gpu-0-part-0"
    )


@pytest.mark.parametrize(
    ("state", "layout", "told"),
    [
        (record(Phase.APPLYING, message="no holder is left"), HALVES, "{}"),
        (record(Phase.VERIFYING, message="the driver runs with the new config"), HALVES, "{}"),
        (record(Phase.ROLLING_BACK, reason="ApplyingFailed", message="why"), WHOLE, "why; by now {}"),
        (lost(Phase.VERIFYING).model_copy(update={"message": "was restarted"}), HALVES, "was restarted; by now {}"),
    ],
    ids=lambda each: each.phase if isinstance(each, NodeStateStatus) else "",
)
def test_what_takes_longer_than_usual_says_what_it_waits_for_and_seldom(
    state: NodeStateStatus, layout: Config, told: str
) -> None:
    not_up = world(observed=seen(layout, step=state.step, ready=False))
    assert advance(state, replace(not_up, told=LIMITS.telling - SECOND)) is None
    after = must(state, replace(not_up, told=LIMITS.telling))
    assert after == state.model_copy(update={"message": told.format("its driver pod is not ready")})
    assert advance(after, replace(not_up, told=LONG)) is None, "it is said once"
    half_up = world(observed=seen(layout, step=state.step, ready=False, pool=Pool()))
    assert advance(after, half_up) is None, "not so soon after it has said something else"
    assert "devices are missing" in must(after, replace(half_up, told=LIMITS.telling)).message


def test_what_is_back_says_why_it_had_to_go_back_and_no_longer_what_it_waited_for() -> None:
    state, turn = CASES[Phase.ROLLING_BACK, "the node publishes its former layout again"]
    waiting = state.model_copy(update={"reason": "ApplyingFailed", "message": "why; by now nothing is there"})
    assert must(waiting, turn).message == "why"


def test_a_node_whose_step_is_not_written_yet_waits_for_nothing_of_its_driver() -> None:
    turn = world(observed=seen(WHOLE, step=FORMER_STEP, ready=False))
    assert advance(record(Phase.APPLYING), replace(turn, told=LONG)) is None


def test_success_has_a_message_and_no_reason() -> None:
    state, turn = CASES[Phase.VERIFYING, "the node publishes exactly what is wanted"]
    after = must(state, turn)
    assert (after.reason, after.message) == ("", "the node publishes exactly what is wanted")


# ------------------------------------------------------------------------------------------------------------------ the outcome


def test_a_verified_node_has_its_target_and_a_clean_slate() -> None:
    state, turn = CASES[Phase.VERIFYING, "the node publishes exactly what is wanted"]
    state = state.model_copy(update={"attempts": 3})
    state = must(must(state, replace(turn, quiesce=quiesce())), turn)
    assert (state.phase, state.current, state.attempts) == (Phase.UP_TO_DATE, state.target, 0)
    assert (state.previous, state.restart, state.outcome, state.change) == (None, None, None, "None")
    assert state.token == TOKEN, "the token leaves last"
    assert state.original == WHOLE.assigned()


def test_a_node_that_was_rolled_back_has_its_former_layout_and_remembers_what_it_could_not_get() -> None:
    state, turn = CASES[Phase.ROLLING_BACK, "the node publishes its former layout again"]
    state = must(must(state, turn), turn)
    assert state.phase is Phase.ROLLED_BACK
    assert state.current == WHOLE.assigned()
    assert state.target is not None
    assert state.target.fingerprint == "halves"


def test_giving_up_puts_a_node_at_the_end_of_the_queue() -> None:
    state, turn = CASES[Phase.DRAINING, SLOW_HOLDERS]
    state = must(must(state, turn), world())
    assert (state.phase, state.attempts) == (Phase.PENDING, 1)


@pytest.mark.parametrize("phase", [Phase.ABORTING, Phase.RELEASING])
def test_nobody_is_at_rest_before_the_rule_is_gone(phase: Phase) -> None:
    assert advance(record(phase), world(rule=quiesce(active=False))) is None
