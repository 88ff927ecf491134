"""Config that nobody uses any more is removed; what comes into use at that moment is not."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Sequence

from gpupartition import names
from gpupartition.api.v1alpha1 import Phase
from gpupartition.controller import clock
from gpupartition.controller.caches import Caches
from gpupartition.controller.declared import Driver
from gpupartition.controller.records import DRIVERS, Record
from gpupartition.controller.scope import ledger_of
from gpupartition.domain.entries import Document, Unreadable
from gpupartition.domain.objects import Object
from gpupartition.domain.world import AT_REST
from gpupartition.kube import CONFIG_MAPS, DAEMON_SETS, NODES, Client, Conflict, NotFound

log = logging.getLogger(__name__)


class Unclear(Exception):  # noqa: N818  (reads as what happened)
    """Some record cannot be read, and may name anything."""


class Collector:
    """Looks for unused config of a driver, first in the caches, then live."""

    def __init__(self, client: Client, caches: Caches) -> None:
        self._client = client
        self._caches = caches

    async def collect(self, driver: Driver) -> None:
        """Read the object, then all that may refer to it, then write under what was read: a touch in between saves what it holds."""
        with contextlib.suppress(Unclear):
            await self._collect(driver)

    async def _collect(self, driver: Driver) -> None:
        label = driver.backend.label
        cached = used(r for r in self._caches.records.values() if r.spec.driver == driver.name)
        in_use = cached | assigned(self._caches.nodes.values(), label)
        for config in driver.cluster.daemon_sets:
            fingerprint = config["metadata"].get("labels", {}).get(names.LAYOUT)
            ours = fingerprint and config["metadata"].get("annotations", {}).get(names.FINGERPRINT)
            if ours and fingerprint not in in_use:
                await self._delete(config["metadata"]["namespace"], config["metadata"]["name"], fingerprint, label)
        for document in driver.backend.documents(driver.spec):
            present = driver.cluster.config_map(document.namespace, document.name)
            if present is None or not _spare(document, present, in_use):
                continue
            if document.reruns and await self._moving(driver):
                continue
            await self._shorten(document, label)

    async def _moving(self, driver: Driver) -> bool:
        """Whether some node of the driver is being changed, or waits to be: entries are written before the first of them is taken."""
        mine = (r for r in self._caches.records.values() if r.spec.driver == driver.name)
        if any(r.state.phase not in AT_REST or r.state.phase is Phase.PENDING for r in mine):
            return True
        return bool(ledger_of(await self._client.get(DRIVERS, driver.name)))

    async def _delete(self, namespace: str, name: str, fingerprint: str, label: str) -> None:
        try:
            config = await self._client.get(DAEMON_SETS, name, namespace=namespace)
            if fingerprint in await self._in_use(label):
                return
            meta = config["metadata"]
            version = meta["resourceVersion"]
            await self._client.delete(DAEMON_SETS, name, namespace=namespace, uid=meta["uid"], resource_version=version)
        except (Conflict, NotFound):
            return
        log.info("removed DaemonSet %s/%s, which no node uses any more", namespace, name)

    async def _shorten(self, document: Document, label: str) -> None:
        where = f"{document.namespace}/{document.name}"
        try:
            config = await self._client.get(CONFIG_MAPS, document.name, namespace=document.namespace)
            spare = _spare(document, config, await self._in_use(label))
            if not spare:
                return
            await self._client.replace(CONFIG_MAPS, document.without(config, spare, clock.now()))
        except (Conflict, NotFound):
            return
        log.info("removed %s from ConfigMap %s, which no node uses any more", ", ".join(spare), where)

    async def _in_use(self, label: str) -> frozenset[str]:
        """All that a record names or a node is assigned to, read live. Raises Unclear."""
        records = await self._caches.records_now()
        nodes = (await self._client.list(NODES, label_selector=label)).items
        return used(records) | assigned(nodes, label)


def _spare(document: Document, config_map: Object, in_use: Collection[str]) -> Sequence[str]:
    try:
        return sorted(set(document.ours(config_map)) - set(in_use))
    except Unreadable:
        return ()


def assigned(nodes: Iterable[Object], label: str) -> frozenset[str]:
    """Every layout that some node is assigned to."""
    return frozenset(str(n["metadata"].get("labels", {}).get(label, "")) for n in nodes)


def used(records: Iterable[Record]) -> frozenset[str]:
    """Every layout that some record names: where a node is, where it goes, and where it may have to go back to. Raises Unclear."""
    records = list(records)
    if any(r.unreadable for r in records):
        raise Unclear
    named = [a for r in records for a in (r.state.target, r.state.current, r.state.previous, r.state.original)]
    return frozenset(f for a in named if a is not None for f in (a.fingerprint, a.assignment) if f)
