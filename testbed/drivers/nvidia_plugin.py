"""The simulated kubelet plugin of NVIDIA's DRA driver: looks at the GPUs once, when its container starts, and announces what it saw.

Whatever happens to the GPUs later, its pool stays as it was until it starts anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from testbed import faults
from testbed.drivers.example import BadEnvironmentError
from testbed.drivers.nvidia_slices import DRIVER, draw
from testbed.drivers.plugin import Habits, Plugin
from testbed.faults import Behaviour, Running, crash, shown, without_last

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testbed.drivers.machine import Machine
    from testbed.drivers.pods import DriverPod

IMAGE: Final = "dra-driver-nvidia-gpu"
LABEL: Final = "dra-driver-nvidia-gpu-component=kubelet-plugin"
DYNAMIC: Final = "DynamicMIG"


class NvidiaPlugin(Plugin):
    """The container `gpus` of the DaemonSet dra-driver-nvidia-gpu-kubelet-plugin."""

    def __init__(self, machine: Machine, pod: DriverPod) -> None:
        self._broken = ""
        self._seen: list[dict[str, Any]] | None = None  # the slices of what it found when it started
        habits = Habits(driver=DRIVER, node=pod.node)
        try:
            env = pod.env()
            if f"{DYNAMIC}=true" in env.get("FEATURE_GATES", ""):
                self._broken = f"FEATURE_GATES: {DYNAMIC} is not simulated"
            habits = Habits(
                driver=DRIVER,
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

    def _behaviour(self) -> Behaviour:
        age = self.age
        if self._broken:
            return crash(age, self._broken)
        on = faults.active(self._machine.faults, config=self._machine.config)
        if not self._machine.known:
            return Behaviour(
                running=Running.CREATING
            )  # the host has not seen its Node yet, and looks again when it has
        if any(gpu.lost for gpu in self._machine.gpus) and self._seen is None:
            return crash(age, "error enumerating GPUs: GPU is lost")
        behaviour = shown(on, age, lambda: self._announced(on))
        if not behaviour.running.connected:
            self._seen = None  # the next start is another look
        return behaviour

    def _announced(self, on: Mapping[str, str]) -> list[dict[str, Any]]:
        if self._seen is None:
            self._seen = draw(
                self._habits.node,
                self._machine.gpus,
                other_names="other-names" in on,
                whole_too="shows-whole" in on,
            )
        return without_last(self._seen) if "wrong-layout" in on else self._seen


def seconds(env: Mapping[str, str], name: str, default: float) -> float:
    """A setting in seconds. Raises BadEnvironmentError."""
    try:
        return float(env.get(name) or default)
    except ValueError as problem:
        raise BadEnvironmentError(f"{name}={env[name]!r} is not a number") from problem
