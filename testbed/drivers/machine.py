"""One simulated node as the programs on it find it: its kubelet, its GPUs, its fault switches, and how it is rebooted."""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gpupartition.domain.holders import holders
from gpupartition.kube.errors import ApiError, NotFound
from gpupartition.kube.kinds import NODES, PODS, RESOURCE_CLAIMS
from testbed import faults
from testbed.drivers import amd_gpus, amd_slices, gpus, kubelet, nvidia_slices
from testbed.drivers.amd_gpus import AmdGpu
from testbed.drivers.gpus import WHOLE, Gpu
from testbed.drivers.hardware import Hardware

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from gpupartition.kube.client import Client
    from testbed.drivers.kubelet import Kubelet
    from testbed.drivers.mounts import Mounts
    from testbed.faults import Fault

log = logging.getLogger(__name__)

SPEC: Final = "testbed.gpupartition.dev/gpus"
"""Annotation of a node: its GPUs, "8x NVIDIA H100 80GB HBM3" or "8x AMD_Instinct_MI300X_OAM", several kinds separated by commas."""
STATE: Final = "testbed.gpupartition.dev/gpu-state"
"""Annotation of a node: how its GPUs are cut. Written after each change; who edits it has changed the hardware by hand."""
RETRY_SECONDS: Final = 0.5

Object = dict[str, Any]
G = TypeVar("G")


def _put(gpus: Sequence[G], changed: Sequence[G], places: Sequence[int]) -> tuple[G, ...]:
    put = dict(zip(places, changed, strict=True))
    return tuple(put.get(index, gpu) for index, gpu in enumerate(gpus))


def _nvidia() -> Hardware[Gpu]:
    return Hardware(read=gpus.read_state, write=gpus.write_state, rebooted=lambda there: tuple(map(gpus.reboot, there)))


def _amd() -> Hardware[AmdGpu]:
    return Hardware(read=amd_gpus.read_state, write=amd_gpus.write_state, rebooted=amd_gpus.load)


