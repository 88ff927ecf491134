"""What time it is, for all that is compared with a time on record.

A machine's clock is set when it was wrong, by hours where it had taken the time of a country for UTC; one that was suspended finds that hours
have passed. Limits, pauses and patience are differences of two such times: they would be over at once, or not for hours. So this clock takes
the machine's time once and then goes on by itself; towards a machine's time that has become another one it goes faster or slower.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

SLEW: Final = 0.25
"""Of each second, so much at most is added or left out: an hour is made up for in four, and ten minutes of patience are eight at least."""


class Clock:
    """Seconds since 1970 that never jump. `wall` may, `steady` counts seconds from anywhere and does not."""

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._steady = wall, steady
        self._at = steady()
        self._ahead = wall() - self._at  # of the steady clock

    def seconds(self) -> float:
        """The time now."""
        at, wall = self._steady(), self._wall()
        most = SLEW * (at - self._at)
        self._ahead += min(max(wall - at - self._ahead, -most), most)
        self._at = at
        return at + self._ahead


_CLOCK: Final = Clock()


def now() -> datetime:
    """The time now, by the one clock of this process."""
    return datetime.fromtimestamp(_CLOCK.seconds(), UTC)
