"""One simulated node as the programs on it find it: its kubelet, its GPUs, its fault switches, and how it is rebooted."""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from gpupartition.domain.holders import holders
from gpupartition.kube.errors import ApiError, NotFound
from gpupartition.kube.kinds import NODES, PODS, RESOURCE_CLAIMS
from testbed.drivers import gpus, kubelet, nvidia_slices
from testbed.drivers.gpus import WHOLE, BadGpusError, Gpu

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gpupartition.kube.client import Client
    from testbed.drivers.kubelet import Kubelet
    from testbed.drivers.mounts import Mounts
    from testbed.faults import Fault

log = logging.getLogger(__name__)

SPEC: Final = "testbed.gpupartition.dev/gpus"
"""Annotation of a node: its GPUs, "8x NVIDIA H100 80GB HBM3", several kinds separated by commas."""
STATE: Final = "testbed.gpupartition.dev/gpu-state"
"""Annotation of a node: how its GPUs are cut. Written after each change; who edits it has changed the hardware by hand."""
RETRY_SECONDS: Final = 0.5

Object = dict[str, Any]


@dataclass(slots=True)
class Machine:
    """What the programs of one node share. `config` is its label nvidia.com/mig.config; `known` says that its Node has been seen."""

    client: Client
    name: str
    kubelet: Kubelet
    mounts: Mounts
    tasks: asyncio.TaskGroup
    faults: list[Fault] = field(default_factory=list)
    config: str = ""
    known: bool = False
    boot: str = ""
    gpus: tuple[Gpu, ...] = ()
    _spec: str = ""
    _told: str = ""
    _own: list[str] = field(default_factory=list)  # states that were written and have not been seen yet

    def see_gpus(self, boot: str, spec: str, state: str) -> None:
        """Take what the Node says of its hardware: other GPUs, another boot, or a state that somebody else wrote."""
        if own := state in self._own:
            del self._own[: self._own.index(state) + 1]
        changed_by_hand = not own and state != self._told
        self._told = state
        try:
            if not self.known or changed_by_hand or spec != self._spec:
                self.gpus = gpus.read_state(state, boot, spec)
            elif boot != self.boot:
                self.gpus = tuple(map(gpus.reboot, self.gpus))
        except BadGpusError as problem:
            log.error("node %s, ignored: %s", self.name, problem)  # noqa: TRY400
        self.boot, self._spec, self.known = boot, spec, True

    async def change_gpus(self, changed: tuple[Gpu, ...]) -> None:
        """Have these from now on, and tell."""
        if changed == self.gpus:
            return
        self.gpus = changed
        told = gpus.write_state(changed, self.boot, self._spec)
        self._own.append(told)
        await self.insist(lambda: self.client.patch(NODES, self.name, {"metadata": {"annotations": {STATE: told}}}))

    async def gpu_users(self) -> dict[int, set[str]]:
        """Who has which GPU open: running pods whose claims have its devices. Instances by name, or WHOLE."""
        pods = await self.client.list(PODS, field_selector=f"spec.nodeName={self.name},status.phase=Running")
        running = {f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in pods.items}
        claims = (await self.client.list(RESOURCE_CLAIMS)).items
        users: dict[int, set[str]] = {}
        for holder in holders(claims, node=self.name, driver=nvidia_slices.DRIVER, pool=self.name):
            found = nvidia_slices.meant(holder.device, self.gpus)
            if found and running.intersection(holder.pods):
                index, instance = found
                users.setdefault(index, set()).add(str(instance) if instance else WHOLE)
        return users

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
