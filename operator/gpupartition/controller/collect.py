"""Config objects that nobody uses any more are removed; one that comes into use at that moment is not."""

from __future__ import annotations

import logging

from gpupartition import names
from gpupartition.controller.caches import Caches
from gpupartition.controller.intent import Driver
from gpupartition.controller.records import NODE_STATES, Record
from gpupartition.kube import DAEMON_SETS, NODES, Client, Conflict, NotFound

log = logging.getLogger(__name__)


class Collector:
    """Looks for unused config objects of a driver, first in the caches, then live."""

    def __init__(self, client: Client, caches: Caches) -> None:
        self._client = client
        self._caches = caches

    async def collect(self, driver: Driver) -> None:
        """Read the object, then all that may refer to it, then delete it under what was read: a touch in between saves it."""
        cached = [r for r in self._caches.records.values() if r.spec.driver == driver.name]
        assigned = {n["metadata"]["labels"].get(names.LAYOUT, "") for n in self._caches.nodes.values()}
        for config in driver.cluster.daemon_sets:
            fingerprint = config["metadata"].get("labels", {}).get(names.LAYOUT)
            ours = fingerprint and config["metadata"].get("annotations", {}).get(names.FINGERPRINT)
            if not ours or fingerprint in assigned or fingerprint in used(cached):
                continue
            await self._delete(config["metadata"]["namespace"], config["metadata"]["name"], str(fingerprint))

    async def _delete(self, namespace: str, name: str, fingerprint: str) -> None:
        try:
            config = await self._client.get(DAEMON_SETS, name, namespace=namespace)
            records = [Record.read(b) for b in (await self._client.list(NODE_STATES)).items]
            nodes = await self._client.list(NODES, label_selector=f"{names.LAYOUT}={fingerprint}")
            if fingerprint in used(records) or nodes.items:
                return
            meta = config["metadata"]
            version = meta["resourceVersion"]
            await self._client.delete(DAEMON_SETS, name, namespace=namespace, uid=meta["uid"], resource_version=version)
        except (Conflict, NotFound):
            return
        log.info("removed DaemonSet %s/%s, which no node uses any more", namespace, name)


def used(records: list[Record]) -> frozenset[str]:
    """Every layout that some record names: where a node is, where it goes, and where it may have to go back to."""
    named = [a for r in records for a in (r.state.target, r.state.current, r.state.previous, r.state.original)]
    return frozenset(f for a in named if a is not None for f in (a.fingerprint, a.assignment) if f)
