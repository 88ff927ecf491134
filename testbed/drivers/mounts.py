"""ConfigMaps as containers see them: a mounted copy follows its original only after a while, and a pod waits for one that does not exist."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpupartition.kube.client import Client
from gpupartition.kube.kinds import CONFIG_MAPS
from gpupartition.kube.reflector import Reflector

KEPT: Final = 32  # versions, of which a mount may show an old one

Files = Mapping[str, str]
"""What a ConfigMap holds, by file name."""


@dataclass(frozen=True, slots=True)
class _Version:
    files: Files
    seen: float  # on the loop's clock


@dataclass(slots=True)
class Original:
    """One ConfigMap, and how it was: the versions that this program has seen, oldest first. `exists`: it does now."""

    versions: list[_Version] = field(default_factory=list)
    exists: bool = False
    readers: dict[str, Callable[[], None]] = field(default_factory=dict)  # by pod UID: woken at each change


class Mount:
    """One pod's copy. `age` says how old a version must be before it is in the copy; the first is there at once."""

    def __init__(self, original: Original) -> None:
        self._original = original
        self._shown: _Version | None = None

    def read(self, age: float) -> Files | None:
        """The files, as the container sees them now; None while there is nothing that could be mounted."""
        versions = self._original.versions
        if self._shown is None:
            self._shown = versions[-1] if self._original.exists else None
        else:
            by = asyncio.get_running_loop().time() - age
            due = [each for each in versions if each.seen <= by and each.seen > self._shown.seen]
            self._shown = due[-1] if due else self._shown
        return self._shown.files if self._shown else None

    def due(self, age: float) -> float | None:
        """In how many seconds there will be something else to read; None while nothing is on its way."""
        shown = self._shown
        coming = [each.seen for each in self._original.versions if shown and each.seen > shown.seen]
        return max(0.0, min(coming) + age - asyncio.get_running_loop().time()) if coming and age < math.inf else None


class Mounts:
    """All ConfigMaps that pods have mounted: one watch for each, however many pods there are."""

    def __init__(self, client: Client, tasks: asyncio.TaskGroup) -> None:
        self._client = client
        self._tasks = tasks
        self._originals: dict[tuple[str, str], tuple[Original, asyncio.Task[None]]] = {}

    def mount(self, namespace: str, name: str, pod_uid: str, wake: Callable[[], None]) -> Mount:
        """Give a pod its copy; `wake` is called when the original has changed."""
        if (namespace, name) not in self._originals:
            self._originals[namespace, name] = self._follow(namespace, name)
        original, _ = self._originals[namespace, name]
        original.readers[pod_uid] = wake
        return Mount(original)

    def unmount(self, pod_uid: str) -> None:
        """Forget a pod that is gone; what nobody has mounted is not watched."""
        for key, (original, watch) in list(self._originals.items()):
            original.readers.pop(pod_uid, None)
            if not original.readers:
                watch.cancel()
                del self._originals[key]

    def close(self) -> None:
        """End all watches."""
        for _, watch in self._originals.values():
            watch.cancel()

    def _follow(self, namespace: str, name: str) -> tuple[Original, asyncio.Task[None]]:
        original = Original()

        def see(_key: str, _old: _Body | None, new: _Body | None) -> None:
            original.exists = new is not None
            if new is None:
                return  # what is mounted stays mounted when its original goes
            original.versions = [
                *original.versions[1 - KEPT :],
                _Version(dict(new.files), asyncio.get_running_loop().time()),
            ]
            for wake in original.readers.values():
                wake()

        reflector = Reflector(
            self._client, CONFIG_MAPS, _Body.of, see, namespace=namespace, field_selector=f"metadata.name={name}"
        )
        return original, self._tasks.create_task(reflector.run(), name=f"configmap {namespace}/{name}")


@dataclass(frozen=True, slots=True)
class _Body:
    uid: str
    files: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, body: dict[str, Any]) -> _Body:
        return cls(body["metadata"]["uid"], tuple(sorted((body.get("data") or {}).items())))