@dataclass(slots=True)
class Machine:
    """What the programs of one node share. `config` is its label nvidia.com/mig.config, `profile` its dcm.amd.com/gpu-config-profile.

    `known` says that its Node has been seen.
    """

    client: Client
    name: str
    kubelet: Kubelet
    mounts: Mounts
    tasks: asyncio.TaskGroup
    faults: list[Fault] = field(default_factory=list)
    config: str = ""
    profile: str = ""
    known: bool = False
    boot: str = ""
    nvidia: Hardware[Gpu] = field(default_factory=_nvidia)
    amd: Hardware[AmdGpu] = field(default_factory=_amd)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """NVIDIA's."""
        return self.nvidia.gpus

    def on_bus(self, gpus: Sequence[object]) -> tuple[int, ...]:
        """The places, in the machine, of those that programs find, in the order in which libraries count them."""
        gone = faults.active(self.faults, config=self.config or self.profile).get("gpu-gone")
        return tuple(index for index in range(len(gpus)) if str(index) != gone)

    def see_gpus(self, boot: str, spec: str, state: str) -> None:
        """Take what the Node says of its hardware: other GPUs, another boot, or a state that somebody else wrote."""
        amd = amd_gpus.is_meant(spec)
        self.nvidia.see(self.name, boot, *(("", "") if amd else (spec, state)))
        self.amd.see(self.name, boot, *((spec, state) if amd else ("", "")))
        self.boot, self.known = boot, True

    async def change_gpus(self, changed: Sequence[Gpu], places: Sequence[int]) -> None:
        """Have these of NVIDIA's in these places from now on, and tell."""
        await self._tell(self.nvidia.change(_put(self.gpus, changed, places)))

    async def change_amd_gpus(self, changed: Sequence[AmdGpu], places: Sequence[int]) -> None:
        """Have these of AMD's in these places from now on, and tell."""
        await self._tell(self.amd.change(_put(self.amd.gpus, changed, places)))

    async def _tell(self, state: str | None) -> None:
        if state is not None:
            await self._annotate(STATE, state)

    async def gpu_users(self) -> dict[int, set[str]]:
        """Who has which of NVIDIA's GPUs open: running pods whose claims have its devices. Instances by name, or WHOLE."""
        users: dict[int, set[str]] = {}
        for device in await self._held(nvidia_slices.DRIVER):
            if found := nvidia_slices.meant(device, self.gpus):
                index, instance = found
                users.setdefault(index, set()).add(str(instance) if instance else WHOLE)
        return users

    async def amd_gpu_users(self) -> dict[int, set[str]]:
        """Who has which of AMD's GPUs open: the devices of it that running pods have."""
        users: dict[int, set[str]] = {}
        for device in await self._held(amd_slices.DRIVER):
            index = amd_slices.meant(device, self.amd.gpus, self.on_bus(self.amd.gpus))
            if index is not None:
                users.setdefault(index, set()).add(device)
        return users

    async def running(self, label: str) -> list[str]:
        """The names of running pods of the machine with this label. Asks until it is answered."""
        names: list[str] = []

        async def ask() -> None:
            here = f"spec.nodeName={self.name},status.phase=Running"
            pods = await self.client.list(PODS, field_selector=here, label_selector=label)
            names[:] = [str(pod["metadata"]["name"]) for pod in pods.items]

        await self.insist(ask)
        return names

    async def _held(self, driver: str) -> list[str]:
        """The devices of a driver that running pods have. Asks until it is answered: the GPUs would know it without asking anybody."""
        held: list[str] = []

        async def ask() -> None:
            pods = await self.client.list(PODS, field_selector=f"spec.nodeName={self.name},status.phase=Running")
            running = {f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in pods.items}
            claims = (await self.client.list(RESOURCE_CLAIMS)).items
            found = holders(claims, node=self.name, driver=driver, pool=self.name)
            held[:] = [each.device for each in found if running.intersection(each.pods)]

        await self.insist(ask)
        return held

    def reboot(self, seconds: float) -> None:
        """Go down, and come up after so long with another boot ID. Does not wait for it."""
        self.tasks.create_task(self._reboot(seconds), name=f"reboot of {self.name}")

    async def _reboot(self, seconds: float) -> None:
        down = {
            "type": "Ready",
            "status": "False",
            "reason": "KubeletNotReady",
            "message": "the machine reboots",
            "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        await self._annotate(kubelet.STOP, kubelet.STOPPED)
        await self._status({"conditions": [down]})
        await asyncio.sleep(seconds)
        await self._status({"nodeInfo": {"bootID": str(uuid.uuid4())}})
        await self._annotate(kubelet.STOP, None)

    async def label(self, labels: dict[str, str | None]) -> None:
        """Set labels of the Node; None takes one away."""
        await self.insist(lambda: self.client.patch(NODES, self.name, {"metadata": {"labels": labels}}))

    async def insist(self, call: Callable[[], Awaitable[object]]) -> None:
        """Call until it is done, or the node is gone."""
        while True:
            try:
                await call()
            except NotFound:
                return
            except ApiError as refusal:
                log.warning("%s tries again in %g s: %s", self.name, RETRY_SECONDS, refusal)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def _annotate(self, key: str, value: str | None) -> None:
        await self.insist(lambda: self.client.patch(NODES, self.name, {"metadata": {"annotations": {key: value}}}))

    async def _status(self, status: Object) -> None:
        async def write() -> None:
            told = dict(status)
            if "conditions" in told:
                body = await self.client.get(NODES, self.name)
                kept = [each for each in body["status"].get("conditions", ()) if each["type"] != "Ready"]
                told["conditions"] = [*kept, *told["conditions"]]
            await self.client.patch(NODES, self.name, {"status": told}, subresource="status")

        await self.insist(write)
