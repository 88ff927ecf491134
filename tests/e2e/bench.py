"""A bench on which example drivers are started and stopped by hand, and what is to be seen of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from testbed.drivers.example import Settings, draw
from testbed.drivers.slices import IDENTITY
from tests.e2e.harness import eventually

from gpupartition.kube import NODES, PODS, RESOURCE_SLICES, NotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from testbed.admin import Admin

    from gpupartition.kube import Object

PREFIX: Final = "testbed.gpupartition.dev/"
READY: Final = {"phase": "Running", "ready": True, "restarts": 0, "waiting": ""}
UNREADY: Final = {**READY, "ready": False}


async def becomes(ask: Callable[[], Awaitable[Any]], expected: object) -> None:
    """Wait until the answer is as expected."""

    async def same() -> bool:
        answer = await ask()
        assert answer == expected
        return True

    await eventually(same)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """One node with a driver name of its own, on which drivers are started and stopped as a DaemonSet would do it."""

    client: Admin
    node: str
    namespace: str
    sync: float = 1
    wipe: float = 30

    @property
    def driver(self) -> str:
        return f"{self.node}.example.com"

    async def start(self, *, devices: int = 8, partitions: int = 0, shared: bool = False, **more: str) -> str:
        """Put a driver pod on the node, with `more` in its environment; returns its name."""
        env = {
            "NODE_NAME": self.node,
            "DRIVER_NAME": self.driver,
            "NUM_DEVICES": devices,
            "GPU_PARTITIONS": partitions,
            "GPU_ALLOW_MULTIPLE_ALLOCATIONS": str(shared).lower(),
            "TESTBED_SYNC_SECONDS": self.sync,
            "TESTBED_WIPE_SECONDS": self.wipe,
            **more,
        }
        container = {
            "name": "plugin",
            "image": "registry.example/dra-example-driver:v0.4.0",
            "env": [{"name": name, "value": str(value)} for name, value in env.items()],
        }
        pod = await self.client.create(
            PODS,
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "generateName": "plugin-",
                    "namespace": self.namespace,
                    "labels": {"app.kubernetes.io/name": "dra-example-driver"},
                },
                "spec": {
                    "nodeName": self.node,
                    "containers": [container],
                    "tolerations": [{"operator": "Exists"}],
                },
            },
        )
        return str(pod["metadata"]["name"])

    async def stop(self, pod: str) -> None:
        await self.client.delete(PODS, pod, namespace=self.namespace)

    async def restart(self, pod: str, *, devices: int = 8, partitions: int = 0, shared: bool = False) -> str:
        """Replace the driver by one with another layout."""
        await self.stop(pod)
        return await self.start(devices=devices, partitions=partitions, shared=shared)

    async def annotate(self, **notes: str | None) -> None:
        """Annotate the node under the testbed's prefix; None takes an annotation away. `_` stands for `-`."""
        prefixed = {PREFIX + name.replace("_", "-"): value for name, value in notes.items()}
        await self.client.patch(NODES, self.node, {"metadata": {"annotations": prefixed}})

    async def pods(self) -> list[Object]:
        return (
            await self.client.list(PODS, namespace=self.namespace, field_selector=f"spec.nodeName={self.node}")
        ).items

    async def report(self, pod: str) -> dict[str, Any]:
        """What the kubelet reports: the pod's phase and readiness, its container's restarts and why it waits."""
        status = (await self.client.get(PODS, pod, namespace=self.namespace))["status"]
        container: Object = (status.get("containerStatuses") or [{}])[0]
        return {
            "phase": status["phase"],
            "ready": {each["type"]: each["status"] for each in status.get("conditions", ())}.get("Ready") == "True",
            "restarts": container.get("restartCount"),
            "waiting": container.get("state", {}).get("waiting", {}).get("reason", ""),
        }

    async def ready(self, pod: str) -> None:
        """Wait until the pod is Ready."""
        await becomes(lambda: self.report(pod), READY)

    async def turns(self) -> None:
        """Wait until the driver has looked at its pools: at those that somebody writes from now on, and at what it waited for before."""
        foreign = await self.hand_made("turns")
        await becomes(lambda: self.exists(foreign), False)

    async def obeyed(self) -> str | None:
        """The kubelet's start or stop that was carried out last."""
        node = await self.client.get(NODES, self.node)
        return (node["metadata"].get("annotations") or {}).get(f"{PREFIX}kubelet-started")

    async def slices(self) -> list[Object]:
        """The driver's slices of this node, by name."""
        selector = f"spec.driver={self.driver},spec.nodeName={self.node}"
        listing = await self.client.list(RESOURCE_SLICES, field_selector=selector)
        return sorted(listing.items, key=lambda item: str(item["metadata"]["name"]))

    async def contents(self) -> list[Object]:
        """What the slices hold, to be compared with a drawing."""
        return [
            {key: value for key, value in item["spec"].items() if key not in IDENTITY} for item in await self.slices()
        ]

    async def pool(self) -> list[tuple[int, int, int]]:
        """Per slice: generation, number of slices, number of counter sets or devices."""
        return [
            (
                spec["pool"]["generation"],
                spec["pool"]["resourceSliceCount"],
                len(spec.get("devices") or spec["sharedCounters"]),
            )
            for spec in [item["spec"] for item in await self.slices()]
        ]

    async def hand_made(self, name: str, **spec: object) -> str:
        """Create a slice that no plugin made: by default of this driver, on this node, in a pool of its own."""
        pool = {"name": f"{self.node}-foreign", "generation": 1, "resourceSliceCount": 1}
        common = {"driver": self.driver, "pool": pool, "devices": [{"name": "d"}]}
        place: Object = {} if {"allNodes", "nodeSelector"} & spec.keys() else {"nodeName": self.node}
        made = await self.client.create(
            RESOURCE_SLICES,
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": f"{self.node}-{name}"},
                "spec": {**common, **place, **spec},
            },
        )
        return str(made["metadata"]["name"])

    async def exists(self, name: str) -> bool:
        try:
            await self.client.get(RESOURCE_SLICES, name)
        except NotFound:
            return False
        return True

    def layout(self, *, devices: int = 8, partitions: int = 0, shared: bool = False) -> list[Object]:
        return draw(Settings(node=self.node, devices=devices, partitions=partitions, shared=shared))
