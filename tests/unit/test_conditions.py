"""Status from facts: one row of the table for each situation, and sentences that name node and cause."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest
from tests.unit.situations import (
    DONE,
    DRIFTED,
    FAILED,
    HELD,
    HOLDER,
    KEPT,
    LATER,
    MOVING,
    OBSERVE,
    REFUSED,
    ROLLED_BACK,
    SKIPPED,
    STRANDED,
    TABLE,
    UNREAD,
    WAITING,
    WHY,
    Node,
    Row,
    node,
    rollout,
    status,
)
from tests.unit.worlds import T0

from gpupartition.api.v1alpha1 import Condition, Phase, PolicyStatus, Suspended
from gpupartition.domain import destination
from gpupartition.domain.problem import Problem
from gpupartition.domain.rollout import Rollout


def said(found: PolicyStatus) -> dict[str, tuple[str, str]]:
    return {c.type: (c.status, c.reason) for c in found.conditions}


def condition(found: PolicyStatus, kind: str) -> Condition:
    return next(c for c in found.conditions if c.type == kind)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.situation)
def test_each_situation_has_its_row(row: Row) -> None:
    expected = {"Ready": (str(row.ready), row.reason)}
    if row.accepted is not None:
        expected["Accepted"] = (str(row.accepted), "Accepted" if row.accepted else row.reason)
    if row.reconciling:
        expected["Reconciling"] = ("True", row.reason)
    if row.stalled:
        expected["Stalled"] = ("True", row.reason)
    assert said(status(row.of)) == expected


def test_a_deleted_policy_says_which_nodes_keep_it_and_how_to_let_go_of_them() -> None:
    another = node("i", Phase.FAILED, reason=destination.STRANDED, message="another reason")
    told = next(c.message for c in status(rollout(STRANDED, another, deleting=True)).conditions if c.type == "Stalled")
    assert told == (
        f"node g (and 1 more) could not be brought back: {WHY}; "
        "mend it, or let go of it as it is: kubectl annotate node g gpupartition.dev/abandon=true"
    )


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.situation)
def test_reconciling_and_stalled_are_never_there_together_nor_beside_ready(row: Row) -> None:
    found = said(status(row.of))
    assert not {"Reconciling", "Stalled"} <= set(found)
    if found["Ready"][0] == "True":
        assert not {"Reconciling", "Stalled"} & set(found)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.situation)
def test_a_status_is_the_same_when_nothing_has_changed(row: Row) -> None:
    first = status(row.of)
    assert status(row.of, before=first, now=LATER) == first


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.situation)
def test_every_condition_says_something_of_this_generation(row: Row) -> None:
    found = status(row.of, generation=7)
    assert found.observed_generation == 7
    assert {c.observed_generation for c in found.conditions} == {7}
    assert all(c.message for c in found.conditions)


def test_a_policy_that_was_just_created_is_never_taken_for_done() -> None:
    assert PolicyStatus().observed_generation == -1
    assert PolicyStatus().conditions == []


@pytest.mark.parametrize("reason", ["Paused", "Frozen"])
@pytest.mark.parametrize(
    ("of", "ready"),
    [
        pytest.param([DONE], "True", id="complete"),
        pytest.param([FAILED], "False", id="failed"),
        pytest.param([WAITING], "False", id="waiting"),
        pytest.param([], "True", id="no node"),
    ],
)
def test_that_somebody_holds_it_up_is_said_whatever_ready_says(of: Sequence[Node], ready: str, reason: str) -> None:
    found = status(rollout(*of, reason=reason, words="storage is being moved"))
    assert found.suspended == Suspended(reason=reason, message="storage is being moved")
    assert condition(found, "Ready").status == ready
    assert status(rollout(*of), before=found).suspended is None


@pytest.mark.parametrize("reason", ["", "RollingOut", "OutsideWindow", "MassDrift", "Stopped"])
def test_what_nobody_holds_up_is_not_called_suspended(reason: str) -> None:
    assert status(rollout(DONE, reason=reason)).suspended is None


# -------------------------------------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (
            rollout(FAILED),
            f"node f: {WHY}; mend it, then annotate the policy with gpupartition.dev/retry=<any new value>",
        ),
        (
            rollout(ROLLED_BACK),
            f"node r: {WHY}; mend it, then annotate the policy with gpupartition.dev/retry=<any new value>",
        ),
        (rollout(DONE, UNREAD), "node x: its record cannot be read"),
        (rollout(DONE, SKIPPED), "node s is skipped: nothing says what its driver runs"),
        (
            rollout(problems=[REFUSED]),
            "spec.layouts[0].equal.parts: 200 are too many; ask for at most 128",
        ),
        (rollout(WAITING, reason="Stopped", words="BaseMissing: no DaemonSet"), "no DaemonSet"),
    ],
    ids=["failed", "rolled back", "unreadable", "skipped", "refused", "broken"],
)
def test_stalled_names_where_why_and_what_to_do(of: Rollout, words: str) -> None:
    assert condition(status(of), "Stalled").message == words


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (rollout(DONE, MOVING), "1 of 2 nodes are verified, 1 in progress"),
        (rollout(DONE), "the one node is verified"),
        (rollout(DONE, deleting=True), "waits until its nodes are at rest"),
        (rollout(DONE, MOVING, deleting=True), "waits until its nodes are at rest: b"),
        (
            rollout(KEPT),
            "node h waits for claim team/claim of pod team/pod (EvictionBlocked by PodDisruptionBudget team/web)",
        ),
        (rollout(DONE, DRIFTED), "node d published the wanted layout and no longer does: x"),
        (rollout(conflicts=["x", "y"]), "also claimed by another policy: x, y; narrow one of the selectors"),
        (
            rollout(conflicts=[*"qrstuvw"], rivals=["b"]),
            "also claimed by policy b: q, r, s, t, u and 2 more; narrow one of the selectors",
        ),
        (rollout(conflicts=["x"], rivals=["b"]), "also claimed by policy b: x; narrow one of the selectors"),
        (rollout(WAITING, spec=OBSERVE, would_change=1), "1 of 1 nodes would change; nothing is touched"),
        (rollout(DONE, WAITING, reason="LimitReached"), "1 node is verified, as many as spec.rollout.limit allows"),
        (rollout(WAITING, reason="Frozen", words="moving"), "moving"),
    ],
)
def test_ready_tells_what_is_going_on(of: Rollout, words: str) -> None:
    assert condition(status(of), "Ready").message == words


def test_at_most_three_problems_are_told_and_no_message_is_too_long_for_the_api() -> None:
    many = [Problem(reason="Bad", at=f"at-{i}", why="w" * 900, fix="f") for i in range(5)]
    message = condition(status(rollout(problems=many)), "Accepted").message
    assert message.startswith("at-0")
    assert len(message) <= 1024


# ------------------------------------------------------------------------------------------------------------------------ times


def test_a_transition_time_moves_only_with_the_status() -> None:
    first = status(rollout(MOVING))
    waits = status(rollout(WAITING, reason="BudgetExhausted"), before=first, now=LATER)
    assert condition(waits, "Ready").reason == "BudgetExhausted"
    assert condition(waits, "Ready").last_transition_time == T0
    done = status(rollout(DONE), before=waits, now=LATER)
    assert condition(done, "Ready").last_transition_time == LATER
    assert condition(done, "Accepted").last_transition_time == T0


def test_a_condition_that_was_away_begins_anew() -> None:
    first = status(rollout(MOVING))
    done = status(rollout(DONE), before=first)
    again = status(rollout(MOVING), before=done, now=LATER)
    assert condition(again, "Reconciling").last_transition_time == LATER


def test_a_generation_is_accepted_once() -> None:
    first = status(rollout(MOVING))
    assert first.accepted_at == T0
    assert status(rollout(DONE), before=first, now=LATER).accepted_at == T0
    assert status(rollout(DONE), before=first, now=LATER, generation=2).accepted_at == LATER


def test_a_generation_that_is_refused_changes_nothing_about_when_the_former_one_was_accepted() -> None:
    first = status(rollout(MOVING))
    refused = status(rollout(problems=[REFUSED]), before=first, now=LATER, generation=2)
    assert refused.accepted_at == T0
    assert status(rollout(problems=[REFUSED])).accepted_at is None


def test_the_revision_stays_while_there_is_nothing_new_to_say() -> None:
    first = status(rollout(MOVING), revision="abc")
    assert status(rollout(MOVING, deleting=True), before=first, revision="").revision == "abc"


# ----------------------------------------------------------------------------------------------------------------------- counts


def test_every_node_is_counted_where_it_is() -> None:
    held = node("p", Phase.PENDING, blockers=[HOLDER])
    away = node("n", Phase.UP_TO_DATE, ready=False)
    ignored = node("i", Phase.PENDING, ready=False, ignored=True)
    found = status(
        rollout(
            DONE,
            MOVING,
            WAITING,
            FAILED,
            ROLLED_BACK,
            SKIPPED,
            HELD,
            held,
            away,
            ignored,
            conflicts=["x"],
            would_change=2,
        )
    )
    assert found.nodes.model_dump() == {
        "matched": 11,
        "up_to_date": 2,
        "in_progress": 2,
        "pending": 3,
        "blocked": 2,
        "failed": 2,
        "skipped": 1,
        "unavailable": 4,
        "would_change": 2,
    }
    assert found.progress == "2/11"


def test_a_node_with_a_grant_is_unavailable_before_its_record_says_so() -> None:
    assert status(rollout(WAITING, granted=frozenset({"c"}))).nodes.unavailable == 1


def test_who_has_been_in_the_way_longest_is_named_first() -> None:
    blockers = [
        HOLDER.model_copy(update={"claim": f"team/{n}", "since": T0 + timedelta(minutes=m)})
        for n, m in (("young", 9), ("old", 1), ("b", 5), ("a", 5))
    ]
    found = status(rollout(node("h", Phase.DRAINING, blockers=blockers)))
    assert [b.claim for b in found.blocked_by] == ["team/old", "team/a", "team/b", "team/young"]


def test_a_status_names_ten_blockers_and_ten_failures_at_most() -> None:
    crowd = [
        node(f"f{i:02}", Phase.ROLLED_BACK, reason="VerifyingFailed", halted=True, blockers=[HOLDER]) for i in range(12)
    ]
    found = status(rollout(*crowd))
    assert (len(found.blocked_by), len(found.failed_nodes), found.nodes.failed) == (10, 10, 12)
    assert [f.node for f in found.failed_nodes] == [f"f{i:02}" for i in range(10)]


def test_blockers_of_a_node_that_is_done_are_forgotten() -> None:
    assert status(rollout(node("a", Phase.UP_TO_DATE, blockers=[HOLDER]))).blocked_by == []


def test_a_failure_has_a_reason_even_where_the_record_has_none() -> None:
    (failure,) = status(rollout(node("f", Phase.ROLLED_BACK, halted=True))).failed_nodes
    assert failure.reason == "RolledBack"


def test_a_policy_that_names_what_is_not_there_is_accepted_and_says_so() -> None:
    found = status(rollout(MOVING, hint="no GPU is called X"))
    assert condition(found, "Accepted").message == "can be carried out; no GPU is called X"
