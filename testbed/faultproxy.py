"""A bad line to a good API server: a reverse proxy that refuses, hangs, loses answers, breaks off, and delivers writes too late.

    async with FaultProxy(kubeconfig, folder, seed=7, rules=RULES) as proxy:
        ...                     # clients use proxy.kubeconfig
        proxy.rules = ()        # the line is mended: nothing is injected any more
        await proxy.delivered() # and no write is under way any more
        await proxy.cut_off(5)  # for so many seconds nothing passes, in either direction

With `servers` it stands before several API servers of one cluster, as a load balancer does, and each request goes to any of them.

A rule is data: what is injected, into which requests, how often. For each request the rules are asked in order, and the first that strikes is
used; whether it strikes is drawn from the seed. `log` says what was injected, into what.

| injury     | the client sees                                   | the API server sees             |
|------------|---------------------------------------------------|---------------------------------|
| `CONFLICT` | 409 Conflict                                      | nothing                         |
| `EXPIRED`  | 410 Gone; in a watch that is open: an ERROR event | nothing; a watch that ends      |
| `BUSY`     | 429 with Retry-After                              | nothing                         |
| `BROKEN`   | 500                                               | nothing                         |
| `HANG`     | silence for `seconds`, then a broken connection   | nothing                         |
| `LOST`     | a broken connection                               | the request, carried out        |
| `LATE`     | a broken connection, at once                      | the request, `seconds` later    |
| `SLOW`     | the answer, `seconds` late                        | the request, at once            |
| `CUT`      | a watch that breaks off after `seconds`           | a watch that ends               |
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Self

import aiohttp
import yaml
from aiohttp import web

from gpupartition.kube.credentials import credentials

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path
    from types import TracebackType

    from gpupartition.kube.credentials import Credentials

log = logging.getLogger(__name__)

USER_AGENT: Final = "testbed-faultproxy"
# Headers that are between two neighbours, and those that each of our own requests gets anew.
HOP: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "host", "accept-encoding"})
LINE: Final = 4 * 2**20  # bytes; one object in a watch
READS: Final = frozenset({"GET", "HEAD"})


class Injury(StrEnum):
    """What is done to a request; the table above says what each comes to."""

    CONFLICT = "Conflict"
    EXPIRED = "Expired"
    BUSY = "TooManyRequests"
    BROKEN = "InternalError"
    HANG = "Hang"
    LOST = "Lost"
    LATE = "Late"
    SLOW = "Slow"
    CUT = "Cut"


class To(StrEnum):
    """Which requests a rule is about."""

    READS = "reads"
    WRITES = "writes"
    WATCHES = "watches"


STATUS: Final = {Injury.CONFLICT: 409, Injury.EXPIRED: 410, Injury.BUSY: 429, Injury.BROKEN: 500}
AFTER: Final = frozenset({Injury.CUT, Injury.EXPIRED})
"""What can happen to a watch that is open; `EXPIRED` with no `seconds` refuses it instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One way in which the line is bad."""

    injury: Injury
    to: To
    share: float
    """Of the requests that fit, so many are struck: 0.1 is one in ten."""
    path: str = ""
    """A regular expression that the request's path must contain: "leases", "/nodes/n1$"."""
    seconds: tuple[float, float] = (0.0, 0.0)
    """Between how many seconds and how many, for those injuries that last."""

    def fits(self, request: web.Request) -> bool:
        """Whether the rule is about this request."""
        return kind_of(request) is self.to and bool(re.search(self.path, request.path))


@dataclass(frozen=True, slots=True)
class Injected:
    """What was done to one request. `seconds`: after how long, or for how long."""

    number: int
    injury: Injury
    method: str
    path: str
    seconds: float

    def __str__(self) -> str:
        """One line of a log."""
        lasting = f" {self.seconds:.1f} s" if self.seconds else ""
        return f"#{self.number} {self.injury}{lasting}: {self.method} {self.path}"


