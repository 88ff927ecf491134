"""The page for probes and metrics."""

from __future__ import annotations

import asyncio
import logging

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest

from gpupartition.controller.metrics import Snapshot

log = logging.getLogger(__name__)


class NotServing(Exception):  # noqa: N818  (said to whoever started us, who has to choose)
    """The page has no place; the message says what to set."""


class Page:
    """`/healthz`, `/readyz` (200 while the operator stands by, and when it has read everything) and `/metrics`."""

    def __init__(self, snapshot: Snapshot, *, leading: asyncio.Event, ready: asyncio.Event) -> None:
        self._snapshot = CollectorRegistry()
        self._snapshot.register(snapshot)
        self._leading = leading
        self._ready = ready

    async def serve(self, host: str, port: int) -> None:
        """Answer until cancelled. Raises NotServing."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/healthz", _alive),
                web.get("/readyz", self._answer_readiness),
                web.get("/metrics", self._answer_metrics),
            ]
        )
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port)
            try:
                await site.start()
            except OSError as error:
                raise NotServing(
                    f"no probes and metrics on {host}:{port}: {error}; set GPUPARTITION_PORT (0: one that is free) "
                    "or GPUPARTITION_HOST to another"
                ) from error
            log.info("probes and metrics on %s", ", ".join(f"{a[0]}:{a[1]}" for a in runner.addresses))
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    async def _answer_readiness(self, _: web.Request) -> web.Response:
        if not self._leading.is_set():
            return await _text("standing by")  # as ready as it can be: a roll-out of our own must not wait for it
        return await (_text("ready") if self._ready.is_set() else _text("reading", status=503))

    async def _answer_metrics(self, _: web.Request) -> web.Response:
        told = generate_latest(REGISTRY) + generate_latest(self._snapshot)
        return web.Response(body=told, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _alive(_: web.Request) -> web.Response:
    return await _text("alive")


async def _text(text: str, *, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status)
