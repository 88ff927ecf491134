"""One driver pod's process: reads its environment, obeys the fault switches of its node, reports and publishes.

It is level-triggered: whatever happened, it looks at the pod, the node's annotation and the clock, and does what follows from them.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from gpupartition.kube.errors import ApiError, NotFound
from gpupartition.kube.kinds import PODS
from testbed.drivers.example import BadEnvironmentError, Settings
from testbed.drivers.slices import Publisher
from testbed.faults import Behaviour, behave, crash

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpupartition.kube.client import Client
    from testbed.drivers.kubelet import Kubelet
    from testbed.drivers.pods import DriverPod
    from testbed.faults import Fault

log = logging.getLogger(__name__)

REPORT_AGAIN: Final = 1.0  # seconds, after the API server refused a pod's status


class Plugin:
    """The simulated driver in one pod. `faults` reads the switches of its node as they are now."""

    def __init__(self, client: Client, kubelet: Kubelet, pod: DriverPod, faults: Callable[[], list[Fault]]) -> None:
        self.pod = pod
        self._client = client
        self._kubelet = kubelet
        self._faults = faults
        self._started = pod.started or datetime.now(UTC)
        self._woken = asyncio.Event()
        self._broken = ""
        try:
            self.settings = Settings.from_env(pod.env())
        except BadEnvironmentError as problem:
            self._broken = str(problem)
            self.settings = Settings(node=pod.node)
        self._publisher = Publisher(
            client, driver=self.settings.driver, node=self.settings.node, delay=self.settings.sync_seconds
        )

    def __str__(self) -> str:
        """Say what it was told, for the log."""
        its = self.settings
        shared = ", shared" if its.shared else ""
        return self._broken or f"driver {its.driver}, {its.devices} devices in {its.partitions} partitions{shared}"

    def wake(self, pod: DriverPod | None = None) -> None:
        """Look again: the pod (as it is now) or the node's switches changed."""
        self.pod = pod or self.pod
        self._woken.set()

    def reboot(self) -> None:
        """Run anew in the same pod, as after a reboot of its node: the pool is looked at now, not after the usual delay."""
        self._publisher.want(None)
        self._woken.set()

    def written(self, pool: str) -> None:
        """Somebody wrote or deleted a slice of this driver and node, in this pool."""
        self._publisher.written(pool)
        self._woken.set()

    async def run(self) -> None:
        """Run until cancelled, which is the container's SIGKILL: what is published stays."""
        try:
            while True:
                self._woken.clear()
                pause = await self._turn()
                try:
                    async with asyncio.timeout(pause):
                        await self._woken.wait()
                except TimeoutError:
                    pass
        finally:
            self._kubelet.disconnect(self.settings.driver, self.pod.uid, self.settings.wipe_seconds)

    async def _turn(self) -> float | None:
        if self._kubelet.stopped and self.pod.started is None:
            return None  # nobody is there to start the container
        behaviour = self._behaviour()
        if behaviour.running.connected:
            self._kubelet.connect(self.settings.driver, self.pod.uid)
        else:
            self._kubelet.disconnect(self.settings.driver, self.pod.uid, self.settings.wipe_seconds)
        reported = await self._report(behaviour)
        self._publisher.want(behaviour.slices)
        await self._publisher.turn()
        due = self._publisher.due
        pauses = (
            behaviour.again,
            None if reported else REPORT_AGAIN,
            None if due is None else max(0.0, due - asyncio.get_running_loop().time()),
        )
        return min((pause for pause in pauses if pause is not None), default=None)

    def _behaviour(self) -> Behaviour:
        age = (datetime.now(UTC) - self._started).total_seconds()
        return crash(age, self._broken) if self._broken else behave(self.settings, self._faults(), age)

    async def _report(self, behaviour: Behaviour) -> bool:
        status = self.pod.status(behaviour, self._started, datetime.now(UTC))
        if status is None or self._kubelet.stopped:
            return True
        try:
            body = await self._client.patch(
                PODS, self.pod.name, {"status": status}, namespace=self.pod.namespace, subresource="status"
            )
        except NotFound:
            return True  # deleted meanwhile: the host is about to stop this plugin
        except ApiError as refusal:
            log.warning("%s, next try in %g s", refusal, REPORT_AGAIN)
            return False
        self.pod = self.pod.seen_as(body)
        return True
