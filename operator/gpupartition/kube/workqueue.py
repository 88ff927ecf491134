"""A queue of names: what is in it will be looked at, once, by one worker at a time.

A name says only that something about it may have changed. The worker looks at the world as it is, so a hundred events about one
name are one piece of work, and an event that comes while a worker is busy with that name is one more. Nothing else is promised
and nothing else is needed: no order between names, no memory of how often or why.

            add                    get                   done
    idle ────────▶ waiting ─────────────────▶ busy ─────────────────▶ idle
                    ▲                          │ add        done
                    └──────────────────────── dirty ◀───── (dirty) ── waits again at once
"""

from __future__ import annotations

import asyncio
import random


class WorkQueue:
    """Names waiting for a worker. Belongs to one event loop, whose clock it uses.

    `first_retry` and `longest_retry` are seconds: after its n-th failure in a row a name waits between half of and the whole of
    ``min(longest_retry, first_retry * 2 ** (n - 1))``.
    """

    def __init__(self, *, first_retry: float = 0.1, longest_retry: float = 300.0) -> None:
        self._first_retry = first_retry
        self._longest_retry = longest_retry
        self._waiting: dict[str, None] = {}  # a set that keeps its order, so that no name starves
        self._busy: set[str] = set()
        self._dirty: set[str] = set()
        self._failures: dict[str, int] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._ready = asyncio.Semaphore(0)  # counts the waiting

    def __len__(self) -> int:
        """How many names wait for a worker now (not those in a worker's hands, nor those due later)."""
        return len(self._waiting)

    def add(self, key: str) -> None:
        """Have `key` looked at as soon as a worker is free; if one is busy with it, once more afterwards."""
        if key in self._waiting:
            return
        if key in self._busy:
            self._dirty.add(key)
            return
        self._waiting[key] = None
        self._ready.release()

    def add_after(self, key: str, seconds: float) -> None:
        """Have `key` looked at in `seconds`, or earlier if that was asked for already."""
        loop = asyncio.get_running_loop()
        pending = self._timers.get(key)
        if pending is not None:
            if pending.when() <= loop.time() + seconds:
                return
            pending.cancel()
        self._timers[key] = loop.call_later(seconds, self._due, key)

    async def get(self) -> str:
        """Take the name that has waited longest; give it back with `done` or `failed`."""
        await self._ready.acquire()
        key = next(iter(self._waiting))
        del self._waiting[key]
        self._busy.add(key)
        return key

    def done(self, key: str) -> None:
        """Give `key` back after good work: its failures are forgotten."""
        self._failures.pop(key, None)
        self._give_back(key)

    def failed(self, key: str) -> float:
        """Give `key` back to be tried again later; returns in how many seconds (sooner if something changes)."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        # Beyond 2^20 the limit has long been reached; the bound only keeps the number finite.
        pause = min(self._longest_retry, self._first_retry * 2.0 ** min(failures, 20)) * random.uniform(0.5, 1)  # noqa: S311
        self._give_back(key)
        self.add_after(key, pause)
        return pause

    def _due(self, key: str) -> None:
        del self._timers[key]
        self.add(key)

    def _give_back(self, key: str) -> None:
        if key not in self._busy:
            raise ValueError(f"{key!r} was given back without having been taken: call get() first, and give back once")
        self._busy.discard(key)
        if key in self._dirty:
            self._dirty.discard(key)
            self.add(key)
