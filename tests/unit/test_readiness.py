"""Since when a node is Ready, whatever it says."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gpupartition.controller.readiness import since_ready


def node(status: str, since: str) -> dict[str, object]:
    ready = {"type": "Ready", "status": status, "lastTransitionTime": since}
    return {"metadata": {"name": "n"}, "status": {"conditions": [ready]}}


@pytest.mark.parametrize("since", ["9999-12-31T23:59:59Z", "0000-01-01T00:00:00Z", "2026-01-01T00:00:00Z"])
def test_a_nodes_dates_are_never_in_the_future_nor_beyond_the_calendar(since: str) -> None:
    for found in (since_ready(node("True", since)), since_ready(node("Unknown", since), ready=False)):
        assert found is not None
        assert datetime(1970, 1, 1, tzinfo=UTC) <= found <= datetime.now(UTC)
