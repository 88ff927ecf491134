"""Pace and failure: pauses between nodes, windows, failures that are too many or not, and deadlines, as pure decisions."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.unit.worlds import HALVES, QUARTERS, STEP, T0, WHOLE, cut, record, seen, world

from gpupartition.api.v1alpha1 import (
    Blocker,
    Condition,
    Grant,
    NodeStateStatus,
    OnFailure,
    Phase,
    PolicySpec,
    PolicyStatus,
)
from gpupartition.domain.admission import Admission, Rules, Standing, admit
from gpupartition.domain.conditions import summarise, verdict
from gpupartition.domain.lifecycle import advance
from gpupartition.domain.problem import Problem, Turn
from gpupartition.domain.rest import released_at, rest
from gpupartition.domain.rollout import Rollout
from gpupartition.domain.world import Limits

if TYPE_CHECKING:
    from collections.abc import Sequence

SECOND: Final = timedelta(seconds=1)
MINUTE: Final = timedelta(minutes=1)
ARRIVING: Final = Limits().arriving


def node(name: str, phase: Phase = Phase.PENDING, **more: Any) -> Standing:
    fields: dict[str, Any] = {"at_target": phase is Phase.UP_TO_DATE}
    return Standing(node=name, uid=f"uid-{name}", phase=phase, **(fields | more))


def rolled_back(name: str) -> Standing:
    return node(name, Phase.ROLLED_BACK, halted=True)


def failed(name: str) -> Standing:
    return node(name, Phase.FAILED, halted=True)


def decide(*nodes: Standing, ledger: Sequence[Grant] = (), others: Sequence[str] = (), **rules: Any) -> Admission:
    allowed: dict[str, Any] = {"max_unavailable": 1, "driver_max_unavailable": 100, "limit": 100, "now": T0}
    return admit(nodes=nodes, others=others, ledger=ledger, rules=Rules(**(allowed | rules)))


# ── how many failures are too many ────────────────────────────────────────────────────────────────────────────────────


def test_as_many_nodes_as_allowed_may_fail_and_the_others_go_on() -> None:
    assert decide(rolled_back("a"), rolled_back("b"), node("c"), max_failed=2).nodes == ("c",)


def test_one_failure_more_halts_the_roll_out() -> None:
    found = decide(rolled_back("a"), rolled_back("b"), node("c"), max_failed=1)
    assert (found.nodes, found.reason) == ((), "RolloutHalted")
    assert "a" in found.message


def test_a_node_that_has_failed_is_not_taken_again_by_itself() -> None:
    assert decide(rolled_back("a"), max_failed=5) == Admission()
    assert decide(rolled_back("a"), node("b"), node("c"), max_unavailable=3, max_failed=5).nodes == ("b", "c")


def test_nodes_that_could_not_be_rolled_back_use_up_what_may_be_unavailable() -> None:
    found = decide(failed("a"), node("b"), max_failed=1)
    assert (found.nodes, found.reason) == ((), "RolloutHalted")
    assert "maxUnavailable is used up by a, which failed" in found.message
    assert decide(failed("a"), node("b"), max_failed=1, max_unavailable=2).nodes == ("b",)


def test_with_continue_they_count_as_failures_instead() -> None:
    assert decide(failed("a"), node("b"), max_failed=1, go_on=True).nodes == ("b",)
    assert decide(failed("a"), failed("b"), node("c"), max_failed=1, go_on=True).reason == "RolloutHalted"


def test_with_continue_the_drivers_budget_is_open_too_but_for_nodes_of_others() -> None:
    assert decide(failed("a"), node("b"), max_failed=1, go_on=True, driver_max_unavailable=1).nodes == ("b",)
    found = decide(failed("a"), node("b"), max_failed=1, go_on=True, driver_max_unavailable=1, others=["x"])
    assert (found.nodes, found.reason) == ((), "BudgetExhausted")


def test_a_node_that_is_being_brought_back_is_unavailable_with_continue_too() -> None:
    assert decide(node("a", Phase.ROLLING_BACK), node("b"), max_failed=1, go_on=True).nodes == ()


def test_when_only_failed_nodes_are_left_nothing_moves_any_more() -> None:
    found = decide(failed("a"), node("b", Phase.UP_TO_DATE), max_failed=1, go_on=True)
    assert (found.nodes, found.reason, found.left) == ((), "RolloutHalted", 0)


# ── limits lowered midway ─────────────────────────────────────────────────────────────────────────────────────────────


def test_with_fewer_nodes_allowed_than_are_in_flight_nobody_begins_until_enough_have_finished() -> None:
    moving = [node(name, Phase.VERIFYING) for name in "abc"]
    assert decide(*moving, node("d"), max_unavailable=2).nodes == ()
    done = node("a", Phase.UP_TO_DATE)
    assert decide(done, *moving[1:], node("d"), max_unavailable=2).nodes == ()
    assert decide(done, node("b", Phase.UP_TO_DATE), moving[2], node("d"), max_unavailable=2).nodes == ("d",)


@pytest.mark.parametrize("phase", [Phase.ADMITTED, Phase.QUIESCING, Phase.DRAINING, Phase.APPLYING, Phase.VERIFYING])
def test_no_node_is_thrown_back_because_less_is_allowed(phase: Phase) -> None:
    """A turn of a node in flight knows neither budget, limit, window nor pause: nothing of them can stop it."""
    state = record(phase)
    step = advance(state, world())
    assert step is None or step.state.phase not in {Phase.ABORTING, Phase.PENDING, Phase.ROLLING_BACK}


# ── the pause between two nodes ───────────────────────────────────────────────────────────────────────────────────────


def released(name: str, at: datetime) -> Standing:
    return node(name, Phase.UP_TO_DATE, released=at)


def test_no_other_node_is_taken_until_the_pause_after_the_last_release_is_over() -> None:
    nodes = [released("a", T0 - 10 * MINUTE), released("b", T0 - MINUTE), node("c")]
    found = decide(*nodes, pause=5 * MINUTE)
    assert (found.nodes, found.reason, found.left) == ((), "RollingOut", 1)
    assert found.until == T0 + 4 * MINUTE
    assert "12:04:00 UTC" in found.message
    assert decide(*nodes, pause=5 * MINUTE, now=T0 + 4 * MINUTE - SECOND).nodes == ()
    assert decide(*nodes, pause=5 * MINUTE, now=T0 + 4 * MINUTE).nodes == ("c",)


def test_nodes_that_were_only_adopted_start_no_pause() -> None:
    assert decide(node("a", Phase.UP_TO_DATE), node("b"), pause=MINUTE).nodes == ("b",)


def test_without_a_node_to_take_there_is_nothing_to_wait_for() -> None:
    assert decide(released("a", T0), pause=MINUTE) == Admission()


def test_a_node_was_released_when_a_change_brought_it_there_and_not_when_it_had_it_already() -> None:
    changed = record(Phase.UP_TO_DATE, since=T0 + MINUTE)
    assert released_at(changed) == T0 + MINUTE
    adopted = rest(NodeStateStatus(), world(observed=seen(HALVES)))
    assert adopted is not None
    assert adopted.state.phase is Phase.UP_TO_DATE
    assert released_at(adopted.state) is None


def test_a_node_that_was_changed_once_and_had_the_next_layout_already_is_adopted() -> None:
    quartered = seen(QUARTERS)
    step = rest(record(Phase.PENDING), world(wanted=QUARTERS, observed=quartered))
    assert step is not None
    assert step.state.original is not None
    assert released_at(step.state) is None


def test_a_node_that_has_left_what_it_was_released_with_starts_no_pause() -> None:
    assert released_at(record(Phase.PENDING)) is None


# ── windows ───────────────────────────────────────────────────────────────────────────────────────────────────────────

OPENS: Final = T0 + timedelta(hours=10)
OUTSIDE: Final[dict[str, Any]] = {"outside": "Sun 2026-03-01 22:00 UTC", "turn": OPENS}


def test_outside_the_windows_nobody_begins_and_it_is_said_when_that_will_be() -> None:
    found = decide(node("a"), node("b"), **OUTSIDE)
    assert (found.nodes, found.reason, found.left, found.until) == ((), "OutsideWindow", 2, OPENS)
    assert "Sun 2026-03-01 22:00 UTC" in found.message


def test_when_the_window_closes_is_known_too() -> None:
    assert decide(node("a"), node("b"), turn=OPENS).until == OPENS


def test_nothing_waits_for_a_window_when_nothing_is_left_or_the_limit_is_reached() -> None:
    assert decide(node("a", Phase.UP_TO_DATE), **OUTSIDE) == Admission()
    assert decide(node("a", Phase.UP_TO_DATE), node("b"), limit=1, **OUTSIDE).reason == "LimitReached"


def test_what_stops_everything_is_said_before_the_window() -> None:
    assert decide(node("a"), paused="p", **OUTSIDE).reason == "Paused"
    assert decide(rolled_back("a"), node("b"), **OUTSIDE).reason == "RolloutHalted"


# ── what becomes of the node that fails ───────────────────────────────────────────────────────────────────────────────

LATE: Final = Limits().applying


@pytest.mark.parametrize("phase", [Phase.APPLYING, Phase.VERIFYING])
@pytest.mark.parametrize(
    ("answer", "to"),
    [
        (OnFailure.ROLL_BACK, Phase.ROLLING_BACK),
        (OnFailure.HALT, Phase.FAILED),
        (OnFailure.CONTINUE, Phase.ROLLING_BACK),
    ],
)
def test_what_fails_goes_where_the_policy_says(phase: Phase, answer: OnFailure, to: Phase) -> None:
    broken = seen(HALVES, step=STEP, ready=False, pool=cut(4))
    step = advance(record(phase), replace(world(after=LATE, observed=broken), on_failure=answer))
    assert step is not None
    assert step.state.phase is to
    assert step.state.reason == f"{phase}Failed"
    assert "2 are there that should be gone" in step.state.message


def test_a_halted_node_keeps_its_way_back_and_its_grant_and_walks_it_when_somebody_asks() -> None:
    broken = seen(HALVES, step=STEP, pool=cut(4))
    step = advance(
        record(Phase.VERIFYING), replace(world(after=LATE, observed=broken, retry="1"), on_failure=OnFailure.HALT)
    )
    assert step is not None
    halted = step.state
    assert halted.token
    assert halted.previous is not None
    assert halted.previous.fingerprint == WHOLE.fingerprint
    assert advance(halted, replace(world(retry="1", observed=broken), on_failure=OnFailure.HALT)) is None
    again = advance(halted, replace(world(retry="2", observed=broken), on_failure=OnFailure.HALT))
    assert again is not None
    assert again.state.phase is Phase.ROLLING_BACK


# ── how long a node must stand still ──────────────────────────────────────────────────────────────────────────────────


def test_standing_still_longer_takes_as_much_longer_to_verify() -> None:
    limits = Limits().standing_still(3600)
    assert limits.min_ready == timedelta(hours=1)
    assert limits.verifying - Limits().verifying == limits.min_ready - Limits().min_ready


def test_standing_still_for_less_leaves_the_time_to_verify_as_it_is() -> None:
    assert Limits().standing_still(0) == replace(Limits(), min_ready=timedelta(0))
    assert Limits().standing_still(None) == Limits()


# ── status ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def spec(**rollout: Any) -> PolicySpec:
    return PolicySpec.model_validate(
        {
            "driver": "example",
            "nodeSelector": {"matchLabels": {"pool": "inference"}},
            "layouts": [{"name": "halves", "match": {"all": True}, "type": "Equal", "equal": {"parts": 2}}],
            "rollout": rollout,
        }
    )


def rollout(*nodes: Standing, admission: Admission | None = None, since: datetime = T0, **more: Any) -> Rollout:
    records = {
        n.node: NodeStateStatus(
            phase=n.phase, since=since, message="why" if n.halted else "", target=HALVES.assigned(), attempts=n.attempts
        )
        for n in nodes
    }
    fields: dict[str, Any] = {"spec": spec(), "records": records, "admission": admission or decide(*nodes)}
    return Rollout(nodes=nodes, **(fields | more))


def test_a_roll_out_that_goes_on_after_a_failure_is_reconciling_and_names_the_failed_node() -> None:
    nodes = rolled_back("a"), node("b", Phase.APPLYING), node("c")
    said = verdict(rollout(*nodes, admission=decide(*nodes, max_failed=1)))
    assert (said.ready, said.reason, said.reconciling, said.stalled) == (False, "RollingOut", True, False)
    assert "1 failed: a" in said.message


@pytest.mark.parametrize("rules", [{"pause": MINUTE}, OUTSIDE], ids=["in the pause", "outside the window"])
def test_so_it_is_while_no_node_is_in_flight_for_the_moment(rules: dict[str, Any]) -> None:
    nodes = rolled_back("a"), released("b", T0), node("c")
    said = verdict(rollout(*nodes, admission=decide(*nodes, max_failed=1, **rules)))
    assert (said.ready, said.reconciling, said.stalled) == (False, True, False)


@pytest.mark.parametrize("broken", [rolled_back("a"), failed("a")], ids=["rolled back", "failed"])
@pytest.mark.parametrize("go_on", [False, True])
def test_when_all_the_others_are_done_it_is_stalled_and_never_ready(broken: Standing, go_on: bool) -> None:
    nodes = broken, node("b", Phase.UP_TO_DATE)
    said = verdict(rollout(*nodes, admission=decide(*nodes, max_failed=1, go_on=go_on)))
    assert (said.ready, said.reconciling, said.stalled) == (False, False, True)
    assert "node a: why" in said.message


def test_a_limit_that_is_reached_does_not_hide_a_failure() -> None:
    nodes = rolled_back("a"), node("b", Phase.UP_TO_DATE), node("c")
    admission = decide(*nodes, max_failed=1, limit=1)
    assert admission.reason == "LimitReached"
    said = verdict(rollout(*nodes, admission=admission))
    assert (said.ready, said.stalled) == (False, True)


def test_watching_only_does_not_hide_a_failure() -> None:
    watching = spec().model_copy(update={"mode": "Observe"})
    said = verdict(rollout(failed("a"), admission=Admission(), spec=watching))
    assert (said.ready, said.stalled) == (False, True)


def test_a_policy_that_waits_for_its_window_is_in_progress_and_says_until_when() -> None:
    nodes = node("a", Phase.UP_TO_DATE), node("b")
    said = verdict(rollout(*nodes, admission=decide(*nodes, **OUTSIDE)))
    assert (said.ready, said.reason, said.reconciling) == (False, "OutsideWindow", True)
    assert "Sun 2026-03-01 22:00 UTC" in said.message


# ── the progress deadline ─────────────────────────────────────────────────────────────────────────────────────────────

PATIENT: Final[dict[str, Any]] = {"progressDeadlineSeconds": 600}
DEADLINE: Final = timedelta(seconds=600)


def told(of: Rollout, now: datetime, before: PolicyStatus | None = None, generation: int = 1) -> PolicyStatus:
    return looked_at(of, now, before, generation)[0]


def looked_at(
    of: Rollout, now: datetime, before: PolicyStatus | None = None, generation: int = 1
) -> tuple[PolicyStatus, datetime | None]:
    """The status, and when it will be called stalled."""
    before = before or PolicyStatus()
    return summarise(of, before=before, generation=generation, now=now, revision="r", arriving=ARRIVING)


def says(status: PolicyStatus, kind: str) -> Condition | None:
    return next((c for c in status.conditions if c.type == kind), None)


def test_nothing_moves_for_so_long_and_it_is_stalled_and_says_what_it_waits_for() -> None:
    held = Blocker(node="b", claim="team/claim", pod="team/pod", since=T0)
    stuck = rollout(node("b", Phase.DRAINING, holders=1), spec=spec(**PATIENT))
    stuck.records["b"].blockers.append(held)
    first = told(stuck, T0)
    assert says(first, "Reconciling")
    almost = told(stuck, T0 + DEADLINE - SECOND, first)
    assert says(almost, "Reconciling")
    late = told(stuck, T0 + DEADLINE, almost)
    stalled, ready = says(late, "Stalled"), says(late, "Ready")
    assert stalled is not None
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "ProgressDeadlineExceeded")
    assert "node b waits for claim team/claim of pod team/pod" in stalled.message
    assert not says(late, "Reconciling")
    assert told(stuck, T0 + 2 * DEADLINE, late).conditions == late.conditions


def test_something_moves_again_and_it_is_no_longer_stalled() -> None:
    stuck = rollout(node("b", Phase.APPLYING), spec=spec(**PATIENT))
    late = told(stuck, T0 + DEADLINE, told(stuck, T0))
    assert says(late, "Stalled")
    moved = rollout(node("b", Phase.VERIFYING), spec=spec(**PATIENT), since=T0 + DEADLINE)
    after = told(moved, T0 + DEADLINE + SECOND, late)
    assert not says(after, "Stalled")
    assert says(after, "Reconciling")


def test_beginning_again_and_again_without_getting_further_is_no_move() -> None:
    first = told(rollout(node("b", Phase.DRAINING), spec=spec(**PATIENT)), T0)
    again = rollout(node("b", Phase.DRAINING, attempts=1), spec=spec(**PATIENT), since=T0 + DEADLINE - SECOND)
    assert says(told(again, T0 + DEADLINE, first), "Stalled")


def test_a_new_generation_begins_to_count_anew() -> None:
    stuck = rollout(node("b", Phase.APPLYING), spec=spec(**PATIENT))
    late = told(stuck, T0 + DEADLINE, told(stuck, T0))
    anew = told(stuck, T0 + 2 * DEADLINE, late, generation=2)
    assert not says(anew, "Stalled")
    assert says(told(stuck, T0 + 3 * DEADLINE, anew, generation=2), "Stalled")


def test_time_in_which_nothing_should_move_does_not_count() -> None:
    nodes = [node("b")]
    nights = spec(**PATIENT, windows=[{"start": "22:00", "end": "06:00", "timeZone": "UTC"}])
    outside = rollout(*nodes, admission=decide(*nodes, **OUTSIDE), spec=nights)
    evening = told(outside, T0 + timedelta(hours=9), told(outside, T0))
    assert not says(evening, "Stalled")
    inside = rollout(*nodes, admission=Admission(reason="WaitingForHolders", left=1), spec=nights)
    assert not says(told(inside, OPENS + SECOND, evening), "Stalled")
    assert says(told(inside, OPENS + DEADLINE, evening), "Stalled")


def test_the_pause_between_two_nodes_does_not_count() -> None:
    nodes = released("a", T0), node("b")
    slow = spec(**PATIENT, pauseBetweenSeconds=3600)
    resting = rollout(*nodes, admission=decide(*nodes, pause=60 * MINUTE), spec=slow)
    assert not says(told(resting, T0 + 59 * MINUTE, told(resting, T0)), "Stalled")


def test_after_being_unfrozen_time_counts_from_then_on() -> None:
    nodes = [node("b")]
    frozen = rollout(*nodes, admission=decide(*nodes, frozen="upgrade"), spec=spec(**PATIENT))
    cold = told(frozen, T0 + timedelta(days=1), told(frozen, T0))
    thawed = rollout(*nodes, admission=Admission(reason="WaitingForHolders", left=1), spec=spec(**PATIENT))
    assert not says(told(thawed, T0 + timedelta(days=1) + SECOND, cold), "Stalled")


def test_a_conflict_that_lasts_is_stalled_and_still_called_a_conflict() -> None:
    of = rollout(node("a", Phase.UP_TO_DATE), conflicts=("x",), spec=spec(**PATIENT))
    late = told(of, T0 + DEADLINE, told(of, T0))
    ready, stalled = says(late, "Ready"), says(late, "Stalled")
    assert ready is not None
    assert stalled is not None
    assert ready.reason == stalled.reason == "Conflict"
    assert "narrow one of the selectors" in stalled.message


def test_without_a_deadline_it_waits_for_ever() -> None:
    stuck = rollout(node("b", Phase.APPLYING))
    assert not says(told(stuck, T0 + timedelta(days=365), told(stuck, T0)), "Stalled")
    assert looked_at(stuck, T0)[1] is None


def test_it_is_known_when_to_look_again() -> None:
    stuck = rollout(node("b", Phase.APPLYING), spec=spec(**PATIENT))
    assert looked_at(stuck, T0 + MINUTE, told(stuck, T0))[1] == T0 + DEADLINE


def test_what_is_stalled_already_is_not_looked_at_again_for_that() -> None:
    stuck = rollout(node("b", Phase.APPLYING), spec=spec(**PATIENT))
    late, due = looked_at(stuck, T0 + DEADLINE, told(stuck, T0))
    assert says(late, "Stalled")
    assert due is None


def test_a_policy_that_is_done_has_no_deadline() -> None:
    done = rollout(node("a", Phase.UP_TO_DATE), spec=spec(**PATIENT))
    assert not says(told(done, T0 + timedelta(days=9), told(done, T0)), "Stalled")


# ── what the cluster lacks ────────────────────────────────────────────────────────────────────────────────────────────

NO_DRIVER: Final = Rollout(
    spec=spec(),
    nodes=(),
    records={},
    admission=Admission(),
    problems=[
        Problem(reason="DriverNotFound", at="spec.driver", why="it is not there", fix="create it", turn=Turn.CLUSTER)
    ],
)


def stalls(status: PolicyStatus) -> bool:
    """Whether a policy is given up; one that is not is being worked on, and neither is accepted."""
    given_up, waits, accepted = (says(status, kind) for kind in ("Stalled", "Reconciling", "Accepted"))
    assert (given_up is None) != (waits is None)
    assert accepted is not None
    assert (accepted.status, accepted.reason) == ("False", "DriverNotFound")
    return given_up is not None


def test_a_driver_that_comes_a_moment_after_its_policy_is_waited_for() -> None:
    fresh = told(NO_DRIVER, T0)
    assert not stalls(fresh)
    assert not stalls(told(NO_DRIVER, T0 + ARRIVING - SECOND, fresh))
    assert looked_at(NO_DRIVER, T0 + SECOND, fresh)[1] == T0 + ARRIVING


def test_one_that_does_not_come_stalls_its_policy_until_something_else_is_asked() -> None:
    given_up = told(NO_DRIVER, T0 + ARRIVING, told(NO_DRIVER, T0))
    assert stalls(given_up)
    assert stalls(told(NO_DRIVER, T0 + ARRIVING + SECOND, given_up))
    edited = told(NO_DRIVER, T0 + 2 * ARRIVING, given_up, generation=2)
    assert not stalls(edited)
    assert not stalls(told(NO_DRIVER, T0 + 2 * ARRIVING + SECOND, edited, generation=2))
    assert stalls(told(NO_DRIVER, T0 + 3 * ARRIVING, edited, generation=2))


def test_one_that_is_deleted_after_a_long_roll_out_is_waited_for_as_long() -> None:
    long_ago = told(rollout(node("b", Phase.APPLYING)), T0 - timedelta(days=1))
    gone = told(NO_DRIVER, T0, long_ago)
    assert not stalls(gone)
    assert not stalls(told(NO_DRIVER, T0 + SECOND, gone))
    assert stalls(told(NO_DRIVER, T0 + ARRIVING, gone))
