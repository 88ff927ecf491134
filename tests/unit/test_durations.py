"""For how long something has been so is told by nobody's clock but our own."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from tests.unit.worlds import HALVES, seen

from gpupartition.api.v1alpha1 import Assigned
from gpupartition.controller.durations import Durations
from gpupartition.controller.records import Record, new_record
from gpupartition.controller.stopwatch import Stopwatch
from gpupartition.domain.backend import Observation

MADE = new_record(node="node-1", node_uid="uid-1", policy="p", policy_uid="uid-p", driver="d")
RECORD = Record.read({**MADE, "metadata": {"name": "node-1", "uid": "u", "resourceVersion": "7"}})


def running(pod: str, created: datetime) -> Observation:
    """A node whose plugin runs in this pod, created at that time, as the API server has it."""
    plugin = {"metadata": {"uid": pod, "creationTimestamp": created.isoformat()}}
    return replace(seen(HALVES), plugin=plugin)


@pytest.mark.parametrize("skew", [timedelta(minutes=-10), timedelta(0), timedelta(minutes=10)], ids=str)
def test_a_pod_is_as_old_as_it_was_seen_whatever_the_clock_of_the_api_server_says(
    skew: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    durations, created = Durations(Stopwatch()), datetime.now(UTC) + skew
    assert durations.plugin(RECORD, running("a", created)) == timedelta(0)
    clock += 60
    assert durations.plugin(RECORD, running("a", created)) == timedelta(seconds=60)
    assert durations.plugin(RECORD, running("b", created)) == timedelta(0), "another pod"
    clock += 60
    assert durations.plugin(RECORD, replace(seen(HALVES), plugin=None)) == timedelta(0)
    assert durations.plugin(RECORD, running("b", created)) == timedelta(0), "it was gone in between"


AHEAD = timedelta(hours=1)


def test_what_an_operator_wrote_whose_clock_was_ahead_came_when_this_one_first_read_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, now = 1000.0, datetime.now(UTC)
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    durations = Durations(Stopwatch())
    target = Assigned(fingerprint="f", since=now + AHEAD)
    record = replace(RECORD, state=RECORD.state.model_copy(update={"since": now + AHEAD, "target": target}))
    for passed in (0, 60, 3599, 7200):
        clock = 1000.0 + passed
        at = now + timedelta(seconds=passed)
        found = durations.dated(record, at)
        assert found.since == now
        assert found.target is not None
        assert found.target.since == now
        assert durations.written("node-1", now + AHEAD, at) == now


def test_what_was_written_before_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    now = datetime.now(UTC)
    record = replace(RECORD, state=RECORD.state.model_copy(update={"since": now - AHEAD}))
    assert Durations(Stopwatch()).dated(record, now) is record.state
    assert Durations(Stopwatch()).written("node-1", None, now) is None
