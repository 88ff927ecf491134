"""A node at rest: it takes a grant, records what is there, or says what it waits for."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import pytest
from tests.unit.worlds import (
    HALVES,
    HALVES_RESTARTED,
    LIMITS,
    QUARTERS,
    T0,
    TOKEN,
    WHOLE,
    WHOLE_UPGRADED,
    cut,
    granted,
    holder,
    record,
    seen,
    world,
)

from gpupartition.api.v1alpha1 import Assigned, Blocker, Drain, DrainMode, NodeStateStatus, Phase
from gpupartition.domain.changes import class_of
from gpupartition.domain.pool import Pool
from gpupartition.domain.problem import Problem
from gpupartition.domain.rest import rest
from gpupartition.domain.world import AT_REST, World

SECOND: Final = timedelta(seconds=1)


def must(state: NodeStateStatus, turn: World) -> NodeStateStatus:
    """The record after this turn, which has to change it."""
    step = rest(state, turn)
    assert step is not None, f"nothing happens in {state.phase}"
    return step.state


# ------------------------------------------------------------------------------------------------------------ at rest: the grant

RESTING: Final = sorted(AT_REST)


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.ROLLED_BACK, Phase.SKIPPED, Phase.UP_TO_DATE])
def test_a_grant_leads_to_admitted_with_the_way_back_on_record(phase: Phase) -> None:
    turn = world(grant=granted())
    after = must(record(phase, original=None), turn)
    assert (after.phase, after.token, after.boot_id) == (Phase.ADMITTED, TOKEN, "boot-1")
    assert after.previous == after.original == WHOLE.assigned().model_copy(update={"since": turn.now})
    assert after.target is not None
    assert (after.target.fingerprint, after.change) == ("halves", "Repartition")


def test_what_the_node_had_before_the_first_touch_is_never_forgotten() -> None:
    after = must(
        record(Phase.UP_TO_DATE), world(wanted=QUARTERS, observed=seen(HALVES), way_back=HALVES, grant=granted())
    )
    assert after.original == WHOLE.assigned()
    assert after.previous is not None
    assert after.previous.fingerprint == "halves"


@pytest.mark.parametrize(
    "turn",
    [
        world(grant=granted(), there=False),
        world(grant=granted(), grant_stands=False),
        world(grant=granted(), wanted=None),
        world(grant=granted(), way_back=None),
        world(grant=granted(), observed=seen(HALVES)),
        replace(world(grant=granted()), held_back=True),
    ],
    ids=["node gone", "made for somebody else", "nothing wanted", "no way back", "already there", "paused since"],
)
def test_a_useless_grant_is_only_taken_so_that_it_can_be_given_back(turn: World) -> None:
    state = record(Phase.PENDING)
    assert must(state, turn) == state.model_copy(update={"token": TOKEN})


def test_a_node_in_use_takes_no_grant_unless_its_policy_waits_for_holders() -> None:
    held = world(grant=granted(), holders=[holder()])
    back = must(record(Phase.PENDING), held)
    assert (back.phase, back.token) == (Phase.PENDING, TOKEN)
    assert [blocker.claim for blocker in back.blockers] == [holder().claim]
    assert must(record(Phase.PENDING), replace(held, drain=Drain(mode=DrainMode.WAIT))).phase is Phase.ADMITTED


def test_a_policy_that_does_not_wait_takes_no_node_that_has_just_been_taken_by_a_claim() -> None:
    held = world(grant=granted(), holders=[holder()])
    after = must(record(Phase.PENDING), held)
    assert (after.phase, after.token, [b.claim for b in after.blockers]) == (Phase.PENDING, TOKEN, ["team/claim"])
    assert must(record(Phase.PENDING), replace(held, drain=Drain(mode=DrainMode.WAIT))).phase is Phase.ADMITTED


@pytest.mark.parametrize("phase", RESTING)
def test_while_the_ledger_has_its_entry_a_node_at_rest_does_nothing(phase: Phase) -> None:
    for turn in (world(grant=granted(), wanted=QUARTERS), world(grant=granted(), observed=seen(HALVES))):
        assert rest(record(phase, token=TOKEN), turn) is None


@pytest.mark.parametrize("phase", RESTING)
@pytest.mark.parametrize("grant", [None, granted("another")], ids=["no entry", "a later entry"])
def test_the_token_leaves_only_after_the_entry_has(phase: Phase, grant: Any) -> None:
    state = record(phase, token=TOKEN)
    assert must(state, world(grant=grant)) == state.model_copy(update={"token": ""})


def test_admission_answers_the_retry_that_was_asked_for() -> None:
    assert must(record(Phase.ROLLED_BACK, retry="monday"), world(grant=granted(), retry="tuesday")).retry == "tuesday"


# ------------------------------------------------------------------------------------------------------- at rest: adoption, waiting


@pytest.mark.parametrize(
    ("observed", "wanted", "change"),
    [
        (seen(HALVES), HALVES, "None"),
        (replace(seen(HALVES), assignment=None), HALVES, "Restart"),
        (seen(WHOLE), WHOLE_UPGRADED, "Restart"),
        (seen(WHOLE), HALVES, "Repartition"),
        (seen(HALVES, pool=Pool(problem="1 of 2 slices")), HALVES, "Repartition"),
    ],
)
def test_how_deep_a_change_goes(observed: Any, wanted: Any, change: str) -> None:
    assert class_of(observed, wanted, live=False) == change


@pytest.mark.parametrize("phase", RESTING)
def test_a_node_that_has_what_is_wanted_is_only_recorded(phase: Phase) -> None:
    turn = world(observed=seen(HALVES))
    after = must(NodeStateStatus(phase=phase), turn)
    assert after.phase is Phase.UP_TO_DATE
    assert after.current == after.target == HALVES.assigned("rev").model_copy(update={"since": turn.now})
    assert rest(after, turn) is None, "once is enough"


def test_a_node_that_runs_what_is_wanted_without_our_label_keeps_what_it_carries() -> None:
    base = replace(seen(HALVES), assignment=None)
    assert must(NodeStateStatus(), world(observed=base)).current == Assigned(
        fingerprint="halves", assignment=None, pool=HALVES.pool.to_json(), revision="rev", since=T0 + SECOND
    )


@pytest.mark.parametrize(
    "observed",
    [seen(HALVES, ready=False), seen(HALVES_RESTARTED), seen(HALVES, pool=cut(4)), seen(HALVES, pool=Pool())],
    ids=["driver not ready", "older config", "another pool", "no pool"],
)
def test_what_is_not_quite_there_is_not_adopted(observed: Any) -> None:
    after = rest(NodeStateStatus(), world(observed=observed))
    assert after is None or after.state.phase is Phase.PENDING


def test_a_node_without_a_way_back_is_skipped_until_there_is_one() -> None:
    skipped = must(NodeStateStatus(), world(way_back=None))
    assert (skipped.phase, skipped.reason) == (Phase.SKIPPED, "NoWayBack")
    assert skipped.message == "nothing says what its driver runs"
    assert must(skipped, world()).phase is Phase.PENDING


def test_a_new_target_begins_with_no_failed_attempts() -> None:
    after = must(record(Phase.PENDING, attempts=4), world(wanted=QUARTERS))
    assert (after.phase, after.attempts) == (Phase.PENDING, 0)


def test_a_rolled_back_node_waits_until_somebody_asks_or_wants_something_else() -> None:
    state = record(Phase.ROLLED_BACK, retry="monday", reason="VerifyingFailed", message="why")
    assert rest(state, world(retry="monday")) is None
    assert must(state, world(retry="tuesday")).phase is Phase.PENDING
    assert must(state, world(retry="monday", wanted=QUARTERS)).phase is Phase.PENDING


def test_blockers_keep_the_time_since_which_they_are_in_the_way() -> None:
    first = must(record(Phase.PENDING), world(holders=[holder()]))
    assert [b.since for b in first.blockers] == [T0 + SECOND]
    later = world(after=timedelta(hours=1), holders=[holder(), holder(claim="team/another")])
    assert {b.claim: b.since for b in must(first, later).blockers} == {
        "team/another": T0 + timedelta(hours=1),
        "team/claim": T0 + SECOND,
    }


def test_waiting_for_the_same_holders_is_not_news() -> None:
    waiting = must(record(Phase.PENDING), world(holders=[holder()]))
    assert rest(waiting, world(after=timedelta(hours=1), holders=[holder()])) is None


def test_blockers_go_when_nobody_is_in_the_way_any_more() -> None:
    state = record(Phase.PENDING, message="waits to be admitted", blockers=[Blocker(node="node-a", claim="team/claim")])
    assert must(state, world()).blockers == []


def test_at_most_ten_blockers_are_on_record() -> None:
    crowd = [holder(claim=f"team/claim-{n:02}") for n in range(12)]
    assert [b.claim for b in must(record(Phase.PENDING), world(holders=crowd)).blockers] == [
        f"team/claim-{n:02}" for n in range(10)
    ]


# ---------------------------------------------------------------------------------------------------------------- at rest: drift

DRIFTED: Final = seen(HALVES, pool=cut(4))


def test_a_difference_is_drift_only_when_it_lasts() -> None:
    state = record(Phase.UP_TO_DATE)
    assert rest(state, world(observed=DRIFTED, differs=LIMITS.drift - SECOND)) is None
    after = must(state, world(observed=DRIFTED, differs=LIMITS.drift))
    assert (after.phase, after.reason) == (Phase.PENDING, "Drift")
    assert "2 are there that should be gone" in after.message


def test_a_driver_that_is_away_for_a_moment_makes_nobody_skip_its_node() -> None:
    away = world(observed=seen(HALVES, ready=False, plugin="", pool=Pool()), way_back=None, differs=SECOND)
    assert rest(record(Phase.UP_TO_DATE), away) is None


def test_drift_stays_drift_while_it_waits_and_ends_when_it_heals() -> None:
    drifted = must(record(Phase.UP_TO_DATE), world(observed=DRIFTED, differs=LIMITS.drift))
    assert rest(drifted, world(observed=DRIFTED)) is None
    assert must(drifted, world(observed=seen(HALVES))).phase is Phase.UP_TO_DATE


@pytest.mark.parametrize("phase", RESTING)
def test_without_a_node_or_a_wish_a_record_at_rest_stays_as_it_is(phase: Phase) -> None:
    for turn in (world(there=False), world(wanted=None), world(wanted=None, refused=True)):
        assert rest(record(phase), turn) is None


# ------------------------------------------------------------------------------------------------------------- a node of others

TAKEN: Final = Problem(
    reason="DevicePluginPresent", at="node node-a", why="a plugin offers it", fix="remove that", of_node=True
)
LEFT_OUT: Final = replace(world(wanted=None, refused=True), left_out=TAKEN)


@pytest.mark.parametrize("phase", RESTING)
def test_a_node_that_is_refused_alone_is_skipped_with_the_reason_and_what_to_do(phase: Phase) -> None:
    after = must(record(phase), LEFT_OUT)
    assert (after.phase, after.reason) == (Phase.SKIPPED, "DevicePluginPresent")
    assert after.message == "a plugin offers it; remove that"
    assert rest(after, LEFT_OUT) is None, "it is said once"


def test_a_node_that_was_cleaned_up_is_taken_up_again_or_adopted() -> None:
    skipped = must(record(Phase.UP_TO_DATE), LEFT_OUT)
    assert must(skipped, world(observed=seen(WHOLE))).phase is Phase.PENDING
    assert must(skipped, world(observed=seen(HALVES))).phase is Phase.UP_TO_DATE


def test_a_grant_for_a_node_that_is_refused_alone_is_only_taken_to_be_given_back() -> None:
    after = must(record(Phase.PENDING), replace(LEFT_OUT, grant=granted()))
    assert (after.phase, after.token) == (Phase.PENDING, TOKEN)
