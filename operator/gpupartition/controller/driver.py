"""A driver stays for as long as somebody needs it: without it nothing that is in flight could ever end."""

from __future__ import annotations

from datetime import timedelta

from gpupartition import names
from gpupartition.controller.records import DRIVERS, NODE_STATES, POLICIES
from gpupartition.controller.scope import ledger_of
from gpupartition.kube import Client, NotFound, Object

WHILE_DELETING = timedelta(seconds=5)  # nothing names a driver in an event when the last record of it goes


class DriverLoop:
    """Holds a finalizer on a driver while a policy, a record or a ledger entry names it."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def reconcile(self, name: str) -> timedelta | None:
        """One turn. Raises Conflict when the driver has changed meanwhile: then the turn begins again."""
        try:
            body = await self._client.get(DRIVERS, name)
        except NotFound:
            return None
        meta = body["metadata"]
        finalizers, deleting = list(meta.get("finalizers", ())), "deletionTimestamp" in meta
        held, needed = names.FINALIZER in finalizers, await self._is_needed(name, body)
        if needed and not held and not deleting:
            await self._write(body, [*finalizers, names.FINALIZER])
        elif held and not needed:
            await self._write(body, [f for f in finalizers if f != names.FINALIZER])
        return WHILE_DELETING if deleting and needed else None

    async def _is_needed(self, name: str, body: Object) -> bool:
        if ledger_of(body):
            return True
        policies = (await self._client.list(POLICIES)).items
        if any(p["spec"].get("driver") == name for p in policies):
            return True
        return any(r["spec"].get("driver") == name for r in (await self._client.list(NODE_STATES)).items)

    async def _write(self, body: Object, finalizers: list[str]) -> None:
        meta = body["metadata"]
        patch = {"metadata": {"resourceVersion": meta["resourceVersion"], "finalizers": finalizers}}
        await self._client.patch(DRIVERS, meta["name"], patch)
