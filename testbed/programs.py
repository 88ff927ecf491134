"""Run one program of the testbed: on a leash, with a log of its own, and an explanation when it does not live."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

LEASH: Final = Path(__file__).with_name("leash.py")
POLL_SECONDS: Final = 0.05
"""Readiness is asked for this often: it adds at most this much to a start, and costs one small request."""


class TestbedError(Exception):
    """The testbed cannot do what was asked. The message says which program or tool, and shows the end of its log."""

    __test__ = False  # not a test class, whatever its name


def leashed(command: Sequence[str | Path]) -> list[str]:
    """Return the command line that runs `command` so that it dies with this process."""
    return [sys.executable, "-I", "-S", str(LEASH), str(os.getpid()), *map(str, command)]


def tail(log: Path, lines: int = 20) -> str:
    """Return the last lines of a log, indented, for an error message."""
    text = log.read_text(errors="replace").splitlines() if log.exists() else []
    shown = text[-lines:] or ["(nothing)"]
    return "\n".join(f"    {line}" for line in shown)


class Program:
    """One program: start, wait until ready, stop, start again. Output of all its runs is appended to `log`."""

    def __init__(
        self, name: str, command: Sequence[str | Path], *, log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self._env = dict(env) if env is not None else None
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """Process id. Raises TestbedError when it does not run."""
        if self._process is None or not self.alive:
            raise TestbedError(f"{self.name} does not run")
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    @property
    def returncode(self) -> int | None:
        """Exit code of the last run; None while it runs and before the first."""
        return self._process.returncode if self._process else None

    def obituary(self) -> str:
        """Say that it died, how, and with which last words."""
        return f"{self.name} died with exit code {self.returncode}. The end of {self.log}:\n{tail(self.log)}"

    async def start(self) -> None:
        """Start it; does not wait until it is ready."""
        if self.alive:
            raise TestbedError(f"{self.name} runs already, as process {self.pid}")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as out:
            self._process = await asyncio.create_subprocess_exec(
                *leashed(self.command), stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out, env=self._env
            )

    async def until(self, ready: Callable[[], Awaitable[bool]], *, within: float) -> None:
        """Wait for `ready`. Raises TestbedError, with the end of the log, when the program dies or is not ready after `within` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while not await ready():
                    if not self.alive:
                        raise TestbedError(self.obituary())
                    await asyncio.sleep(POLL_SECONDS)
                return
        raise TestbedError(f"{self.name} was not ready after {within:.0f} s. The end of {self.log}:\n{tail(self.log)}")

    async def stop(self, *, grace: float = 10) -> None:
        """Ask it to end (SIGTERM), and kill it after `grace` seconds. Harmless when it does not run."""
        if self._process is None or not self.alive:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), grace)
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        """End it at once (SIGKILL): a crash, as tests need it."""
        if self._process is None or not self.alive:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
