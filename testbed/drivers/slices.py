"""How a DRA driver keeps its pool in the API: the rules of the ResourceSlice controller that every Go driver links (Kubernetes 1.36).

Theory: a slice's place in the pool is told by the five hex digits that its name begins with; who made it is never asked. What has a lower
generation, no such place, or a place taken twice is deleted; what has a place is overwritten; what is missing is created, in this order.
The first refused write ends the turn. A refused layout therefore leaves whatever the writes before it made: half a pool whose generation
rises at each retry, a pool without counters, or the old pool untouched while the driver runs with another layout.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gpupartition.kube.errors import ApiError, NotFound
from gpupartition.kube.kinds import NODES, RESOURCE_SLICES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpupartition.kube.client import Client

log = logging.getLogger(__name__)

PLACE: Final = re.compile(r"[0-9a-f]{5}(?=-)")
IDENTITY: Final = frozenset({"driver", "nodeName", "pool"})  # of a slice's spec: all but what it holds
FIRST_RETRY: Final = 0.005  # seconds; client-go's back-off: doubled each time
LONGEST_RETRY: Final = 1000.0

Object = dict[str, Any]
"""An API object as the server sends it."""
Content = dict[str, Any]
"""What one slice holds: either `sharedCounters` or `devices`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """One pool of a driver on a node, and the node's UID: it will own the slices."""

    driver: str
    node: str
    node_uid: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Writes:
    """One turn's writes in the order of their doing."""

    delete: list[Object]
    update: list[Object]
    create: list[Object]


def compare(observed: Iterable[Object], wanted: Sequence[Content], pool: Pool) -> Writes:
    """What must be written to make a pool's observed slices hold the wanted contents; nothing wanted means no slice."""
    observed = sorted(observed, key=lambda item: str(item["metadata"]["name"]))
    newest = max((_generation(item) for item in observed), default=0)
    placed: dict[int, Object] = {}
    obsolete: list[Object] = []
    for item in observed:
        place = _place(item)
        if _generation(item) < newest or place is None or place >= len(wanted) or place in placed:
            obsolete.append(item)
        else:
            placed[place] = item

    def spec(place: int, generation: int) -> Object:
        numbers = {"name": pool.name, "generation": generation, "resourceSliceCount": len(wanted)}
        return {"driver": pool.driver, "nodeName": pool.node, "pool": numbers, **wanted[place]}

    missing = [place for place in range(len(wanted)) if place not in placed]
    changed = [place for place, item in placed.items() if item["spec"] != spec(place, newest)]
    # One slice replaced in place is atomic by itself; everything else needs a new generation to be told from the old pool.
    generation = newest + 1 if missing or len(changed) > 1 else newest
    return Writes(
        delete=obsolete,
        update=[
            {**item, "spec": spec(place, generation)}
            for place, item in sorted(placed.items())
            if item["spec"] != spec(place, generation)
        ],
        create=[_new(place, spec(place, generation), pool) for place in missing],
    )


