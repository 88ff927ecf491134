"""Read nodes, slices and claims page by page, decode them, and nothing else: `python -m tests.bench.bare KUBECONFIG`. Prints how many.

What a program that follows a cluster cannot do in less. It is a program of its own because starting, too, takes its time.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Final

from gpupartition.kube import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, Client

if TYPE_CHECKING:
    import aiohttp

    from gpupartition.kube import Kind

PAGE: Final = 500  # as client-go asks


async def main(kubeconfig: str) -> None:
    """Read all three at once."""
    async with Client.connect(kubeconfig) as client, client.session() as session:
        kinds = (NODES, RESOURCE_SLICES, RESOURCE_CLAIMS)
        counts = await asyncio.gather(*(_count(session, client.server, kind) for kind in kinds))
    print(json.dumps(counts))  # noqa: T201


async def _count(session: aiohttp.ClientSession, server: str, kind: Kind) -> int:
    count, query = 0, {"limit": str(PAGE)}
    while True:
        async with session.get(server + kind.path(), params=query) as response:
            listed = json.loads(await response.read())
        count += len(listed["items"])
        token = listed["metadata"].get("continue")
        if not token:
            return count
        query["continue"] = token


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
