"""A local copy of a kind, which tells what changed.

List, then watch from there; after a cut go on from the last version seen. When the server does not remember that far back, list
again and *replace*: what is no longer listed is reported as deleted, because no event will ever tell.
"""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Generic, TypeVar, cast

from gpupartition.kube.errors import ApiError, Forbidden, Gone, NotServed
from gpupartition.kube.pauses import Pauses

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from gpupartition.kube.client import Client, Object
    from gpupartition.kube.kinds import Kind

log = logging.getLogger(__name__)

T = TypeVar("T")

_NOT_SERVED: Final = "this API server does not serve the kind: install its CRD"
_FIRST_PAUSE: Final = 0.1  # seconds, doubled with each failure in a row
_LONGEST_PAUSE: Final = 30.0  # seconds: so much older than need be is the copy of an operator that was cut off, at most
_FEW: Final = 20  # objects that are asked for one by one, or one in twenty of all: for more a list is cheaper
_NOT_HERE: Final = 5  # failures in a row: while a control plane is upgraded, another of its servers may serve the kind
_LIST_AFTER: Final = 5  # failures in a row: perhaps the version we ask for never comes, as after a restore of etcd


def key_of(obj: Object) -> str:
    """Name an object within its kind: ``namespace/name``, or ``name`` where there is no namespace."""
    meta = obj["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


class Reflector(Generic[T]):
    """The copy of one kind, or of the part of it that the selectors say.

    `project` makes of each object what is kept of it: something small, frozen and comparable, or None for "not of interest". Put
    the UID in where "the same" and "another of that name" must be told apart. `on_change(key, old, new)` is called after the copy
    has changed, and only if the projection did; old is None for what is new, new is None for what is gone. Neither may block.

    `indexes` names functions from a projection to the values under which it is to be found, so that looking up "everything on
    this node" does not mean looking at everything.

    With `versions` the copy knows the resourceVersion of each object too, also of those of which nothing has changed that is kept.

    An object of which all that fails is not in the copy, but in `unreadable`, with the reason: one that nobody foresaw must not end the
    news of all the others.
    """

    def __init__(
        self,
        client: Client,
        kind: Kind,
        project: Callable[[Object], T | None],
        on_change: Callable[[str, T | None, T | None], None] = lambda *_: None,
        *,
        namespace: str | None = None,
        field_selector: str = "",
        label_selector: str = "",
        page: int = 250,
        indexes: Mapping[str, Callable[[T], Iterable[str]]] | None = None,
        versions: bool = False,
    ) -> None:
        self.kind = kind
        self.synced = asyncio.Event()
        self.resource_version = ""  # last seen; empty: list before anything else
        self.trouble: ApiError | None = None  # why the copy may be old; None while all is well
        self._answered = asyncio.Event()  # all was read once, or may not be read, or is not there to be read
        self.lists = 0  # complete ones
        self.changes = 0  # how often anything in the copy has changed
        self.unreadable: dict[str, str] = {}  # objects of which nothing is kept because looking at them failed, and how
        self._client = client
        self._project = project
        self._on_change = on_change
        self._namespace = namespace
        self._fields = field_selector
        self._labels = label_selector
        self._page = page
        self._cache: dict[str, T] = {}
        self._versions: dict[str, str] | None = {} if versions else None
        self._indexes = dict(indexes or {})
        self._indexed: dict[str, dict[str, dict[str, T]]] = {name: {} for name in self._indexes}

    async def complete(self) -> None:
        """Wait until all was read once. Raises Forbidden when it may not be read, and NotServed: that only somebody else can mend."""
        await self._answered.wait()
        if not self.synced.is_set() and self.trouble is not None:
            raise self.trouble

    async def now(self, version: Callable[[T], str], *, field_selector: str = "") -> list[T]:
        """What there is, read after this call. Only versions are listed: what the copy has in that very version need not be sent again."""
        listed = await self._client.versions(self.kind, field_selector=field_selector)
        copies = {name: self._cache[name] for name in listed if name in self._cache}
        same = {name: copy for name, copy in copies.items() if version(copy) == listed[name]}
        others = [f"metadata.name={name}" for name in listed if name not in same]
        selectors = others if len(others) <= max(_FEW, len(listed) // _FEW) else [field_selector]
        asked = (self._client.list(self.kind, field_selector=each, keep=self._project) for each in selectors)
        read = [cast("T", each) for answer in await asyncio.gather(*asked) for each in answer.items]
        return [*(same.values() if selectors is others else ()), *read]

    def get(self, key: str) -> T | None:
        """Look up one object by ``name`` or ``namespace/name``."""
        return self._cache.get(key)

    def version(self, key: str) -> str:
        """The resourceVersion that an object had when it was last heard of; "" when it is not there, or versions are not kept."""
        return (self._versions or {}).get(key, "")

    def values(self) -> Collection[T]:
        """All objects, in no particular order; a view that changes with the next event."""
        return self._cache.values()

    def items(self) -> Collection[tuple[str, T]]:
        """All objects with their keys; a view that changes with the next event."""
        return self._cache.items()

    def by(self, index: str, value: str) -> Collection[T]:
        """Look up the objects that `index` files under `value`."""
        return self._indexed[index].get(value, {}).values()

    async def run(self) -> None:
        """Keep the copy true, until cancelled. No answer of the server ends it; a mistake in a callback does."""
        failures, page, pauses = 0, self._page, Pauses()
        while True:
            try:
                if not self.resource_version:
                    await self._list(page)
                    page, self.trouble = self._page, None
                async with aclosing(
                    self._client.watch(
                        self.kind,
                        resource_version=self.resource_version,
                        namespace=self._namespace,
                        field_selector=self._fields,
                        label_selector=self._labels,
                    )
                ) as events:
                    async for kind, obj in events:
                        self._see(kind, obj)
                        failures, self.trouble = 0, None
                        if pauses.due:  # what has come already is read without waiting
                            await pauses.take()
            except Gone as error:
                log.info("%s: listing again", error)
                if not self.resource_version:
                    page = 0  # the pages took longer than the server remembers; one piece cannot grow too old
                self.resource_version = ""
            except ApiError as error:
                log.warning(
                    "%s (%s; trying again)",
                    error,
                    _NOT_SERVED if isinstance(error, NotServed) else "the copy may be old",
                )
                self.trouble = error
                page = self._page  # one piece of a large cluster may be more than the server can give
                if isinstance(error, Forbidden) or (isinstance(error, NotServed) and failures + 1 >= _NOT_HERE):
                    self._answered.set()
            # A watch that its server ended is paused for too: a server that ends all watches at once is restarting.
            await asyncio.sleep(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**failures) * random.uniform(0.5, 1))  # noqa: S311
            failures = min(failures + 1, 20)
            if failures % _LIST_AFTER == 0:
                self.resource_version = ""

    async def read(self) -> None:
        """Make the copy once, without keeping it true. Raises ApiError."""
        try:
            await self._list(self._page)
        except Gone:
            await self._list(0)

    async def _list(self, page: int) -> None:
        listed: set[str] = set()
        version, pauses = "", Pauses()
        pages = self._client.pages(
            self.kind,
            namespace=self._namespace,
            field_selector=self._fields,
            label_selector=self._labels,
            page=page,
        )
        async with aclosing(pages):
            async for part in pages:  # kept page by page: a large cluster's slices would not fit into memory as JSON
                version = part.resource_version
                for obj in part.items:
                    listed.add(key_of(obj))
                    self._put(obj)
                    if pauses.due:
                        await pauses.take()
        for key in sorted((self._cache.keys() | self.unreadable.keys()) - listed):
            self._drop(key)
        self.resource_version = version
        self.lists += 1
        self.synced.set()
        self._answered.set()

    def _see(self, event: str, obj: Object) -> None:
        if event == "DELETED":
            self._drop(key_of(obj))
        elif event != "BOOKMARK":
            self._put(obj)
        self.resource_version = obj["metadata"]["resourceVersion"]

    def _put(self, obj: Object) -> None:
        key = key_of(obj)
        if self._versions is not None:
            self._versions[key] = obj["metadata"]["resourceVersion"]
        try:
            new = self._project(obj)
            values = self._values(new)
            same = self._cache.get(key) == new
        except Exception as error:  # whatever it is, it is about this object alone
            if key not in self.unreadable:
                log.exception("%s %s cannot be read, and counts as absent", self.kind, key)
            self._drop(key)
            self.unreadable[key] = repr(error)
            return
        self.unreadable.pop(key, None)
        if not same:
            self._set(key, new, values)

    def _drop(self, key: str) -> None:
        self.unreadable.pop(key, None)
        if self._versions is not None:
            self._versions.pop(key, None)
        if key in self._cache:
            self._set(key, None, {})

    def _values(self, obj: T | None) -> Mapping[str, Collection[str]]:
        return {name: tuple(of(obj)) for name, of in self._indexes.items()} if obj is not None else {}

    def _set(self, key: str, new: T | None, values: Mapping[str, Collection[str]]) -> None:
        old = self._cache.get(key)
        self.changes += 1
        if new is None:
            del self._cache[key]
        else:
            self._cache[key] = new
        for name, former in self._values(old).items():
            self._file(self._indexed[name], key, former, None)
        for name, current in values.items():
            self._file(self._indexed[name], key, current, new)
        self._on_change(key, old, new)

    @staticmethod
    def _file(index: dict[str, dict[str, T]], key: str, values: Iterable[str], obj: T | None) -> None:
        for value in values:
            if obj is not None:
                index.setdefault(value, {})[key] = obj
            elif value in index:
                index[value].pop(key, None)
                if not index[value]:
                    del index[value]
