"""kopf's own index beside the operator's copies: the same watch of the same large cluster, by programs that do nothing else."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.bench.copies import HEARD
from tests.bench.figures import Figure
from tests.bench.watching import cpu_of, highest, measuring

from gpupartition.kube import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from tests.bench.fleet import Fleet

    from gpupartition.kube import Client

PATIENCE: Final = 20  # seconds for all kinds: what kopf takes grows with the square of the number of objects
LONGER: Final = 180  # seconds for the nodes alone, of whose heartbeats it is to hear
WHOSE: Final = {"kopf": "kopf's index", "ours": "our copies"}


async def figures(kubeconfig: Path, client: Client, fleet: Fleet, slices: int) -> list[Figure]:
    """Both read all kinds, then the nodes alone, and hear of a heartbeat of each."""
    nodes = {NODES.plural: fleet.nodes}
    everything = {**nodes, RESOURCE_SLICES.plural: slices, RESOURCE_CLAIMS.plural: fleet.nodes * fleet.claims}
    told: list[Figure] = []
    for by in WHOSE:
        async with _copying(by, kubeconfig, everything) as program:
            told.append(await program.indexed("nodes, slices and claims", within=PATIENCE))
    async with _copying("kopf", kubeconfig, nodes) as kopf, _copying("ours", kubeconfig, nodes) as ours:
        both = await asyncio.gather(*(each.indexed("nodes alone", within=LONGER) for each in (kopf, ours)))
        told += both
        if all(figure.value == fleet.nodes for figure in both):
            before = [cpu_of(each.pid) for each in (kopf, ours)]
            await fleet.beat(client)
            await client.patch(NODES, fleet.names()[-1], {"metadata": {"labels": HEARD}})
            told += [await each.heard(since=was) for each, was in zip((kopf, ours), before, strict=True)]
    return told


@dataclass(frozen=True, slots=True)
class _Copying:
    """A program that keeps copies of so many objects."""

    by: str
    wanted: int
    process: asyncio.subprocess.Process
    begun: float

    @property
    def pid(self) -> int:
        return self.process.pid

    async def indexed(self, what: str, *, within: float) -> Figure:
        """How many objects it has when it has all, or so many seconds after it was started."""
        count = 0
        with suppress(TimeoutError):
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + self.begun + within - time.monotonic()):
                while (line := await self._line()) != "indexed":
                    count = int(line)
                count = self.wanted
        how = f"of {self.wanted}, {time.monotonic() - self.begun:.1f} s after it was started; it has taken {highest(self.pid)} MB by then"
        return Figure(name=f"{WHOSE[self.by]}: {what}", value=count, unit="objects", how=how)

    async def heard(self, *, since: float) -> Figure:
        """CPU seconds until it has heard of the last heartbeat; it had used so many before the first one."""
        while await self._line() != "heard":
            pass
        took = round(cpu_of(self.pid) - since, 2)
        return Figure(name=f"{WHOSE[self.by]}: a heartbeat of each node", value=took, unit="s CPU")

    async def _line(self) -> str:
        assert self.process.stdout is not None
        line = (await self.process.stdout.readline()).decode().strip()
        assert line, f"{self.by} ended"
        return line


@asynccontextmanager
async def _copying(by: str, kubeconfig: Path, wanted: Mapping[str, int]) -> AsyncIterator[_Copying]:
    begun = time.monotonic()
    kinds = [f"{kind}={number}" for kind, number in wanted.items()]
    process = await measuring("copies", by, kubeconfig, *kinds, stderr=asyncio.subprocess.DEVNULL)
    try:
        yield _Copying(by, sum(wanted.values()), process, begun)
    finally:
        process.kill()
        await process.wait()