class FaultProxy:
    """Carries requests from a free port of the loopback to the server of a kubeconfig, under its account."""

    def __init__(
        self, kubeconfig: Path, folder: Path, *, seed: int, rules: Sequence[Rule] = (), servers: Sequence[Path] = ()
    ) -> None:
        """`servers` are kubeconfigs of servers of one cluster, which take the account of `kubeconfig`; without them, its own."""
        self.servers: Sequence[Path] = servers or (kubeconfig,)
        """May be changed at any time, as the rules may. Watches that are open stay where they are."""
        self.rules: Sequence[Rule] = rules
        """In force from now on; may be changed at any time. Watches that are open keep what they were dealt."""
        self.log: list[Injected] = []
        self.kubeconfig = folder / f"{kubeconfig.stem}-through-the-fault-proxy"
        """For clients: the same account, at this end of the line."""
        self._to = kubeconfig
        self._chance = random.Random(seed)  # noqa: S311 - keeps no secret, and can be replayed
        self._turn = random.Random(seed)  # noqa: S311 - of its own, so that it changes nothing of what is dealt
        self._requests = 0
        self._late: set[asyncio.Task[None]] = set()
        self._passes = asyncio.Event()
        self._passes.set()
        self._watches: dict[int, web.Request] = {}
        self._way_in: AbstractAsyncContextManager[Credentials] = credentials(kubeconfig)
        self._session: aiohttp.ClientSession
        self._runner: web.AppRunner

    async def __aenter__(self) -> Self:
        way_in = await self._way_in.__aenter__()
        self._session = way_in.session(USER_AGENT)
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._carry)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self._write_kubeconfig("http://{}:{}".format(*self._runner.addresses[0][:2]))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._runner.cleanup()
        for task in self._late:
            task.cancel()
        await asyncio.gather(*self._late, return_exceptions=True)
        await self._session.close()
        await self._way_in.__aexit__(kind, error, traceback)

    async def delivered(self) -> None:
        """Wait until the last write that was held back has arrived."""
        while self._late:
            await asyncio.wait(set(self._late))

    async def cut_off(self, seconds: float) -> None:
        """Hold back whatever is under way, in either direction, as a network that is partitioned.

        What a client has not lost patience with arrives after so many `seconds`.
        """
        self._passes.clear()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._passes.set()

    def hang_up(self) -> None:
        """Break every watch off that is open."""
        for watch in self._watches.values():
            _broken(watch)

    def _write_kubeconfig(self, server: str) -> None:
        config = yaml.safe_load(self._to.read_text())
        for each in config["clusters"]:
            each["cluster"] = {"server": server}
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(yaml.safe_dump(config))

    # ------------------------------------------------------------------------------------------------------ what is dealt

    def _deal(self, request: web.Request) -> Injected | None:
        self._requests += 1
        for rule in self.rules:
            if rule.fits(request) and self._chance.random() < rule.share:
                seconds = self._chance.uniform(*rule.seconds)
                dealt = Injected(self._requests, rule.injury, request.method, request.path, seconds)
                self.log.append(dealt)
                return dealt
        return None

    async def _carry(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        await self._passes.wait()
        dealt = self._deal(request)
        injury, seconds = (dealt.injury, dealt.seconds) if dealt else (None, 0.0)
        if kind_of(request) is To.WATCHES and (injury is None or (injury in AFTER and seconds)):
            try:
                return await self._stream(request, injury, seconds)
            except aiohttp.ClientError:
                return _broken(request)  # the API server is away, or has just gone
        if injury in STATUS:
            return _refusal(injury)
        if injury is Injury.HANG:
            await asyncio.sleep(seconds)
            return _broken(request)
        if injury in {Injury.LATE, Injury.LOST}:
            # Apart from this handler: it goes on when the client has long hung up.
            task = asyncio.create_task(self._deliver(request, body, seconds))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            if injury is Injury.LOST:
                await asyncio.wait((task,))
            return _broken(request)
        try:
            status, headers, answer = await self._ask(request, body)
        except aiohttp.ClientError:
            return _broken(request)  # the API server itself is away
        await asyncio.sleep(seconds)
        return web.Response(status=status, headers=headers, body=answer)

    # ------------------------------------------------------------------------------------------------------- to the server

    def _url(self, request: web.Request) -> str:
        return _server(self._turn.choice(self.servers)) + request.path_qs

    async def _deliver(self, request: web.Request, body: bytes, after: float) -> None:
        await asyncio.sleep(after)
        await self._passes.wait()
        try:
            status, _, _ = await self._ask(request, body)
        except aiohttp.ClientError as error:
            log.warning("%s %s was never delivered: %s", request.method, request.path, error)
        else:
            log.info("%s %s, delivered after %.1f s: %d", request.method, request.path, after, status)

    async def _ask(self, request: web.Request, asked: bytes) -> tuple[int, dict[str, str], bytes]:
        async with self._session.request(
            request.method, self._url(request), headers=_headers(request.headers), data=asked or None
        ) as answer:
            body = await answer.read()
        await self._passes.wait()
        return answer.status, _headers(answer.headers), body

    async def _stream(self, request: web.Request, injury: Injury | None, seconds: float) -> web.StreamResponse:
        """Pass a watch on, line by line, until its end or ours."""
        forever = aiohttp.ClientTimeout(total=None)
        async with self._session.get(self._url(request), headers=_headers(request.headers), timeout=forever) as answer:
            if answer.status >= 400:
                return web.Response(status=answer.status, headers=_headers(answer.headers), body=await answer.read())
            ours = web.StreamResponse(status=answer.status, headers=_headers(answer.headers))
            await ours.prepare(request)
            self._watches[id(request)] = request
            try:
                async with asyncio.timeout(seconds if injury else None):
                    async for line in answer.content:
                        await self._passes.wait()
                        await ours.write(line)
            except TimeoutError:
                if injury is not Injury.EXPIRED:
                    return _broken(request)
                event = {"type": "ERROR", "object": _status(injury)}
                await ours.write(json.dumps(event).encode() + b"\n")
            finally:
                self._watches.pop(id(request))
            await ours.write_eof()
            return ours


def kind_of(request: web.Request) -> To:
    """Whether a request reads, writes, or watches."""
    if request.method not in READS:
        return To.WRITES
    return To.WATCHES if request.query.get("watch") in {"true", "1"} else To.READS


@lru_cache
def _server(kubeconfig: Path) -> str:
    return str(yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["server"])


def _refusal(injury: Injury) -> web.Response:
    status = _status(injury)
    headers = {"Retry-After": "1"} if injury is Injury.BUSY else {}
    return web.json_response(status, status=status["code"], headers=headers)


def _status(injury: Injury) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": str(injury),
        "message": "injected by the fault proxy",
        "code": STATUS[injury],
    }


def _broken(request: web.Request) -> web.Response:
    """Hang up without an answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in HOP | {"content-encoding"}}
