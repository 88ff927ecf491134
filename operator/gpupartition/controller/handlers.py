"""kopf watches our own kinds. Its handlers keep a copy and say whose has changed; they decide nothing and write nothing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kopf

from gpupartition import names
from gpupartition.controller.records import DRIVERS, POLICIES
from gpupartition.kube import Client, Object

log = logging.getLogger(__name__)

Asked = tuple[Any, ...]

KOPF_ENDS = 5  # seconds that kopf's tasks are given to end


class Deaf(Exception):  # noqa: N818  (reads as what happened)
    """kopf watches policies and drivers no longer: started anew, the operator goes on where it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    """The copies of policies and drivers by name, and whom to tell."""

    policies: dict[str, Object]
    drivers: dict[str, Object]
    on_policy: Callable[[str], None]
    on_driver: Callable[[str], None]


def _registry(client: Client, kinds: Kinds) -> kopf.OperatorRegistry:
    """The handlers, bound to these copies."""
    handlers = kopf.OperatorRegistry()
    policies: dict[str, Asked] = {}
    drivers: dict[str, Asked] = {}

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
        changed = _keep(kinds.policies, policies, str(name), body, deleted=type == "DELETED")
        if changed:
            kinds.on_policy(str(name))

    @kopf.on.event(names.GROUP, names.VERSION, DRIVERS.plural, registry=handlers)
    async def driver(name: str | None, body: kopf.Body, type: str | None, **_: Any) -> None:  # noqa: A002
        changed = _keep(kinds.drivers, drivers, str(name), body, deleted=type == "DELETED")
        if changed:
            kinds.on_driver(str(name))

    return handlers


async def watch(client: Client, kinds: Kinds, *, on_start: Callable[[], None]) -> None:
    """Let kopf watch until one of its tasks ends, as all do together. Raises Deaf: nobody can ask kopf to end.

    `on_start` is called when kopf has begun, which takes SIGTERM and SIGINT for itself. kopf gives a watch up for good when a list is refused
    (a token expired between two pages, a right taken away for a moment), and to end by itself it would cancel every task of this process, and
    wait for them.
    """
    handlers = _registry(client, kinds)
    tasks = await kopf.spawn_tasks(registry=handlers, clusterwide=True, standalone=True, memo=kopf.Memo())
    on_start()  # at once: no signal has reached kopf yet
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _end_kopf()
    errors = [task.exception() for task in done if not task.cancelled()]
    error = next(filter(None, errors), None)
    why = error or f"{', '.join(sorted(task.get_name() for task in done))} ended without a word"
    raise Deaf(f"kopf watches policies and drivers no longer: {why}") from error


def _keep(copies: dict[str, Object], heard: dict[str, Asked], name: str, body: kopf.Body, *, deleted: bool) -> bool:
    """Whether anything changed but what we ourselves wrote: a policy's status is ours, a driver's ledger is not only ours.

    Since it was last `heard` of: a copy may have been replaced by what was read since, of which nobody else was told.
    """
    if deleted:
        heard.pop(name, None)
        return copies.pop(name, None) is not None
    copies[name] = dict(body)
    known, heard[name] = heard.get(name), _asked(body)
    return known != heard[name]


def _asked(body: kopf.Body) -> Asked:
    meta = body["metadata"]
    ledger = body.get("status", {}).get("inFlight")
    return meta["uid"], meta.get("generation"), meta.get("annotations"), meta.get("deletionTimestamp"), ledger


async def _end_kopf() -> None:
    """Cancel all that kopf runs until it is gone: a watch of its swallows being cancelled once, and the process would wait for it for ever."""
    home = Path(kopf.__file__).parent
    until = time.monotonic() + KOPF_ENDS
    while left := [t for t in asyncio.all_tasks() if home in Path(_code(t)).parents]:
        if time.monotonic() > until:
            log.error("%d tasks of kopf do not end", len(left))
            return
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=0.2)


def _code(task: asyncio.Task[Any]) -> str:
    """The file in which a task's coroutine is written."""
    return str(getattr(getattr(task.get_coro(), "cr_code", None), "co_filename", ""))
