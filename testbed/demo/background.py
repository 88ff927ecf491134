"""Start the demo's background, follow what it says, and end it: at once when asked twice."""

import asyncio
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from testbed import components
from testbed.controlplane import ROOT, python_env
from testbed.demo.host import record
from testbed.programs import POLL_SECONDS, TestbedError, leashed, tail

GRACE_SECONDS: Final = 15


class Background:
    """The process that runs testbed and operator. Unless `keep`, it is on a leash: it cannot outlive this one."""

    def __init__(self, name: str, *, keep: bool) -> None:
        self.name = name
        self.ending = False
        self._keep = keep
        self._record = record(name)
        self._files = components.Layout(root=self._record.folder)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def kubeconfig(self) -> str:
        """The administrator's."""
        return str(self._files.kubeconfig("admin"))

    @property
    def started(self) -> bool:
        """Whether there has been anything to end."""
        return self._process is not None

    @property
    def alive(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    @property
    def _log(self) -> Path:
        return self._record.folder / "testbed.log"

    async def start(self, say: Callable[[str], None]) -> None:
        """Start it and return when the operator is ready; its progress goes to `say`, line by line. Raises TestbedError."""
        with self._record.starting():
            await self._start(say)

    async def _start(self, say: Callable[[str], None]) -> None:
        command = [sys.executable, "-m", "testbed.demo.host", "--name", self.name]
        with self._log.open("wb") as out:
            self._process = await asyncio.create_subprocess_exec(
                *(command if self._keep else leashed(command)),
                cwd=ROOT,
                env={**python_env(), "PYTHONIOENCODING": "utf-8"},  # its log, whatever this terminal can show
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,  # a Ctrl-C is for this process, which then ends that one in good order
            )
        with self._log.open(encoding="utf-8", errors="replace") as lines:
            while self.alive and not (self._record.read() or {}).get("ready"):
                for line in lines.read().splitlines():
                    say(line)
                await asyncio.sleep(POLL_SECONDS)
            for line in lines.read().splitlines():
                say(line)
        if not self.alive:
            raise TestbedError("the testbed did not start; what it said is above")

    def last_words(self) -> str:
        """What it complained about when it died of itself; else the end of the operator's log."""
        own, operator = self._log, self._files.log("operator")
        return f"the end of {own}:\n{tail(own)}" if not self.alive else f"the end of {operator}:\n{tail(operator, 12)}"

    async def end(self) -> None:
        """End everything and delete the folder; returns when nothing runs any more. Harmless when nothing was started."""
        self.ending = True
        if self._process is None:
            return
        if self.alive:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), GRACE_SECONDS)
            except TimeoutError:
                self.kill()
                await self._process.wait()
        shutil.rmtree(self._record.folder, ignore_errors=True)

    def kill(self) -> None:
        """End it without ceremony: what it started is on its leash, and the kernel ends that."""
        if self._process is not None and self.alive:
            self._process.kill()
