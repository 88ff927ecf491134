"""Whether a node is Ready, and since when, by what others have written."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from gpupartition.controller import clock
from gpupartition.kube import Object

LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)


def readiness(node: Object) -> str:
    """What it says of being Ready: "True", "False", "Unknown", or "" where it says nothing."""
    found = (c for c in node.get("status", {}).get("conditions", ()) if c["type"] == "Ready")
    return next((str(c["status"]) for c in found), "")


def is_ready(node: Object | None) -> bool:
    """Whether a node is there, and Ready."""
    return node is not None and readiness(node) == "True"


def since_ready(node: Object | None, *, ready: bool = True) -> datetime | None:
    """Since when a node has been Ready, or has not been; None while that is not so, or nobody says since when."""
    found = node.get("status", {}).get("conditions", ()) if node is not None else ()
    times = [c.get("lastTransitionTime") for c in found if c["type"] == "Ready" and (c["status"] == "True") is ready]
    return said_at(times[0]) if times and times[0] else None


def said_at(text: str) -> datetime:
    """The time of a condition that others write: what no calendar here has was long ago, and nothing is in the future."""
    try:
        return min(datetime.fromisoformat(text), clock.now())
    except ValueError:
        return LONG_AGO
