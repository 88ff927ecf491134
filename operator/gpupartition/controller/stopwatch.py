"""For how long something has been true, by this process's own monotonic clock.

Settling, the gap between two empty lists and the time that a pool must stand still are durations and no timestamps: another operator's clock
proves nothing, and after a crash they begin again.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from datetime import timedelta


class Stopwatch:
    """One running time per key; it starts anew whenever the fact differs from the one before."""

    def __init__(self) -> None:
        self._started: dict[Hashable, tuple[Hashable, float]] = {}

    def read(self, key: Hashable, fact: Hashable | None) -> timedelta:
        """How long `fact` has been seen under `key`, without a break; None stops the watch."""
        if fact is None:
            self._started.pop(key, None)
            return timedelta(0)
        now = time.monotonic()
        known = self._started.get(key)
        if known is None or known[0] != fact:
            self._started[key] = fact, now
            return timedelta(0)
        return timedelta(seconds=now - known[1])

    def forget(self, node: str) -> None:
        """Drop every key that begins with this node."""
        for key in [k for k in self._started if isinstance(k, tuple) and k[0] == node]:
            del self._started[key]
