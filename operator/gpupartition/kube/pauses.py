"""Long work that lets others have their turn: probes, leases and the news of other objects wait for whatever holds up the event loop."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

AT_ONCE: Final = 0.005
"""Seconds. Five copies may be read at the same time, each with a page to decode before its objects: a probe still waits for less than 0.1 s."""


@contextmanager
def unhurried() -> Iterator[None]:
    """Without looking for garbage: hardly anything that is read and planned becomes any, and looking for some took a third of the time.

    What has been read stays: it is not looked through later either, which takes a tenth of a second and more.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class Pauses:
    """The pauses of one piece of work, which asks after each small part of it whether one is due."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether others have waited for a while."""
        return time.monotonic() - self._since > AT_ONCE

    async def take(self) -> None:
        """Let them on."""
        await asyncio.sleep(0)
        self._since = time.monotonic()
