"""Watch ResourceSlices and decode nothing: `python -m tests.bench.bare_watch KUBECONFIG`. Prints when it has heard of which version.

What a program that follows a cluster cannot do in less: an API server with all hands full of writes sends events late, and hangs up on those
who do not take them as fast as it makes them. First it prints ``watching``, then a line for each event: seconds on the clock that all programs
of a machine share, and the resourceVersion.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from typing import Final

from gpupartition.kube import RESOURCE_SLICES, Client

VERSION: Final = re.compile(rb'"resourceVersion":"(\d+)"')


async def main(kubeconfig: str) -> None:
    """Until it is ended."""
    async with Client.connect(kubeconfig) as client, client.session() as session:
        version = (await client.list(RESOURCE_SLICES)).resource_version
        print("watching", flush=True)  # noqa: T201
        while True:
            query = {"watch": "true", "resourceVersion": version}
            async with session.get(client.server + RESOURCE_SLICES.path(), params=query, timeout=None) as response:
                async for line in response.content:
                    if found := VERSION.search(line):
                        version = found[1].decode()
                        print(time.monotonic(), version, flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
