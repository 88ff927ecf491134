"""A kubelet plugin's process: reads its environment, obeys the fault switches of its node, reports and publishes."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from testbed.drivers.container import REPORT_AGAIN, Container
from testbed.drivers.example import BadEnvironmentError, Settings
from testbed.drivers.slices import Publisher
from testbed.faults import Behaviour, behave, crash

if TYPE_CHECKING:
    from testbed.drivers.machine import Machine
    from testbed.drivers.pods import DriverPod


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What all plugins have in common: their driver, and how long they and the kubelet wait, in seconds."""

    driver: str
    node: str
    sync_seconds: float = 30.0
    wipe_seconds: float = 30.0


class Plugin(Container):
    """Keeps its driver's pool on the node at what its behaviour says, while it is connected with the kubelet."""

    def __init__(self, machine: Machine, pod: DriverPod, habits: Habits) -> None:
        super().__init__(machine, pod)
        self._habits = habits
        self._publisher = Publisher(machine.client, driver=habits.driver, node=habits.node, delay=habits.sync_seconds)

    @property
    def driver(self) -> str:  # noqa: D102
        return self._habits.driver

    def reboot(self) -> None:
        """Run anew in the same pod, as after a reboot of its node: the pool is looked at now, not after the usual delay."""
        self._publisher.want(None)
        super().reboot()

    def written(self, pool: str) -> None:  # noqa: D102
        self._publisher.written(pool)
        self._woken.set()

    @abstractmethod
    def _behaviour(self) -> Behaviour:
        """What is to be seen of it now."""

    def _end(self) -> None:
        self._machine.kubelet.disconnect(self.driver, self.pod.uid, self._habits.wipe_seconds)

    async def _turn(self) -> float | None:
        behaviour = self._behaviour()
        if behaviour.running.connected:
            self._machine.kubelet.connect(self.driver, self.pod.uid)
        else:
            self._machine.kubelet.disconnect(self.driver, self.pod.uid, self._habits.wipe_seconds)
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


class ExamplePlugin(Plugin):
    """The simulated dra-example-driver."""

    def __init__(self, machine: Machine, pod: DriverPod) -> None:
        self._broken = ""
        try:
            self.settings = Settings.from_env(pod.env())
        except BadEnvironmentError as problem:
            self._broken = str(problem)
            self.settings = Settings(node=pod.node)
        its = self.settings
        habits = Habits(driver=its.driver, node=its.node, sync_seconds=its.sync_seconds, wipe_seconds=its.wipe_seconds)
        super().__init__(machine, pod, habits)

    def __str__(self) -> str:
        """Say what it was told, for the log."""
        its = self.settings
        shared = ", shared" if its.shared else ""
        return self._broken or f"driver {its.driver}, {its.devices} devices in {its.partitions} partitions{shared}"

    def _behaviour(self) -> Behaviour:
        age = self.age
        return crash(age, self._broken) if self._broken else behave(self.settings, self._machine.faults, age)
