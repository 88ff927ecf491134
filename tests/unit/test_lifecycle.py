"""One node's way: closed, drained, wanted for something else, gone, given up, and what it has come to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.exits import (
    CASES,
    IN_FLIGHT,
    LATE_CONFIG,
    OTHERWISE,
    SECOND,
    SLOW_HOLDERS,
    UNWANTED,
    must,
    stayed_away,
)
from tests.unit.worlds import (
    FRESH,
    HALVES,
    LIMITS,
    LONG,
    NEVER,
    QUARTERS,
    STEP,
    T0,
    TOKEN,
    WHOLE,
    cut,
    holder,
    quiesce,
    record,
    seen,
    world,
)

from gpupartition.api.v1alpha1 import Phase
from gpupartition.domain.backend import Config
from gpupartition.domain.destination import IN_VAIN, STRANDED
from gpupartition.domain.lifecycle import advance, way_out
from gpupartition.domain.rest import rest
from gpupartition.domain.world import AT_REST, World

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


def test_a_node_that_cannot_be_closed_begins_anew_in_the_way_that_its_driver_says_by_now() -> None:
    """What is up is taken down first, in the way that the record says: no node ever carries what no record knows of."""
    state, turn = CASES[Phase.QUIESCING, OTHERWISE]
    opening = must(state, turn)
    assert (opening.phase, opening.quiesce) == (Phase.ABORTING, "DeviceTaint")
    opened = must(opening, replace(turn, quiesce=None))
    assert (opened.phase, opened.attempts) == (Phase.PENDING, state.attempts), "it does not go to the end of the queue"
    answered = replace(turn, quiesce=quiesce())
    assert must(state, answered).phase is Phase.DRAINING, "one that is closed goes on"
    assert way_out(state.model_copy(update={"dirty": True}), turn) is None, "nothing verified is let go of"


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


def test_a_node_whose_config_cannot_be_put_in_place_lets_the_others_go_first_and_goes_on_saying_why() -> None:
    state, turn = CASES[Phase.ADMITTED, LATE_CONFIG]
    state = must(state, turn)
    assert (state.phase, state.attempts, state.previous) == (Phase.PENDING, 1, None)
    given_back = must(state, world())
    assert given_back.token == ""
    assert rest(given_back, world()) is None, "it waits for its turn, and nothing else is said"
    assert (given_back.reason, given_back.message) == ("ConfigLate", LATE_CONFIG)
    assert must(given_back, world(wanted=QUARTERS)).reason == "", "of another config nothing is known yet"


@pytest.mark.parametrize("phase", [Phase.ABORTING, Phase.RELEASING])
def test_nobody_is_at_rest_before_the_rule_is_gone(phase: Phase) -> None:
    assert advance(record(phase), world(rule=quiesce(active=False))) is None
