"""One driver pod's process: it looks whenever something may have changed, and its kubelet reports how it runs.

It is level-triggered: whatever happened, it looks at the pod, the node and the clock, and does what follows from them.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from gpupartition.kube.errors import ApiError, NotFound
from gpupartition.kube.kinds import PODS

if TYPE_CHECKING:
    from testbed.drivers.machine import Machine
    from testbed.drivers.pods import DriverPod
    from testbed.faults import Behaviour

log = logging.getLogger(__name__)

REPORT_AGAIN: Final = 1.0  # seconds, after the API server refused a pod's status


class Container(ABC):
    """The simulated program in one pod, on its machine."""

    def __init__(self, machine: Machine, pod: DriverPod) -> None:
        self.pod = pod
        self._machine = machine
        self._started = pod.started or datetime.now(UTC)
        self._woken = asyncio.Event()

    @property
    def driver(self) -> str:
        """The DRA driver whose slices it keeps; empty if it keeps none."""
        return ""

    @property
    def age(self) -> float:
        """Seconds since its pod came to the node."""
        return (datetime.now(UTC) - self._started).total_seconds()

    def wake(self, pod: DriverPod | None = None) -> None:
        """Look again: the pod (as it is now) or something on its machine changed."""
        self.pod = pod or self.pod
        self._woken.set()

    def reboot(self) -> None:
        """Run anew in the same pod, as after a reboot of its node."""
        self._woken.set()

    def written(self, pool: str) -> None:  # noqa: B027
        """Somebody wrote or deleted a slice of this driver and node, in this pool."""

    async def run(self) -> None:
        """Run until cancelled, which is the container's SIGKILL: what it has done stays."""
        try:
            while True:
                self._woken.clear()
                # Without a kubelet nobody is there to start a container; what runs already runs on.
                dormant = self._machine.kubelet.stopped and self.pod.started is None
                pause = None if dormant else await self._turn()
                try:
                    async with asyncio.timeout(pause):
                        await self._woken.wait()
                except TimeoutError:
                    pass
        finally:
            self._end()

    @abstractmethod
    async def _turn(self) -> float | None:
        """Look, and do what there is to do; returns after how many seconds to look again by itself."""

    def _end(self) -> None:  # noqa: B027
        """Leave the machine."""

    async def _report(self, behaviour: Behaviour) -> bool:
        """Have the kubelet report it; False when the API server refused that."""
        status = self.pod.status(behaviour, self._started, datetime.now(UTC))
        if status is None or self._machine.kubelet.stopped:
            return True
        try:
            body = await self._machine.client.patch(
                PODS, self.pod.name, {"status": status}, namespace=self.pod.namespace, subresource="status"
            )
        except NotFound:
            return True  # deleted meanwhile: the host is about to stop this program
        except ApiError as refusal:
            log.warning("%s, next try in %g s", refusal, REPORT_AGAIN)
            return False
        self.pod = self.pod.seen_as(body)
        return True


class Daemon(Container):
    """A program that works by itself for minutes: a reboot kills it in the middle of whatever it does, and another one knows nothing of it."""

    def __init__(self, machine: Machine, pod: DriverPod) -> None:
        super().__init__(machine, pod)
        self._process: asyncio.Task[None] | None = None
        self._boot = machine.boot

    @abstractmethod
    def _begin(self) -> None:
        """Be as a process that has just been started."""

    async def _show(self, behaviour: Behaviour) -> float | None:
        """Have it reported; returns after how many seconds to look again."""
        return behaviour.again if await self._report(behaviour) else REPORT_AGAIN

    async def _live(self) -> None:
        """What its process does."""
        await super().run()

    async def run(self) -> None:  # noqa: D102
        while True:
            self._process = asyncio.create_task(self._live())
            try:
                await asyncio.wait([self._process])
            except asyncio.CancelledError:
                self._process.cancel()
                await asyncio.gather(self._process, return_exceptions=True)
                self._machine.mounts.unmount(self.pod.uid)
                raise
            if not self._process.cancelled():
                self._process.result()
            self._begin()

    def wake(self, pod: DriverPod | None = None) -> None:  # noqa: D102
        if self._process and self._boot not in ("", self._machine.boot):
            self._process.cancel()
        self._boot = self._machine.boot
        super().wake(pod)
