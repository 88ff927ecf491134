"""Evictions that were refused: each pod is left alone for a while, ever longer, by this process's own monotonic clock."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from gpupartition.domain.eviction import Refusal

FIRST: Final = 5.0  # seconds, doubled each time
LONGEST: Final = 60.0
KEPT: Final = 3600.0  # seconds after which nobody asks about a refusal any more


@dataclass(frozen=True, slots=True)
class _Said:
    reason: str
    budgets: tuple[str, ...]
    times: int
    at: float


class Refusals:
    """The last refusal of each pod, by UID. After a restart every pod is asked about anew, which harms nobody."""

    def __init__(self) -> None:
        self._said: dict[str, _Said] = {}

    def of(self, uid: str) -> Refusal | None:
        """What was said of a pod last, and for how long it is still left alone."""
        said = self._said.get(uid)
        if said is None:
            return None
        pause = min(FIRST * 2 ** (said.times - 1), LONGEST)
        left = max(0.0, said.at + pause - time.monotonic())
        return Refusal(reason=said.reason, budgets=said.budgets, resting=timedelta(seconds=left))

    def add(self, uid: str, reason: str, budgets: tuple[str, ...] = ()) -> None:
        """Remember a refusal."""
        now = time.monotonic()
        self._said = {u: s for u, s in self._said.items() if now - s.at < KEPT}
        times = self._said[uid].times if uid in self._said else 0
        self._said[uid] = _Said(reason, budgets, min(times + 1, 10), now)
