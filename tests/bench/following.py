"""How far an operator is behind while slices are written as fast as the API server takes them."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import asynccontextmanager
from itertools import cycle
from typing import TYPE_CHECKING, Final

from tests.bench.figures import Figure
from tests.bench.fleet import LANES
from tests.bench.watching import measuring
from tests.e2e.harness import eventually
from tests.e2e.rollout import asks

from gpupartition.kube import RESOURCE_SLICES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    import aiohttp
    from testbed.controlplane import ControlPlane
    from testbed.programs import Program

    from gpupartition.kube import Client

LONG: Final = 20  # seconds
PAUSE: Final = 0.1  # seconds between two looks at how far it is
LAG_BOUND: Final = 1  # seconds
REACHED: Final = re.compile(rf'^gpupartition_copy_version{{kind="{RESOURCE_SLICES.plural}"}} (\S+)$', re.MULTILINE)
HEADERS: Final = {
    "Content-Type": "application/merge-patch+json",
    "Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
}


async def lag(controlplane: ControlPlane, client: Client, program: Program, of: str) -> Figure:
    """Seconds between the moment in which a program that decodes nothing has heard of a write, and that in which the copy has it, at most."""
    names = cycle(list(await client.versions(RESOURCE_SLICES)))
    answered: dict[int, float] = {}  # versions, and when the server said that it had written them
    until = time.monotonic() + LONG
    looks: list[tuple[float, int]] = []  # when it was looked, and which version the copy had reached

    async def lane(session: aiohttp.ClientSession) -> None:
        for name in names:
            if time.monotonic() > until:
                return
            url = client.server + RESOURCE_SLICES.path(None, name)
            change = {"metadata": {"annotations": {"written": str(time.time_ns())}}}
            async with session.patch(url, json=change, headers=HEADERS) as response:
                answer = await response.json()
                assert response.status == 200, answer
                answered[int(answer["metadata"]["resourceVersion"])] = time.monotonic()

    async def look() -> None:
        """Until it has all."""
        while time.monotonic() < until or looks[-1][1] < max(answered):
            (reached,) = REACHED.findall(await asks(program, "/metrics"))
            looks.append((time.monotonic(), int(float(reached))))
            await asyncio.sleep(PAUSE)

    async with _bare_watch(controlplane) as heard:
        async with client.session() as session, asyncio.TaskGroup() as tasks:
            for _ in range(LANES):
                tasks.create_task(lane(session))
            tasks.create_task(look())
        await eventually(lambda: answered.keys() <= heard.keys(), within=LONG)
    late = max(heard[version] - at for version, at in answered.items())
    return Figure(
        name=f"behind with slices ({of})",
        value=round(max(_behind(heard, *look) for look in looks), 2),
        unit="s",
        bound=LAG_BOUND,
        how=f"{len(answered)} slices written in {LONG} s, by {LANES} at once; behind a program that decodes nothing, which was told "
        f"{late:.1f} s after the answer, at most; looked {len(looks)} times",
    )


def _behind(heard: Mapping[int, float], now: float, reached: int) -> float:
    """For how long there has been something to be heard of that is not in the copy."""
    return now - min((at for version, at in heard.items() if version > reached and at < now), default=now)


@asynccontextmanager
async def _bare_watch(controlplane: ControlPlane) -> AsyncIterator[Mapping[int, float]]:
    """When a bare watcher has heard of which version; goes on to be filled."""
    program = await measuring("bare_watch", controlplane.kubeconfig)
    assert program.stdout is not None
    assert await program.stdout.readline() == b"watching\n"
    heard: dict[int, float] = {}
    reading = asyncio.create_task(_read(program.stdout, heard))
    try:
        yield heard
    finally:
        program.terminate()
        await program.wait()
        await reading


async def _read(lines: asyncio.StreamReader, heard: dict[int, float]) -> None:
    async for line in lines:
        at, version = line.split()
        heard[int(version)] = float(at)
