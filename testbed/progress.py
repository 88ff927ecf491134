"""Tell a person what takes its time: one line per step, with the seconds it took."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, TextIO

FIRST_SECONDS: Final = 5
REPEAT_SECONDS: Final = 15
"""When a long step is first mentioned, and how often again, where lines cannot be overwritten, as in a CI log."""


class Progress:
    """Writes to a stream, or nowhere (`Progress(None)`). On a terminal the line of a running step counts its seconds."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._live = stream is not None and stream.isatty()

    def say(self, line: str) -> None:
        """Write one line."""
        if self._stream is not None:
            self._stream.write(f"{line}\n")
            self._stream.flush()

    @asynccontextmanager
    async def step(self, what: str) -> AsyncIterator[None]:
        """Show `what` while the body runs, and how long it took. A body that raises leaves its line without a time."""
        started = time.monotonic()
        ticking = asyncio.create_task(self._tick(what, started)) if self._stream else None
        try:
            yield
        finally:
            if ticking:
                ticking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await ticking
                if self._live:
                    self._overwrite("")
        self.say(f"{what}: {time.monotonic() - started:.1f} s")

    async def _tick(self, what: str, started: float) -> None:
        pause = FIRST_SECONDS
        while True:
            if self._live:
                self._overwrite(f"{what} … {time.monotonic() - started:.0f} s")
                await asyncio.sleep(1)
            else:
                await asyncio.sleep(pause)
                self.say(f"{what} … {time.monotonic() - started:.0f} s")
                pause = REPEAT_SECONDS

    def _overwrite(self, text: str) -> None:
        if self._stream:
            self._stream.write(f"\r\x1b[K{text}")
            self._stream.flush()
