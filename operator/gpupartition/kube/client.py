"""One asynchronous client of the API server, in raw JSON.

Typed models would cost ten times the time per ResourceSlice and drop what they do not know when an object is written
back, so objects are plain dicts, exactly as the server sends them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, cast

import aiohttp

from gpupartition.kube.credentials import Credentials, credentials
from gpupartition.kube.errors import ApiError, Gone, NotFound, NotServed, TooManyRequests, Unreachable
from gpupartition.kube.parsing import parsed
from gpupartition.kube.shapes import ANYTHING, EVENT, JSON_OBJECT, LIST, OBJECT, Shape

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence
    from pathlib import Path

    from gpupartition.kube.kinds import Kind

log = logging.getLogger(__name__)

Object = dict[str, Any]

_JSON: Final = "application/json"
_JSON_PATCH: Final = "application/json-patch+json"
_MERGE_PATCH: Final = "application/merge-patch+json"
_METADATA: Final = f"{_JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

_ATTEMPTS: Final = 4  # some three seconds with these pauses: a server that restarts is for the caller's back-off
_FIRST_PAUSE: Final = 0.2  # seconds, doubled each time
_LONGEST_PAUSE: Final = 10.0  # seconds; a server that asks for more patience is overloaded, and its caller should know

_FIRST_PAGE: Final = 20  # objects, of which nobody knows yet how large they are
_PAGE_SIZE: Final = 2**20
"""Bytes, which take 5 ms to read: nothing else moves meanwhile, and as objects they are ten times as large."""

_CONNECT: Final = 10.0  # seconds
_SILENCE: Final = 75.0  # seconds without a byte on a watch; servers send a bookmark each minute
_WATCH: Final = (300, 600)  # seconds after which the server ends a watch, drawn so that not all end at once


@dataclass(frozen=True, slots=True)
class Listing:
    """All objects of a list, and the resourceVersion from which a watch goes on."""

    items: list[Object]
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    method: str
    what: str  # for people: "patch pods/status default/web"
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: object = None
    content: str = _JSON
    accept: str = ""
    shape: Shape = OBJECT  # of the answer


class _Answer(NamedTuple):
    value: Object
    size: int  # bytes, of the text


class Client:
    """Speaks to one API server. Reads are tried again a few times, writes never: only the caller knows if that is safe.

    Every method raises ApiError: the subclass by status, Unreachable when there was no answer.
    """

    def __init__(
        self,
        way_in: Credentials,
        session: aiohttp.ClientSession,
        user_agent: str,
        patience: float,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self._credentials = way_in
        self._session = session
        self._user_agent = user_agent
        self._patience = patience
        self._warned: set[str] = set()
        self._may_write = may_write

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        kubeconfig: Path | str | None = None,
        context: str | None = None,
        *,
        user_agent: str = "",
        patience: float = 15.0,
    ) -> AsyncIterator[Self]:
        """Log in; nothing is asked of the server yet. `patience`: seconds for one request and its answer."""
        user_agent = user_agent or f"gpupartition/{own_version()}"
        async with credentials(kubeconfig, context) as way_in, way_in.session(user_agent) as session:
            yield cls(way_in, session, user_agent, patience)

    @property
    def server(self) -> str:
        """URL of the API server."""
        return self._credentials.server

    def session(self) -> aiohttp.ClientSession:
        """Open another session with the same credentials, for a framework that wants to own (and close) one."""
        return self._credentials.session(self._user_agent)

    def only_while(self, allowed: Callable[[], bool]) -> Client:
        """Give the same client again, but one that sends no write any more as soon as `allowed` says no (reason ``NotLeading``)."""
        return Client(self._credentials, self._session, self._user_agent, self._patience, allowed)

    async def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Object:
        """Read one object, live."""
        what = f"get {kind} {_at(namespace, name)}"
        return await self._read(_Request(method="GET", what=what, path=kind.path(namespace, name)))

    async def find(self, kind: Kind, name: str, *, namespace: str | None = None) -> Object | None:
        """Read one object, live; None when there is none of that name.

        Raises NotServed only after several tries, a moment apart: while a control plane is upgraded, another of its servers may serve
        the kind. Which of them answers is not ours to choose: whoever has to be sure asks for longer.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self.get(kind, name, namespace=namespace)
            except NotFound:
                break
            except NotServed:
                if attempt == _ATTEMPTS:
                    raise
                # The connection that is free first is used first: after a moment it may be one that leads to another server.
                await asyncio.sleep(_FIRST_PAUSE * random.uniform(1, 1.5))  # noqa: S311 - those who ask together drift apart
        return None

    async def list(
        self,
        kind: Kind,
        *,
        namespace: str | None = None,
        field_selector: str = "",
        label_selector: str = "",
        page: int = 500,
        keep: Callable[[Object], Any] | None = None,
    ) -> Listing:
        """Read all that match, as of one moment; of all namespaces when none is given. Of each only what `keep` makes of it, or nothing."""
        while True:
            items: list[Object] = []
            version = ""
            try:
                async for part in self.pages(
                    kind, namespace=namespace, field_selector=field_selector, label_selector=label_selector, page=page
                ):
                    items += part.items if keep is None else filter(None, map(keep, part.items))
                    version = part.resource_version
            except Gone:
                if not page:
                    raise
                page = 0  # reading the pages took longer than the server remembers; one piece cannot grow too old
            else:
                return Listing(items, version)

    async def pages(
        self,
        kind: Kind,
        *,
        namespace: str | None = None,
        field_selector: str = "",
        label_selector: str = "",
        page: int = 500,
    ) -> AsyncGenerator[Listing]:
        """Read all that match, as of one moment, `page` at a time, or fewer where they are large (0: all at once).

        Raises Gone when the server forgot that moment before the last page: what came before is a part of the truth.
        """
        what = f"list {kind} {_at(namespace)}".rstrip()
        ask = _Request(method="GET", what=what, path=kind.path(namespace), shape=LIST)
        query = _selectors(field_selector, label_selector)
        limit = {"limit": str(min(page, _FIRST_PAGE))} if page else {}
        coming: asyncio.Task[_Answer] | None = asyncio.create_task(self._asked(replace(ask, query=query | limit)))
        try:
            while coming is not None:
                answer, size = await coming
                of = {"apiVersion": answer["apiVersion"], "kind": answer["kind"].removesuffix("List")}
                meta, items = answer["metadata"], answer.get("items") or ()
                token = meta.get("continue")
                if items:
                    limit = {"limit": str(max(1, min(page, len(items) * _PAGE_SIZE // size)))}
                after = replace(ask, query={**query, **limit, "continue": token})
                # The server makes the next page while this one is looked at.
                coming = asyncio.create_task(self._asked(after)) if token else None
                yield Listing([of | item for item in items], meta["resourceVersion"])
        finally:
            if coming is not None:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)

    async def names(self, kind: Kind, *, most: int) -> Sequence[str]:
        """The names of the first `most` objects, without what is in them."""
        return [str(meta["name"]) for meta in await self._metadata(kind, {"limit": str(most)})]

    async def versions(self, kind: Kind, *, field_selector: str = "") -> Mapping[str, str]:
        """The resourceVersions of all objects that match, by name, without what is in them."""
        found = await self._metadata(kind, _selectors(field_selector, ""))
        return {str(meta["name"]): str(meta["resourceVersion"]) for meta in found}

    async def _metadata(self, kind: Kind, query: Mapping[str, str]) -> Sequence[Object]:
        ask = _Request(
            method="GET",
            what=f"list {kind}",
            path=kind.path(),
            query=query,
            accept=f"{_JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
            shape=LIST,
        )
        return [item["metadata"] for item in (await self._read(ask)).get("items") or ()]

    async def create(
        self,
        kind: Kind,
        body: Object,
        *,
        namespace: str | None = None,
        dry_run: bool = False,
        metadata_only: bool = False,
    ) -> Object:
        """Create; Conflict with reason ``AlreadyExists`` when the name is taken. The answer of a large object costs as much as the write."""
        meta = body["metadata"]
        namespace = namespace or meta.get("namespace")
        what = f"create {kind} {_at(namespace, meta.get('name') or meta.get('generateName', ''))}"
        path = kind.path(namespace)
        accept = _METADATA if metadata_only else ""
        return await self._write(
            _Request(method="POST", what=what, path=path, query=_dry(dry_run), body=body, accept=accept)
        )

    async def replace(self, kind: Kind, body: Object, *, subresource: str = "", metadata_only: bool = False) -> Object:
        """PUT `body`; a resourceVersion in its metadata makes it compare-and-swap: Conflict when somebody was faster."""
        meta = body["metadata"]
        what = f"replace {_sub(kind, subresource)} {_at(meta.get('namespace'), meta['name'])}"
        path = kind.path(meta.get("namespace"), meta["name"], subresource)
        accept = _METADATA if metadata_only else ""
        return await self._write(_Request(method="PUT", what=what, path=path, body=body, accept=accept))

    async def patch(
        self,
        kind: Kind,
        name: str,
        patch: Sequence[object] | Mapping[str, object],
        *,
        namespace: str | None = None,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Object:
        """Patch: a list is a JSON patch, a dict a merge patch (``metadata.resourceVersion`` in it is a precondition)."""
        what = f"patch {_sub(kind, subresource)} {_at(namespace, name)}"
        path = kind.path(namespace, name, subresource)
        content = _MERGE_PATCH if isinstance(patch, Mapping) else _JSON_PATCH
        return await self._write(
            _Request(method="PATCH", what=what, path=path, query=_dry(dry_run), body=patch, content=content)
        )

    async def delete(
        self,
        kind: Kind,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        dry_run: bool = False,
    ) -> None:
        """Delete, if `uid` and `resource_version` are still those (else Conflict).

        The object stays for as long as its finalizers and its grace period say.
        """
        known = {"uid": uid, "resourceVersion": resource_version}
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if preconditions := {name: value for name, value in known.items() if value is not None}:
            options["preconditions"] = preconditions
        if dry_run:
            options["dryRun"] = ["All"]  # with a body, the server does not look for options in the query
        what = f"delete {kind} {_at(namespace, name)}"
        path = kind.path(namespace, name)
        await self._write(_Request(method="DELETE", what=what, path=path, body=options, shape=JSON_OBJECT))

    async def watch(
        self,
        kind: Kind,
        *,
        resource_version: str,
        namespace: str | None = None,
        field_selector: str = "",
        label_selector: str = "",
    ) -> AsyncGenerator[tuple[str, Object]]:
        """Yield (``ADDED`` | ``MODIFIED`` | ``DELETED`` | ``BOOKMARK``, object) from just after `resource_version`.

        Ends when the server ends it, after 5 to 10 minutes: go on from the last version seen. Raises Gone when that
        version is too old by now.
        """
        what = f"watch {kind} {_at(namespace)}".rstrip()
        query = _selectors(field_selector, label_selector) | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(random.randint(*_WATCH)),  # noqa: S311 - spreads load, keeps no secret
        }
        limits = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT, sock_read=_SILENCE)
        try:
            async with self._session.get(self.server + kind.path(namespace), params=query, timeout=limits) as response:
                if response.status >= 400:
                    raise _refusal(what, response, await response.text(errors="replace"))
                async for line in response.content:
                    event = _said(what, response, line, EVENT)
                    if event["type"] == "ERROR":
                        raise ApiError.of(what, event["object"].get("code", 500), event["object"])
                    yield event["type"], event["object"]
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:  # ValueError: a line longer than any object
            raise _no_answer(what, error) from error

    async def raw(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content: str = _JSON,
    ) -> Any:
        """Ask for any path (``/version``, ``/readyz``, …); JSON comes parsed, all else as text, but what is in the API is an object.

        `content`: the media type of the body, which is sent as JSON.
        """
        ask = _Request(
            method=method,
            what=f"{method} {path}",
            path=path,
            query=query or {},
            body=body,
            content=content,
            shape=JSON_OBJECT if path.startswith(("/api/", "/apis/")) else ANYTHING,
        )
        return await (self._read(ask) if method == "GET" else self._write(ask))

    async def _read(self, ask: _Request) -> Object:
        return (await self._asked(ask)).value

    async def _asked(self, ask: _Request) -> _Answer:
        for attempt in range(1, _ATTEMPTS):
            try:
                return await self._once(ask)
            except ApiError as error:
                pause = error.details.get("retryAfterSeconds", _FIRST_PAUSE * 2**attempt)
                passes = isinstance(error, Unreachable | TooManyRequests) or error.status == 503
                if not passes or pause > _LONGEST_PAUSE:
                    raise
                await asyncio.sleep(pause * random.uniform(1, 1.5))  # noqa: S311 - never earlier than asked
        return await self._once(ask)

    async def _write(self, ask: _Request) -> Object:
        if not self._may_write():
            raise ApiError(ask.what, 0, "NotLeading", "nothing was sent, because another instance may be at work")
        # The server gives up when we do: what its caller has given up must not happen much later.
        return (await self._once(replace(ask, query={**ask.query, "timeout": f"{self._patience:g}s"}))).value

    async def _once(self, ask: _Request) -> _Answer:
        try:
            async with self._session.request(
                ask.method,
                self.server + ask.path,
                params=ask.query,
                data=None if ask.body is None else json.dumps(ask.body),
                headers=_headers(ask),
                timeout=aiohttp.ClientTimeout(total=self._patience, sock_connect=_CONNECT),
            ) as response:
                answer = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _no_answer(ask.what, error) from error
        if response.status >= 400:
            raise _refusal(ask.what, response, answer.decode(errors="replace"))
        for warning in set(response.headers.getall("Warning", ())) - self._warned:
            self._warned.add(warning)  # each once: a deprecated field would otherwise fill the log with every write
            log.warning("%s: the API server warns: %s", ask.what, warning)
        return _Answer(cast("Object", _said(ask.what, response, answer, ask.shape)), len(answer))


def _said(what: str, response: aiohttp.ClientResponse, answer: bytes, shape: Shape) -> Any:
    """What the answer says. Raises Unreachable when it is cut off, or has another shape: then it is no API server's."""
    try:
        came = parsed(answer) if response.content_type == _JSON else answer.decode(errors="replace")
    except ValueError as error:  # cut in the middle
        raise _no_answer(what, error) from error
    if not shape.fits(came):
        raise Unreachable(what, 0, "Unreachable", shape.missed_by(came, response.content_type))
    return came


def _refusal(what: str, response: aiohttp.ClientResponse, text: str) -> ApiError:
    error = ApiError.of(what, response.status, text)
    if (asked := response.headers.get("Retry-After", "")).isdigit():
        error.details.setdefault("retryAfterSeconds", int(asked))
    return error


def _no_answer(what: str, error: Exception) -> Unreachable:
    why = "timed out" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
    return Unreachable(what, 0, "Unreachable", why)


def _at(namespace: str | None, name: str = "") -> str:
    return "/".join(part for part in (namespace, name) if part)


def _sub(kind: Kind, subresource: str) -> str:
    return f"{kind}/{subresource}" if subresource else str(kind)


def _dry(dry_run: bool) -> dict[str, str]:
    return {"dryRun": "All"} if dry_run else {}


def _selectors(fields: str, labels: str) -> dict[str, str]:
    given = {"fieldSelector": fields, "labelSelector": labels}
    return {name: value for name, value in given.items() if value}


def own_version() -> str:
    """The release that this is; "dev" of a checkout that was never installed."""
    try:
        return version("gpupartition")
    except PackageNotFoundError:
        return "dev"


def _headers(ask: _Request) -> dict[str, str]:
    found = {"Accept": ask.accept} if ask.accept else {}
    return found if ask.body is None else found | {"Content-Type": ask.content}
