"""NVIDIA's own programs on a node, which have its GPUs open: how mig-manager sends them away for a change and calls them back.

Each is a DaemonSet of the GPU operator that chooses its nodes by a label. Whoever else uses a GPU is not looked at.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from gpupartition.kube.errors import ApiError
from gpupartition.kube.kinds import PODS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testbed.drivers.machine import Machine

PAUSED: Final = "paused-for-mig-change"
CLIENTS: Final = tuple(
    f"nvidia.com/gpu.deploy.{name}"
    for name in ("device-plugin", "gpu-feature-discovery", "dcgm-exporter", "dcgm", "nvsm")
)
WAITED_FOR: Final = ("nvidia-device-plugin-daemonset", "gpu-feature-discovery", "nvidia-dcgm-exporter", "nvidia-dcgm")
VALIDATORS: Final = ("nvidia-cuda-validator", "nvidia-device-plugin-validator")
OPERATOR_VALIDATOR: Final = "nvidia-operator-validator"


class WedgedError(Exception):
    """mig-manager returns from its work in the middle, without another word."""


class Clients:
    """Those of one node, in this namespace. They are looked for every `poll` seconds, for at most `pod_wait` seconds each."""

    def __init__(self, machine: Machine, namespace: str, *, poll: float, pod_wait: float) -> None:
        self._machine = machine
        self._namespace = namespace
        self._poll = poll
        self._pod_wait = pod_wait

    async def pause(self, labels: Mapping[str, str]) -> None:
        """Take the labels of all of them, given those of the node."""
        await self._machine.label(_all(labels, PAUSED))

    async def restore(self, labels: Mapping[str, str]) -> None:
        """Give all of them their label, given those that the node had."""
        await self._machine.label(_all(labels, "true"))

    async def gone(self) -> None:
        """Wait until no pod of theirs is left, one program after another; then delete the validators. Raises WedgedError."""
        for app in WAITED_FOR:
            try:
                async with asyncio.timeout(self._pod_wait):
                    await self._gone(app)
            except (TimeoutError, ApiError) as problem:
                raise WedgedError(f"{app} pod did not shutdown: {problem or 'timed out'}") from problem
        for app in VALIDATORS:
            await self._delete(app)

    async def validate(self) -> None:
        """Have the operator's validator run again. Raises WedgedError."""
        await self._delete(OPERATOR_VALIDATOR)

    async def _gone(self, app: str) -> None:
        there = True
        while there:
            await asyncio.sleep(self._poll)
            there = bool(await self._pods(app))

    async def _delete(self, app: str) -> None:
        try:
            for name in await self._pods(app):
                await self._machine.client.delete(PODS, name, namespace=self._namespace)
        except ApiError as problem:
            raise WedgedError(f"failed to delete {app} pod: {problem}") from problem

    async def _pods(self, app: str) -> list[str]:
        listing = await self._machine.client.list(
            PODS,
            namespace=self._namespace,
            field_selector=f"spec.nodeName={self._machine.name}",
            label_selector=f"app={app}",
        )
        return [str(pod["metadata"]["name"]) for pod in listing.items]


def _all(labels: Mapping[str, str], value: str) -> dict[str, str | None]:
    """All of them at this value; false stays false, and a label that was not there is made."""
    return {label: "false" if labels.get(label) == "false" else value for label in CLIENTS}
