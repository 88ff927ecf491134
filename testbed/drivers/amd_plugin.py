"""The simulated kubelet plugin of AMD's DRA driver: static, or with AutoPartition, of which only what it announces is simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from testbed.drivers.amd_slices import DRIVER, draw, draw_auto
from testbed.drivers.static_plugin import StaticPlugin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testbed.drivers.machine import Machine
    from testbed.drivers.pods import DriverPod

IMAGE: Final = "k8s-gpu-dra-driver"
LABEL: Final = "app.kubernetes.io/name=k8s-gpu-dra-driver"
AUTO: Final = "AutoPartition"


class AmdPlugin(StaticPlugin):
    """The container `plugin` of the DaemonSet k8s-gpu-dra-driver-kubeletplugin."""

    def __init__(self, machine: Machine, pod: DriverPod) -> None:
        self._auto = False
        super().__init__(machine, pod, DRIVER)

    def _refuse(self, env: Mapping[str, str]) -> str:
        self._auto = f"{AUTO}=true" in env.get("FEATURE_GATES", "")
        return ""

    @property
    def _layout(self) -> str:
        return self._machine.profile

    def _look(self, on: Mapping[str, str]) -> list[dict[str, Any]]:
        gpus = self._machine.amd.gpus
        return draw_auto(gpus) if self._auto or "auto-partition" in on else draw(gpus, self._machine.on_bus(gpus))
