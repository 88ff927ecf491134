"""A real HTTP server that answers as it is told, for what a healthy API server does not do on request: refuse, hang, break off."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml
from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

TOKEN = "a-token-that-nobody-may-see"  # noqa: S105 - it opens nothing


@dataclass(frozen=True)
class Answer:
    """One answer: JSON, or the `lines` of a watch, which then ends properly or, with `cut`, in the middle of something."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    cut: bool = False
    hang: bool = False


@dataclass
class Scripted:
    """The server's script and what it was asked."""

    url: str = ""
    kubeconfig: Path | None = None
    script: list[Answer] = field(default_factory=list)
    asked: list[web.Request] = field(default_factory=list)
    finished: asyncio.Event = field(default_factory=asyncio.Event)  # the last answer has been asked for

    def will_answer(self, *answers: Answer) -> None:
        self.script.extend(answers)
        self.finished.clear()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request)
        assert self.script, f"nothing more in the script, but asked for {request.method} {request.path_qs}"
        answer = self.script.pop(0)
        if not self.script:
            self.finished.set()
        if answer.hang:
            await asyncio.Event().wait()
        if not answer.lines:
            return web.Response(
                text=answer.body if isinstance(answer.body, str) else json.dumps(answer.body),
                content_type="text/html" if isinstance(answer.body, str) else "application/json",
                status=answer.status,
                headers=answer.headers,
            )
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        await response.write("".join(answer.lines).encode())
        if answer.cut and request.transport is not None:
            request.transport.close()
        return response


def refusal(status: int, reason: str, message: str, **details: object) -> Answer:
    body = {"kind": "Status", "code": status, "reason": reason, "message": message, "details": details}
    return Answer(body, status)


def line(event: str, obj: dict[str, Any]) -> str:
    return json.dumps({"type": event, "object": obj}) + "\n"


@asynccontextmanager
async def scripted(folder: Path) -> AsyncIterator[Scripted]:
    """Serve on a free port of the loopback, with a kubeconfig for it in `folder`."""
    server = Scripted()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = "http://{}:{}".format(*runner.addresses[0][:2])
    server.kubeconfig = folder / "kubeconfig"
    server.kubeconfig.write_text(yaml.safe_dump(kubeconfig(server.url, {"token": TOKEN})))
    try:
        yield server
    finally:
        await runner.cleanup()


def kubeconfig(url: str, user: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "clusters": [{"name": "here", "cluster": {"server": url}}],
        "users": [{"name": "me", "user": user}],
    }
