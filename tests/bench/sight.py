"""Waiting, by a watch, until what there is of a kind about a node is as it should be."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tests.e2e.harness import follow

from gpupartition.kube.reflector import key_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from gpupartition.kube import Client, Kind, Object


class Sight:
    """All objects of a kind, by the node that they are about. One waits for a node at a time."""

    def __init__(
        self, client: Client, kind: Kind, node_of: Callable[[Object], str], *, namespace: str | None = None
    ) -> None:
        self._client = client
        self._kind = kind
        self._namespace = namespace
        self._node_of = node_of
        self._objects: dict[str, dict[str, Object]] = defaultdict(dict)
        self._changed: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Watch, until the block ends."""
        listing = await self._client.list(self._kind, namespace=self._namespace)
        for body in listing.items:
            self._see("ADDED", body)
        watching = asyncio.create_task(self._watch(listing.resource_version))
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def until(self, node: str, is_so: Callable[[Sequence[Object]], bool]) -> None:
        """Return as soon as the objects about the node are so."""
        while not is_so(list(self._objects[node].values())):
            self._changed[node].clear()
            await self._changed[node].wait()

    async def _watch(self, version: str) -> None:
        async for what, body in follow(self._client, self._kind, version, namespace=self._namespace):
            self._see(what, body)

    def _see(self, what: str, body: Object) -> None:
        node = self._node_of(body)
        if what == "DELETED":
            self._objects[node].pop(key_of(body), None)
        else:
            self._objects[node][key_of(body)] = body
        self._changed[node].set()
