"""How far an operator is behind while slices are written as fast as the API server takes them."""

from __future__ import annotations

import asyncio
import re
import time
from itertools import cycle
from typing import TYPE_CHECKING, Final

from tests.bench.figures import Figure
from tests.bench.fleet import LANES
from tests.e2e.rollout import asks

from gpupartition.kube import RESOURCE_SLICES

if TYPE_CHECKING:
    import aiohttp
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


async def lag(client: Client, program: Program, of: str) -> Figure:
    """Seconds between the answer to a write and the copy's having it, at most."""
    names, answered = cycle(list(await client.versions(RESOURCE_SLICES))), list[tuple[float, int]]()
    until = time.monotonic() + LONG
    lags: list[float] = []

    async def lane(session: aiohttp.ClientSession) -> None:
        for name in names:
            if time.monotonic() > until:
                return
            url = client.server + RESOURCE_SLICES.path(None, name)
            change = {"metadata": {"annotations": {"written": str(time.time_ns())}}}
            async with session.patch(url, json=change, headers=HEADERS) as response:
                answer = await response.json()
                assert response.status == 200, answer
                answered.append((time.monotonic(), int(answer["metadata"]["resourceVersion"])))

    async def look() -> None:
        """Until it has all."""
        while time.monotonic() < until or lags[-1]:
            (reached,) = REACHED.findall(await asks(program, "/metrics"))
            now = time.monotonic()
            missing = min((at for at, version in answered if version > float(reached)), default=now)
            lags.append(now - missing)
            await asyncio.sleep(PAUSE)

    async with client.session() as session, asyncio.TaskGroup() as tasks:
        for _ in range(LANES):
            tasks.create_task(lane(session))
        tasks.create_task(look())
    how = f"{len(answered)} slices written in {LONG} s, by {LANES} at once; looked {len(lags)} times at how far its copy was"
    return Figure(name=f"behind with slices ({of})", value=round(max(lags), 2), unit="s", bound=LAG_BOUND, how=how)
