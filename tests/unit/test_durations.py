"""For how long something has been so is told by nobody's clock but our own."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from tests.unit.worlds import HALVES, seen

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
