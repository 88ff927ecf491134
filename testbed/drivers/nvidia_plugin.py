"""The simulated kubelet plugin of NVIDIA's DRA driver, with static MIG."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from testbed.drivers.nvidia_slices import DRIVER, draw
from testbed.drivers.static_plugin import StaticPlugin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testbed.drivers.machine import Machine
    from testbed.drivers.pods import DriverPod

IMAGE: Final = "dra-driver-nvidia-gpu"
LABEL: Final = "dra-driver-nvidia-gpu-component=kubelet-plugin"
DYNAMIC: Final = "DynamicMIG"


class NvidiaPlugin(StaticPlugin):
    """The container `gpus` of the DaemonSet dra-driver-nvidia-gpu-kubelet-plugin."""

    def __init__(self, machine: Machine, pod: DriverPod) -> None:
        super().__init__(machine, pod, DRIVER)

    def _refuse(self, env: Mapping[str, str]) -> str:
        return f"FEATURE_GATES: {DYNAMIC} is not simulated" if f"{DYNAMIC}=true" in env.get("FEATURE_GATES", "") else ""

    @property
    def _layout(self) -> str:
        return self._machine.config

    def _unreadable(self) -> str:
        lost = any(self._machine.gpus[place].lost for place in self._machine.on_bus(self._machine.gpus))
        return "error enumerating GPUs: GPU is lost" if lost else ""

    def _look(self, on: Mapping[str, str]) -> list[dict[str, Any]]:
        return draw(
            self._habits.node,
            self._machine.gpus,
            self._machine.on_bus(self._machine.gpus),
            other_names="other-names" in on,
            whole_too="shows-whole" in on,
        )
