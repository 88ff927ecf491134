"""The whole history of a test.

The API server numbers its writes to all kinds in one row, so a `Watcher` that watches every kind can tell afterwards what was true at
any instant of the test, in the order in which it became true: an invariant is asserted over all instants, not over samples.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from testbed.nodes import DRIVER_NAMESPACE
from tests.e2e.harness import DRIVERS, NODE_STATES, POLICIES, eventually, follow

from gpupartition.api.v1alpha1 import Phase
from gpupartition.kube import (
    DAEMON_SETS,
    DEVICE_TAINT_RULES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Gone,
    Kind,
    NotServed,
)
from gpupartition.names import CORDONED, FULL_NODE_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from tests.e2e.harness import Cluster

    from gpupartition.kube import Listing, Object

AT_REST: Final = frozenset({Phase.PENDING, Phase.UP_TO_DATE, Phase.ROLLED_BACK, Phase.SKIPPED})

WATCHED: Final = (
    POLICIES,
    DRIVERS,
    NODE_STATES,
    DEVICE_TAINT_RULES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    DAEMON_SETS,
)


@dataclass(frozen=True, slots=True)
class Change:
    """One write that became visible: `what` is ADDED, MODIFIED or DELETED, `body` the object after it (before it, if deleted)."""

    version: int
    kind: Kind
    what: str
    body: Object

    @property
    def name(self) -> str:
        """The object's name."""
        return str(self.body["metadata"]["name"])

    @property
    def key(self) -> tuple[Kind, str, str]:
        """Which object: kind, namespace, name."""
        return self.kind, self.body["metadata"].get("namespace", ""), self.name


@dataclass
class Instant:
    """All watched objects as they were after one change."""

    change: Change | None = None
    _objects: dict[tuple[Kind, str, str], Object] = field(default_factory=dict)

    def objects(self, kind: Kind) -> list[Object]:
        """Every object of a kind."""
        return [body for key, body in self._objects.items() if key[0] is kind]

    def phases(self) -> dict[str, str]:
        """Each recorded node's phase."""
        return {r["metadata"]["name"]: r.get("status", {}).get("phase", "") for r in self.objects(NODE_STATES)}

    def quiesced(self) -> set[str]:
        """The nodes whose devices our rules keep new claims from, and those that we have cordoned."""
        rules = self.objects(DEVICE_TAINT_RULES)
        return {
            rule["metadata"]["annotations"][FULL_NODE_NAME]
            for rule in rules
            if rule["spec"]["taint"]["effect"] == "NoSchedule"
            and FULL_NODE_NAME in (rule["metadata"].get("annotations") or {})
        } | {
            node["metadata"]["name"]
            for node in self.objects(NODES)
            if CORDONED in (node["metadata"].get("annotations") or {}) and node["spec"].get("unschedulable")
        }

    def unavailable(self) -> set[str]:
        """The nodes that are quiesced or on their way."""
        return self.quiesced() | {name for name, phase in self.phases().items() if phase not in AT_REST}


