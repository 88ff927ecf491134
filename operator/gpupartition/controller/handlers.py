"""kopf watches our own kinds. Its handlers keep a copy and put a name on a queue; they decide nothing and write nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import kopf

from gpupartition import names
from gpupartition.controller.records import DRIVERS, POLICIES
from gpupartition.kube import Client, Object


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    """The copies of policies and drivers by name, and whom to tell."""

    policies: dict[str, Object]
    drivers: dict[str, Object]
    on_policy: Callable[[str], None]
    on_driver: Callable[[str], None]


def registry(client: Client, kinds: Kinds) -> kopf.OperatorRegistry:
    """The handlers, bound to these copies."""
    handlers = kopf.OperatorRegistry()

    @kopf.on.login(registry=handlers)
    async def login(**_: Any) -> kopf.AiohttpSession:
        return kopf.AiohttpSession(server=client.server, aiohttp_session=client.session())

    @kopf.on.startup(registry=handlers)
    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False  # events are posted on transitions, by controller/events.py
        settings.scanning.disabled = True  # the CRDs are there before the operator is
        settings.watching.chunk_size = 100
        settings.peering.standalone = True
        # Never our own finalizer: kopf takes its finalizer away where no handler of its needs it.
        settings.persistence.finalizer = f"{names.GROUP}/unused"

    @kopf.on.event(names.GROUP, names.VERSION, POLICIES.plural, registry=handlers)
    async def policy(name: str | None, body: kopf.Body, type: str | None, **_: Any) -> None:  # noqa: A002
        changed = _keep(kinds.policies, str(name), body, deleted=type == "DELETED")
        if changed:
            kinds.on_policy(str(name))

    @kopf.on.event(names.GROUP, names.VERSION, DRIVERS.plural, registry=handlers)
    async def driver(name: str | None, body: kopf.Body, type: str | None, **_: Any) -> None:  # noqa: A002
        changed = _keep(kinds.drivers, str(name), body, deleted=type == "DELETED")
        if changed:
            kinds.on_driver(str(name))

    return handlers


def _keep(copies: dict[str, Object], name: str, body: kopf.Body, *, deleted: bool) -> bool:
    """Whether anything changed but what we ourselves wrote: a policy's status is ours, a driver's ledger is not only ours."""
    if deleted:
        return copies.pop(name, None) is not None
    known = copies.get(name)
    new = copies[name] = dict(body)
    return known is None or _asked(known) != _asked(new)


def _asked(body: Object) -> tuple[Any, ...]:
    meta = body["metadata"]
    ledger = body.get("status", {}).get("inFlight")
    return meta["uid"], meta.get("generation"), meta.get("annotations"), meta.get("deletionTimestamp"), ledger
