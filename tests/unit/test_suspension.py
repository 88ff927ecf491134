"""Pauses and freezes as they are written beside specs: what holds, until when, and what is said of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.fleet import policy

from gpupartition.controller.declared import Policy, pairs
from gpupartition.domain.admission import Rules, admit
from gpupartition.domain.suspension import LONGEST, Suspension, of_freeze, of_policy
from gpupartition.names import GROUP

NOW: Final = datetime(2026, 12, 1, 6, 0, tzinfo=UTC)


def read(notes: dict[str, str] | None = None, *, spec_paused: bool = False, deleting: bool = False) -> Policy:
    body = policy(rollout={"paused": spec_paused})
    annotations = {f"{GROUP}/{key}": value for key, value in (notes or {}).items()}
    meta = {"name": "inference", "uid": "u", "annotations": annotations}
    return Policy.read({**body, "metadata": meta | ({"deletionTimestamp": "now"} if deleting else {})})


@pytest.mark.parametrize(
    ("until", "holds"),
    [
        ("", True),
        ("2026-12-01T06:00:01Z", True),
        ("2026-12-01T07:00:01+01:00", True),
        ("2026-12-01T06:00:00Z", False),
        ("2026-12-01T07:00:00+01:00", False),
        ("2026-12-01T06:00:00", True),  # in whose zone, nobody knows
        ("tomorrow", True),
        ("9999-12-31T23:59:59-23:59", True),
    ],
)
def test_it_holds_until_its_time_and_for_ever_where_that_cannot_be_read(until: str, holds: bool) -> None:
    assert Suspension(until=until).holds(NOW) is holds


@given(by=st.text(), reason=st.text(), until=st.text())
def test_whatever_people_write_is_told_in_few_words_and_breaks_nothing(by: str, reason: str, until: str) -> None:
    told = str(Suspension(by=by, reason=reason, until=until))
    assert Suspension(until=until).holds(NOW) in {True, False}
    assert len(told) < 8 * LONGEST


def test_it_says_why_who_and_until_when() -> None:
    assert str(Suspension()) == "no reason was given"
    full = Suspension(by="alice", reason="driver upgrade", until="2026-12-01T08:00:00Z")
    assert str(full) == "driver upgrade (by alice, until 2026-12-01T08:00:00Z)"
    assert "'tomorrow' is no time" in str(Suspension(until="tomorrow"))


@pytest.mark.parametrize(("value", "paused"), [("true", True), ("", True), ("yes", True), ("false", False)])
def test_any_value_but_false_pauses_a_policy(value: str, paused: bool) -> None:
    assert bool(read({"paused": value}).paused(NOW)) is paused


def test_a_policy_is_paused_by_its_spec_or_beside_it_but_not_while_it_is_deleted() -> None:
    assert read().paused(NOW) == ""
    assert read(spec_paused=True).paused(NOW) == "spec.rollout.paused is true"
    assert read({"paused": "true", "paused-by": "alice"}).paused(NOW) == "no reason was given (by alice)"
    over = {"paused": "true", "paused-until": "2026-12-01T05:00:00Z"}
    assert read(over).paused(NOW) == ""
    assert read(over, spec_paused=True).paused(NOW) == "spec.rollout.paused is true"
    assert read({"paused": "true"}, deleting=True).paused(NOW) == ""


def test_what_is_not_written_is_no_suspension() -> None:
    assert of_policy({"metadata": {}}) is None
    assert of_policy({"metadata": {"annotations": None}}) is None
    assert of_freeze({"metadata": {}}) == Suspension()
    assert of_freeze({"data": {"reason": "move", "until": "2026-12-01T08:00:00Z"}}).ends == NOW + timedelta(hours=2)


@pytest.mark.parametrize("brake", [{"paused": "p"}, {"frozen": "f"}])
def test_a_policy_is_looked_at_again_when_a_pause_is_over_by_itself(brake: Any) -> None:
    rules = Rules(max_unavailable=1, driver_max_unavailable=1, limit=1, resumes=NOW, **brake)
    assert admit(nodes=(), others=(), ledger=(), rules=rules).until == NOW


def test_a_retry_of_one_node_asks_for_nothing_of_the_others() -> None:
    asked = read({"retry": "1", "retry-nodes": "node-2=a, node-3=b,=c,node-4"})
    assert [asked.retry_of(name) for name in ("node-1", "node-2", "node-3", "node-4")] == ["1", "1 a", "1 b", "1"]
    assert read({"retry-nodes": "node-2=a"}).retry_of("node-1") == ""
    assert pairs("") == {}
