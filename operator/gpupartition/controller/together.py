"""One read for all who ask for the same at once, which begins after the last of them has asked.

What is read is as new for each of them as if he had read it himself: whoever asks while a read is under way waits for the next one.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Together(Generic[T]):
    """Reads by their keys. Belongs to one event loop."""

    def __init__(self) -> None:
        self._turns: defaultdict[Hashable, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._next: dict[Hashable, asyncio.Task[T]] = {}

    async def read(self, key: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        """What `ask` answers, asked once for all who wait for this key. Raises what it raises. The answer is shared: it must not be changed."""
        if key not in self._next:
            self._next[key] = asyncio.create_task(self._ask(key, ask))
        return await asyncio.shield(self._next[key])  # whoever goes away, others wait for it as well

    async def _ask(self, key: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        async with self._turns[key]:
            del self._next[key]  # whoever asks from now on has to ask again
            return await ask()
