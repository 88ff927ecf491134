"""ResourceSlices in few bytes: a large cluster has tens of thousands, and as Python's objects each takes ten times its text.

What a slice offers, its devices and counters, is kept once for all slices that offer the same: the nodes of a fleet differ in names only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from sys import intern
from typing import Any, Final, cast

import orjson

from gpupartition.controller.trimmed import trim
from gpupartition.domain.groups import group_of
from gpupartition.domain.pool import NODES
from gpupartition.kube import Object

OFFERED: Final = ("devices", "sharedCounters")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSlice:
    """What a slice is found by, and the rest of it as JSON. `node` and `group` are "" where it has none.

    `on`: keys of the nodes that its devices are on, where it is of a group's pool.
    """

    name: str
    version: str
    driver: str
    pool: str
    node: str
    group: str
    on: frozenset[str]
    head: str
    offered: str

    @property
    def ours(self) -> bool:
        """Whether its pool is called as this operator calls the pools that it publishes itself."""
        return bool(self.group) or self.pool == f"{self.driver}/{self.node}"

    def body(self) -> Object:
        """The slice, as it was read. What it offers is shared: it must not be changed."""
        head: Object = orjson.loads(self.head)
        return {**head, "spec": {**head["spec"], **opened(self.offered)}}


def packed(body: Object) -> PackedSlice:
    """A slice without what only the server's bookkeeping needs."""
    spec, meta = body["spec"], body["metadata"]
    group = group_of(spec)
    offered = {name: spec[name] for name in OFFERED if name in spec}
    rest = trim(body) | {"spec": {name: value for name, value in spec.items() if name not in OFFERED}}
    return PackedSlice(
        name=meta["name"],
        version=meta.get("resourceVersion", ""),
        driver=intern(spec["driver"]),
        pool=spec["pool"]["name"],
        node=spec.get("nodeName", ""),
        group=group,
        on=frozenset(_on(spec)) if group else frozenset(),
        head=orjson.dumps(rest).decode(),  # its bytes would keep the 4 KiB in which they were written
        offered=intern(orjson.dumps(offered).decode()),
    )


def slice_of_a_plugin(each: PackedSlice) -> Iterable[str]:
    """The driver, where it is not this operator that publishes for it."""
    return () if each.ours else (each.driver,)


def slice_astray(each: PackedSlice) -> Iterable[str]:
    """The pool, where that is called neither as the node's own nor as one of this operator's: it may be another node's."""
    return () if each.ours or each.pool == each.node else (each.pool,)


def slice_afloat(each: PackedSlice) -> Iterable[str]:
    """The pool and the driver, where it is of no one node: whatever node its pool is called after, all may read it that it counts for."""
    return () if each.node else (each.pool, each.driver)


def slice_node(each: PackedSlice) -> Iterable[str]:
    """The node that it belongs to."""
    return (each.node,) if each.node else ()


def slice_group(each: PackedSlice) -> Iterable[str]:
    """The group of nodes whose pool it is a part of."""
    return (each.group,) if each.group else ()


def slice_on(each: PackedSlice) -> Iterable[str]:
    """The keys of the nodes that its devices are on."""
    return each.on


def slice_owners(each: PackedSlice) -> Iterable[str]:
    """The nodes of the group whose pool it is a part of."""
    return [str(o["name"]) for o in each.body()["metadata"].get("ownerReferences", ())] if each.group else ()


def _on(spec: Object) -> Iterator[str]:
    costs = (cost for device in spec.get("devices", ()) for cost in device.get("consumesCounters", ()))
    return (node for cost in costs if cost["counterSet"] == NODES for node in cost["counters"])


@lru_cache(maxsize=64)
def opened(offered: str) -> dict[str, Any]:
    """What slices offer, for all of them that offer the same: it must not be changed."""
    return cast("dict[str, Any]", orjson.loads(offered))
