"""The table of phases: every exit has a case, and the rules that the table as a whole must keep."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.unit.exits import (
    ANEW,
    CASES,
    EXITS,
    HALTED,
    IN_FLIGHT,
    SECOND,
    SLOW_HOLDERS,
    must,
)
from tests.unit.worlds import (
    LIMITS,
    LONG,
    NEVER,
    T0,
    WHOLE,
    holder,
    quiesce,
    record,
    seen,
    world,
)

from gpupartition.api.v1alpha1 import Drain, DrainMode, OnTimeout, Phase
from gpupartition.domain.lifecycle import advance, way_out
from gpupartition.domain.phases import PHASES
from gpupartition.domain.rest import rest
from gpupartition.domain.world import AT_REST, Limits


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


def test_of_many_holders_three_are_named_and_all_the_others_counted() -> None:
    state, turn = CASES[Phase.DRAINING, SLOW_HOLDERS + HALTED]
    crowd = [holder(claim=f"team/c{number:02}") for number in range(50)]
    after = must(state, replace(turn, holders=crowd))
    assert after.message.endswith(" and claim team/c02 of pod team/c02-pod (Allocated) and 47 more")


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