class Publisher:
    """Keeps the pools of one driver on one node: its own at what is wanted, all others of its driver and node away.

    It acts at once when something else is wanted, and `delay` seconds after somebody wrote: so long do foreign slices live, and so long
    does a deleted slice stay away.
    """

    def __init__(self, client: Client, *, driver: str, node: str, delay: float) -> None:
        self._client = client
        self._driver, self._node, self._delay = driver, node, delay
        self._node_uid = ""
        self._wanted: tuple[Content, ...] | None = None
        self._due: dict[str, float] = {}  # pool → time of the loop's clock
        self._refusals: dict[str, int] = {}
        self._kept: dict[int, Content] = {}  # place → what the API server made of the wanted content
        # The real controller walks a map: which of two updates is tried first is chance. Ours repeats itself.
        self._order = random.Random(node)  # noqa: S311

    @property
    def due(self) -> float | None:
        """When the next turn is to be taken, on the loop's clock; None while there is nothing to do."""
        return min(self._due.values(), default=None)

    def want(self, slices: tuple[Content, ...] | None) -> None:
        """Publish these contents from now on; None: look after nothing, as before the first call."""
        if slices is None:
            self._due.clear()
        elif slices != self._wanted:
            self._refusals.pop(self._node, None)
            self._kept.clear()
            self._due[self._node] = _now()
        self._wanted = slices

    def written(self, pool: str) -> None:
        """Take notice that some slice of this pool was written or deleted, by whomever."""
        if self._wanted is not None:
            self._sync_by(pool, _now() + self._delay)

    async def turn(self) -> None:
        """Look at each pool that is due and write what is missing. What is refused is tried again later."""
        for pool in sorted(pool for pool, due in self._due.items() if due <= _now()):
            del self._due[pool]
            try:
                await self._sync(pool)
                self._refusals.pop(pool, None)
            except ApiError as refusal:
                tries = self._refusals[pool] = self._refusals.get(pool, 0) + 1
                pause = min(FIRST_RETRY * 2**tries, LONGEST_RETRY)
                log.warning("%s on %s, try %d, next in %.3g s: %s", self._driver, self._node, tries, pause, refusal)
                self._sync_by(pool, _now() + pause)

    def _sync_by(self, pool: str, due: float) -> None:
        self._due[pool] = min(due, self._due.get(pool, due))

    async def _sync(self, pool: str) -> None:
        if not self._node_uid:
            self._node_uid = (await self._client.get(NODES, self._node))["metadata"]["uid"]
        selector = f"spec.driver={self._driver},spec.nodeName={self._node}"
        observed: dict[str, list[Object]] = {}
        for item in (await self._client.list(RESOURCE_SLICES, field_selector=selector)).items:
            observed.setdefault(item["spec"]["pool"]["name"], []).append(item)
        for other in observed.keys() - {self._node, pool}:
            self._sync_by(other, _now() + self._delay)
        mine = Pool(driver=self._driver, node=self._node, node_uid=self._node_uid, name=pool)
        drawn = self._wanted or () if pool == self._node else ()
        # A field that the server drops is not offered again at each turn: the pool would never come to rest.
        wanted = [self._kept.get(place, content) for place, content in enumerate(drawn)]
        await self._write(compare(observed.get(pool, ()), wanted, mine))

    async def _write(self, writes: Writes) -> None:
        for item in writes.delete:
            meta = item["metadata"]
            try:
                await self._client.delete(
                    RESOURCE_SLICES, meta["name"], uid=meta["uid"], resource_version=meta["resourceVersion"]
                )
            except NotFound:
                continue  # somebody else was faster
        for item in self._order.sample(writes.update, len(writes.update)):
            self._compare_notes(item, await self._client.replace(RESOURCE_SLICES, item))
        for item in writes.create:
            self._compare_notes(item, await self._client.create(RESOURCE_SLICES, item))

    def _compare_notes(self, sent: Object, got: Object) -> None:
        place = _place(got)
        if place is not None and sent["spec"] != got["spec"]:
            self._kept[place] = {key: value for key, value in got["spec"].items() if key not in IDENTITY}
            name = got["metadata"]["name"]
            log.warning(
                "the API server dropped fields of %s: is a feature gate off (DRAPartitionableDevices, …)?", name
            )


def _new(place: int, spec: Object, pool: Pool) -> Object:
    owner = {"apiVersion": "v1", "kind": "Node", "name": pool.node, "uid": pool.node_uid, "controller": True}
    return {
        "apiVersion": RESOURCE_SLICES.api_version,
        "kind": "ResourceSlice",
        "metadata": {"generateName": f"{place:05x}-{pool.driver}-{pool.node}-", "ownerReferences": [owner]},
        "spec": spec,
    }


def _place(item: Object) -> int | None:
    digits = PLACE.match(item["metadata"]["name"])
    return int(digits.group(), 16) if digits else None


def _generation(item: Object) -> int:
    return int(item["spec"]["pool"]["generation"])


def _now() -> float:
    return asyncio.get_running_loop().time()
