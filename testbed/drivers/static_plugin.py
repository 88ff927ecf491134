"""Kubelet plugins that look at the GPUs once, when their container starts, and announce what they saw.

Whatever happens to the GPUs later, the pool stays as it was until the plugin starts anew.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from testbed import faults
from testbed.drivers.example import BadEnvironmentError
from testbed.drivers.plugin import Habits, Plugin
from testbed.faults import Behaviour, Running, crash, shown, without_last

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testbed.drivers.machine import Machine
    from testbed.drivers.pods import DriverPod


class StaticPlugin(Plugin):
    """A plugin of this driver. What it finds, and why it cannot start, its vendor's class says."""

    def __init__(self, machine: Machine, pod: DriverPod, driver: str) -> None:
        self._broken = ""
        self._seen: list[dict[str, Any]] | None = None  # the slices of what it found when it started
        habits = Habits(driver=driver, node=pod.node)
        try:
            env = pod.env()
            self._broken = self._refuse(env)
            habits = Habits(
                driver=driver,
                node=env.get("NODE_NAME") or pod.node,
                sync_seconds=seconds(env, "TESTBED_SYNC_SECONDS", 30.0),
                wipe_seconds=seconds(env, "TESTBED_WIPE_SECONDS", 30.0),
            )
        except BadEnvironmentError as problem:
            self._broken = str(problem)
        super().__init__(machine, pod, habits)

    def __str__(self) -> str:
        """Say what it is, for the log."""
        return self._broken or f"driver {self.driver}"

    def reboot(self) -> None:
        """Start anew: it looks at the GPUs again."""
        self._seen = None
        super().reboot()

    def _refuse(self, env: Mapping[str, str]) -> str:  # noqa: ARG002
        """Why it exits with this environment, if it does."""
        return ""

    @property
    @abstractmethod
    def _layout(self) -> str:
        """The value of the node's label that says how its GPUs are to be cut: fault switches can be limited to one."""

    @abstractmethod
    def _look(self, on: Mapping[str, str]) -> list[dict[str, Any]]:
        """The slices of what is there now, with these fault switches."""

    def _unreadable(self) -> str:
        """Why the GPUs cannot be looked at now, if they cannot."""
        return ""

    def _behaviour(self) -> Behaviour:
        age = self.age
        if self._broken:
            return crash(age, self._broken)
        if not self._machine.known:  # the host has not seen its Node yet, and looks again when it has
            return Behaviour(running=Running.CREATING)
        if self._seen is None and (problem := self._unreadable()):
            return crash(age, problem)
        on = faults.active(self._machine.faults, config=self._layout)
        behaviour = shown(on, age, lambda: self._announced(on))
        if not behaviour.running.connected:
            self._seen = None  # the next start is another look
        return behaviour

    def _announced(self, on: Mapping[str, str]) -> list[dict[str, Any]]:
        if self._seen is None:
            self._seen = self._look(on)
        return without_last(self._seen) if "wrong-layout" in on else self._seen


def seconds(env: Mapping[str, str], name: str, default: float) -> float:
    """A setting in seconds. Raises BadEnvironmentError."""
    try:
        return float(env.get(name) or default)
    except ValueError as problem:
        raise BadEnvironmentError(f"{name}={env[name]!r} is not a number") from problem