class Watcher:
    """Records every change of the watched kinds, from before the block begins until its end.

    `async with Watcher(cluster) as history:` Read it after `await history.caught_up()`, or after the block.
    """

    def __init__(self, cluster: Cluster, *kinds: Kind) -> None:
        self._client = cluster.client
        self._test = cluster.name
        self._kinds = kinds or WATCHED
        self._tasks: list[asyncio.Task[None]] = []
        self._before: list[Change] = []
        self._changes: list[Change] = []

    async def __aenter__(self) -> Self:
        for kind in self._kinds:
            try:
                listing = await self._client.list(kind)
            except NotServed:
                self._kinds = tuple(each for each in self._kinds if each is not kind)  # not served: there are none
                continue
            self._before += [_change(kind, "ADDED", body) for body in listing.items if self._is_mine(body)]
            self._tasks.append(asyncio.create_task(self._watch(kind, listing.resource_version)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self.caught_up()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def caught_up(self) -> None:
        """Wait until all that is true now has been recorded."""

        async def look() -> bool:
            for task in self._tasks:
                if task.done():
                    task.result()
            for kind in self._kinds:
                assert self._recorded(kind) == self._mine(kind, await self._client.list(kind))
            return True

        await eventually(look)

    def _recorded(self, kind: Kind) -> dict[tuple[Kind, str, str], int]:
        """The version of every object of a kind, as far as it was recorded."""
        latest = {each.key: each for each in self._before + self._in_order() if each.kind is kind}
        return {key: each.version for key, each in latest.items() if each.what != "DELETED"}

    def _mine(self, kind: Kind, listing: Listing) -> dict[tuple[Kind, str, str], int]:
        """The same of those of a listing that are of this test."""
        found = [_change(kind, "ADDED", body) for body in listing.items if self._is_mine(body)]
        return {each.key: each.version for each in found}

    def changes(self, kind: Kind, name: str = "") -> list[Change]:
        """The changes of a kind (of one object), in their true order; without what was there before."""
        return [each for each in self._in_order() if each.kind is kind and name in {"", each.name}]

    def instants(self) -> Iterator[Instant]:
        """Every instant, from the beginning on. The same object each time: look at it before going on."""
        now = Instant(None, {each.key: each.body for each in self._before})
        yield now
        for each in self._in_order():
            if each.what == "DELETED":
                now._objects.pop(each.key, None)
            else:
                now._objects[each.key] = each.body
            now.change = each
            yield now

    def phases(self, node: str) -> list[str]:
        """The phases that a node went through, in order."""
        entered: list[str] = []
        for each in self.changes(NODE_STATES, node):
            phase = each.body.get("status", {}).get("phase", "")
            if each.what != "DELETED" and entered[-1:] != [phase]:
                entered.append(phase)
        return entered

    def targets(self, node: str, phase: str, *, after: int = 0) -> list[str]:
        """The fingerprints that a node had as target when it entered a phase, after this resourceVersion."""
        entered, former = [], ""
        for each in self.changes(NODE_STATES, node):
            status = each.body.get("status", {})
            if status.get("phase") == phase != former and each.version > after:
                entered.append(status["target"]["fingerprint"])
            former = status.get("phase", "")
        return entered

    def assignments(self, node: str) -> list[str | None]:
        """The values that the node's label gpupartition.dev/layout took, in order, the first one included; None: no label."""
        values: list[str | None] = []
        for now in self.instants():
            for body in now.objects(NODES) if now.change is None or now.change.kind is NODES else ():
                value = body["metadata"]["labels"].get("gpupartition.dev/layout")
                if body["metadata"]["name"] == node and values[-1:] != [value]:
                    values.append(value)
        return values

    def most_unavailable(self, *nodes: str) -> int:
        """How many nodes (of these) were unavailable through us at the worst instant."""
        among = set(nodes)
        return max(len(now.unavailable() & among if among else now.unavailable()) for now in self.instants())

    def touched(self, kind: Kind, *names: str) -> list[Change]:
        """Every change of these objects."""
        return [each for each in self.changes(kind) if each.name in names]

    async def saw(self, kind: Kind, name: str, *, phase: str, within: float = 30) -> Change:
        """Wait until a record (or pod) was seen in a phase, however briefly."""

        def look() -> Change | None:
            found = (c for c in self._changes if c.kind is kind and c.name == name and c.what != "DELETED")
            return next((c for c in found if c.body.get("status", {}).get("phase") == phase), None)

        seen = await eventually(look, within=within)
        assert seen is not None
        return seen

    def _in_order(self) -> list[Change]:
        return sorted(self._changes, key=lambda each: each.version)

    def _is_mine(self, body: Object) -> bool:
        """Whether it is of this test: namespaces and slices of the one before may still be going away."""
        of = body["metadata"].get("namespace") or body.get("spec", {}).get("nodeName") or self._test
        return of == self._test or of.startswith(f"{self._test}-") or of in {"default", DRIVER_NAMESPACE}

    async def _watch(self, kind: Kind, version: str) -> None:
        while True:
            try:
                async for what, body in follow(self._client, kind, version):
                    if self._is_mine(body):
                        self._changes.append(_change(kind, what, body))
            except Gone:
                # A server that begins to serve a kind anew, as when another one has touched its CRD, knows nothing of what was before.
                listing = await self._client.list(kind)
                if self._mine(kind, listing) != self._recorded(kind):
                    raise
                version = listing.resource_version


def _change(kind: Kind, what: str, body: Object) -> Change:
    return Change(int(body["metadata"]["resourceVersion"]), kind, what, body)
