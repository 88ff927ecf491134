"""What a record says of a node in flight: why it is where it is, and what it waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.exits import (
    AFTER_ALL,
    ANEW,
    CASES,
    SECOND,
    lost,
    must,
    same_assignment,
)
from tests.unit.worlds import (
    FORMER_STEP,
    FRESH,
    HALVES,
    HALVES_RESTARTED,
    LIMITS,
    LONG,
    NEVER,
    QUARTERS,
    STEP,
    WHOLE,
    cut,
    record,
    seen,
    world,
)

from gpupartition.api.v1alpha1 import NodeStateStatus, Phase, Restart
from gpupartition.domain.backend import Config
from gpupartition.domain.lifecycle import advance, way_out
from gpupartition.domain.pool import Pool
from gpupartition.domain.rest import rest


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


def test_a_node_that_publishes_the_right_devices_too_late_says_what_it_lacks_or_that_they_did_not_stay() -> None:
    for ready, found in (
        (False, "its driver pod is not ready"),
        (True, "it does now, and did not for long enough at a time"),
    ):
        late = world(after=LIMITS.verifying, matched=NEVER, observed=seen(HALVES, step=STEP, ready=ready))
        assert must(record(Phase.VERIFYING), late).message == f"the node does not publish what is wanted: {found}"


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
