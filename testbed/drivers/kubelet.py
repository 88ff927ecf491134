"""What a node's kubelet does to DRA drivers: it wipes the slices of those that are gone.

The rules of the wipe are those of Kubernetes 1.37: all slices of the node when the kubelet starts, whoever wrote them; one driver's
slices when no plugin of it has been connected for 30 seconds. A driver that was never connected is never wiped.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from gpupartition.kube.errors import ApiError, NotFound
from gpupartition.kube.kinds import NODES, RESOURCE_SLICES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from testbed.admin import Admin

log = logging.getLogger(__name__)

START: Final = "testbed.gpupartition.dev/kubelet-start"
"""Annotation of a node: any new value restarts its kubelet."""
STARTED: Final = "testbed.gpupartition.dev/kubelet-started"
"""Annotation of a node: the value of START that was obeyed, or `stopped`. A driver host that comes back tells from it what to do."""
STOP: Final = "testbed.gpupartition.dev/kubelet"
STOPPED: Final = "stopped"
"""While STOP has this value no kubelet runs: drivers live on, but nothing is reported, wiped or started."""

RETRY_SECONDS: Final = 1.0  # the kubelet's first; ours stays there, a test should not wait for five minutes


class Kubelet:
    """The DRA side of one node's kubelet."""

    def __init__(self, client: Admin, node: str) -> None:
        self._client = client
        self._node = node
        self._plugins: dict[str, set[str]] = {}  # driver → UIDs of the pods whose plugin is connected
        self._tasks: dict[str, asyncio.Task[None]] = {}  # driver to be wiped, or "" for the wipe of all
        self._start: tuple[str, ...] | None = ()  # what the last start was asked for by; None after a stop
        self.stopped = False

    def connect(self, driver: str, pod_uid: str) -> None:
        """Register a running plugin; the wipe of its driver is called off."""
        self._plugins.setdefault(driver, set()).add(pod_uid)
        self._call_off(driver)

    def disconnect(self, driver: str, pod_uid: str, wipe_after: float) -> None:
        """Drop a plugin; when it was its driver's last, the driver's slices are wiped after so many seconds."""
        plugins = self._plugins.get(driver, set())
        if pod_uid in plugins:
            plugins.discard(pod_uid)
            self.expect(driver, wipe_after)

    def expect(self, driver: str, wipe_after: float) -> None:
        """Wipe this driver's slices after so many seconds, unless a plugin of it is connected by then."""
        if not (self.stopped or self._plugins.get(driver) or driver in self._tasks):
            self._begin(driver, self._wipe(f"spec.nodeName={self._node},spec.driver={driver}", wipe_after))

    def stop(self) -> None:
        """Die: what was waiting to be wiped stays until the next start wipes everything."""
        if self._start is not None:
            self.stopped, self._start = True, None
            for name in list(self._tasks):
                self._call_off(name)
            self._begin("", self._note(STOPPED))

    def start(self, node_uid: str, boot: str, value: str, *, then: Callable[[], None]) -> None:
        """Start anew, as asked for by this value of the annotation; asking twice for the same start is asking once.

        `then` is called when the slices are wiped: the real wipe begins seconds before any plugin has started.
        """
        if (node_uid, boot, value) != self._start:
            self._start = (node_uid, boot, value)
            self._begin("", self._restart(value, then))

    async def close(self) -> None:
        """Forget everything, wipe nothing: this program ends."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._call_off(name)
        task = self._tasks[name] = asyncio.create_task(work)
        task.add_done_callback(lambda done: self._tasks.pop(name) if self._tasks.get(name) is done else None)

    def _call_off(self, name: str) -> None:
        if task := self._tasks.pop(name, None):
            task.cancel()

    async def _restart(self, value: str, then: Callable[[], None]) -> None:
        await self._wipe(f"spec.nodeName={self._node}", 0)
        self.stopped = False
        then()
        await self._note(value)

    async def _note(self, value: str) -> None:
        await self._insist(
            lambda: self._client.patch(NODES, self._node, {"metadata": {"annotations": {STARTED: value}}})
        )

    async def _wipe(self, selector: str, after: float) -> None:
        await asyncio.sleep(after)
        await self._insist(lambda: self._client.delete_all(RESOURCE_SLICES, field_selector=selector))
        log.info("wiped the slices with %s", selector)

    async def _insist(self, call: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await call()
            except NotFound:
                return  # the node is gone: nothing of it is left to care for
            except ApiError as error:
                log.warning("the kubelet of %s tries again in %g s: %s", self._node, RETRY_SECONDS, error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return
