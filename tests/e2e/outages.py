"""What befalls a control plane, the way to it, and clocks: crashes, an etcd that is full, partitions, forgotten versions, wrong time."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from testbed.faultproxy import Injury, Rule, To
from tests.e2e import off_clock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path
    from random import Random

    from testbed.controlplane import ControlPlane
    from testbed.faultproxy import FaultProxy

FORGOTTEN: Final = (
    Rule(injury=Injury.EXPIRED, to=To.READS, share=1, path="/(nodes|pods|resource|gpupartition)"),
    Rule(injury=Injury.EXPIRED, to=To.WATCHES, share=1),
)
"""Every list and every watch is of a moment that nobody remembers."""
WATCHERS: Final = ("kube-scheduler", "kube-controller-manager", "kwok")
OFF: Final = (0, 5, 60, 3600, -5, -60, -3600)
"""Seconds by which a clock is off: it starts so, and is set to another one again and again."""
NEAR: Final = (0, 0.2, -0.2)
"""The same where several operators work at once, without an election: what one has just begun must not be late for another one."""


@dataclass(kw_only=True)
class Outages:
    """All on one control plane, which serves again when they are over. `chance` decides which, and for how long."""

    controlplane: ControlPlane
    proxy: FaultProxy
    folder: Path
    chance: Random
    off: Sequence[float] = OFF
    note: Callable[[str], None]
    had: Counter[str] = field(default_factory=Counter)

    async def one(self) -> None:
        """Have one of them, and see it through."""
        kinds: dict[str, Callable[[], Awaitable[None]]] = {
            "etcd": partial(self._crash, "etcd"),
            "server": partial(self._crash, "kube-apiserver"),
            "space": self._space,
            "partition": self._partition,
            "storm": self._storm,
            "clock": self._clock,
        }
        kind = self.chance.choice(list(kinds))
        self.had[kind] += 1
        await kinds[kind]()

    async def over(self) -> None:
        """Have those who watch the server look at once: after some crashes they wait for up to half a minute before they ask it again."""
        if self.had["etcd"] or self.had["server"]:
            for program in WATCHERS:
                await self.controlplane.restart(program)

    def clock(self, of: int) -> dict[str, str]:
        """The environment of the operator of this number, so that its clock is ours to set."""
        file = self.folder / f"clock-{of}"
        self._set(file)
        return {off_clock.FILE: str(file)}

    async def _crash(self, program: str) -> None:
        self.note(f"{program} crashes")
        await self.controlplane.programs[program].kill()
        try:
            await asyncio.sleep(self.chance.uniform(0, 3))
        finally:
            await self.controlplane.start_again(program)
            self.note(f"{program} is back")

    async def _space(self) -> None:
        async with self.controlplane.full():
            self.note("etcd is full")
            await asyncio.sleep(self.chance.uniform(0.2, 6))
        self.note("etcd has space")

    async def _partition(self) -> None:
        seconds = self.chance.uniform(0.5, 8)
        self.note(f"nothing passes for {seconds:.1f} s")
        await self.proxy.cut_off(seconds)
        if self.chance.random() < 0.5:
            self.proxy.hang_up()

    async def _storm(self) -> None:
        rules, self.proxy.rules = self.proxy.rules, FORGOTTEN
        self.note("every version is forgotten")
        try:
            self.proxy.hang_up()
            await asyncio.sleep(self.chance.uniform(0.5, 4))
        finally:
            self.proxy.rules = rules
        self.note("versions are remembered")

    async def _clock(self) -> None:
        if clocks := sorted(self.folder.glob("clock-*")):
            self._set(self.chance.choice(clocks))

    def _set(self, clock: Path) -> None:
        off = self.chance.choice(self.off)
        self.note(f"{clock.name} is {off} s off")
        new = clock.with_suffix(".new")
        new.write_text(str(off))
        new.replace(clock)
