"""ResourceSlices in few bytes: a large cluster has tens of thousands, and as Python's objects each takes ten times its text.

What a slice offers, its devices and counters, is kept once for all slices that offer the same: the nodes of a fleet differ in names only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from sys import intern
from typing import Any, Final, cast

import orjson

from gpupartition.domain.groups import group_of
from gpupartition.kube import Object

OFFERED: Final = ("devices", "sharedCounters")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSlice:
    """What a slice is found by, and the rest of it as JSON. `node` and `group` are "" where it has none."""

    name: str
    driver: str
    pool: str
    node: str
    group: str
    head: bytes
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
    offered = {name: spec[name] for name in OFFERED if name in spec}
    rest = {
        **body,
        "metadata": {name: value for name, value in meta.items() if name != "managedFields"},
        "spec": {name: value for name, value in spec.items() if name not in OFFERED},
    }
    return PackedSlice(
        name=meta["name"],
        driver=intern(spec["driver"]),
        pool=spec["pool"]["name"],
        node=spec.get("nodeName", ""),
        group=group_of(spec),
        head=orjson.dumps(rest),
        offered=intern(orjson.dumps(offered).decode()),
    )


@lru_cache(maxsize=64)
def opened(offered: str) -> dict[str, Any]:
    """What slices offer, for all of them that offer the same: it must not be changed."""
    return cast("dict[str, Any]", orjson.loads(offered))
