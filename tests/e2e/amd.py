"""AMD's software on a test's own nodes, as a platform team would install it for static partitions, and what is to be seen of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from testbed import nodes
from testbed.drivers import machine
from testbed.drivers.amd_gpus import read_spec, set_compute, set_memory, write_state
from testbed.drivers.amd_slices import DRIVER
from testbed.drivers.dcm import PROFILE, STATE
from tests.e2e.harness import eventually
from tests.e2e.vendor import Vendor, place

from gpupartition.kube import CONFIG_MAPS, DAEMON_SETS, EVENTS, NODES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.e2e.harness import Cluster

    from gpupartition.kube import Object

MI300X: Final = "AMD_Instinct_MI300X_OAM"


def entry(modes: str, count: int) -> Object:
    """So many GPUs in these modes, such as CPX-NPS4."""
    compute, memory = modes.split("-")
    return {"computePartition": compute, "memoryPartition": memory, "numGPUsAssigned": count}


def profile(*entries: Object, skipped: tuple[int, ...] = ()) -> Object:
    """A profile of config.json."""
    return {"profiles": list(entries), **({"skippedGPUs": {"ids": list(skipped)}} if skipped else {})}


@dataclass(frozen=True, kw_only=True)
class Amd(Vendor):
    """The Device Config Manager and the DRA driver."""

    DRIVER = DRIVER
    CONFIG = PROFILE
    STATE = STATE
    TYPE = "AmdDcm"
    COMPONENT = "amd-dcm"
    GRANTED = "gpupartition-amd"
    NAMESPACES = ("kube-amd-gpu", "k8s-gpu-dra-driver")

    config_map: str = "config-manager-config"
    config_manager: str = "default-device-config-manager"
    plugin: str = "k8s-gpu-dra-driver-kubeletplugin"
    exporter: str = "default-metrics-exporter"

    @property
    def agent(self) -> tuple[str, str]:
        return "configManager", self.config_manager

    async def nodes(self, *gpus: str, config: str | None = None) -> list[str]:
        """Make a node for each of these, such as "8x AMD_Instinct_MI300X_OAM", and wait until its GPUs are announced."""
        names = await self.cluster.nodes(len(gpus))
        for name, spec in zip(names, gpus, strict=True):
            product = {"amd.com/gpu.product-name": read_spec(spec)[0].product}
            labels = {**nodes.AMD_LABELS, **product, PROFILE: config, "pool": self.cluster.name}
            meta = {"annotations": {machine.SPEC: spec}, "labels": labels}
            await self.cluster.client.patch(NODES, name, {"metadata": meta})
        for name in names:
            await eventually(partial(self.slices, name))
            await eventually(partial(self.is_ready, name, self.config_manager))
        return names

    async def configure(self, **profiles: Object) -> None:
        """Write config.json: these profiles and no other. `_` stands for `-` in their names."""
        named = {name.replace("_", "-"): told for name, told in profiles.items()}
        await self.write(json.dumps({"gpu-config-profiles": named}))

    async def write(self, text: str) -> None:
        """Write config.json as it is."""
        body = {"data": {"config.json": text}}
        await self.cluster.client.patch(CONFIG_MAPS, self.config_map, body, namespace=self.operator_namespace)

    async def by_hand(self, node: str, modes: str) -> None:
        """Bring every GPU into these modes, such as CPX-NPS4, as somebody does with amd-smi."""
        compute, memory = modes.split("-")
        body = await self.cluster.client.get(NODES, node)
        gpus = set_memory(read_spec(body["metadata"]["annotations"][machine.SPEC]), memory, ())
        for index in range(len(gpus)):
            gpus = set_compute(gpus, index, compute, {})
        await self.changed_by_hand(node, json.loads(write_state(gpus, "", ""))["gpus"])

    async def hardware(self, node: str) -> list[str]:
        """The modes of each GPU, as CPX/NPS4, as they were told last; nothing when they were never changed."""
        return [f"{gpu['compute']}/{gpu['memory']}" for gpu in await self.gpus(node)]

    async def shows(self, node: str, *modes: str) -> None:
        """Wait until the GPUs are in these modes."""

        async def so() -> bool:
            assert await self.hardware(node) == list(modes)
            return True

        await eventually(so)

    async def announces(self, node: str, **counts: int) -> None:
        """Wait until exactly so many devices of each partitionProfile are announced."""

        async def so() -> bool:
            profiles = [each["attributes"]["partitionProfile"]["string"] for each in await self.announced(node)]
            assert {name: profiles.count(name) for name in profiles} == counts
            return True

        await eventually(so)

    async def events(self, node: str) -> list[tuple[str, Object]]:
        """What the Device Config Manager has told of a node, oldest first: reason and message."""
        (pod,) = await self.pods(node, self.config_manager)
        listing = await self.cluster.client.list(
            EVENTS,
            namespace=self.operator_namespace,
            field_selector=f"involvedObject.name={pod['metadata']['name']},source=amd-device-config-manager",
        )
        told = sorted(listing.items, key=lambda item: int(item["metadata"]["resourceVersion"]))
        return [(item["reason"], json.loads(item["message"])) for item in told]

    async def is_ready(self, node: str, app: str) -> bool:
        """Whether a pod of the DaemonSet is Ready there."""
        return any(map(nodes.is_ready, await self.pods(node, app)))

    async def watch(self) -> None:
        """Install the metrics exporter too, which has the driver open on every node."""
        labels = {"app.kubernetes.io/name": "metrics-exporter"}
        container = {"name": "metrics-exporter-container", "image": "docker.io/rocm/device-metrics-exporter:v1.3.1"}
        pod = {"nodeSelector": {"pool": self.cluster.name}, "containers": [container]}
        template = {"metadata": {"labels": labels}, "spec": pod}
        body = {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": self.exporter, "namespace": self.operator_namespace},
            "spec": {"selector": {"matchLabels": labels}, "template": template},
        }
        await self.cluster.create(DAEMON_SETS, body)


async def install(cluster: Cluster, env: Mapping[str, str] | None = None) -> Amd:
    """Install AMD's software for this test alone, with `env` in the environment of both programs."""
    made = Amd(
        cluster=cluster,
        operator_namespace=await cluster.namespace("kube-amd-gpu"),
        driver_namespace=await cluster.namespace("k8s-gpu-dra-driver"),
    )
    await place(cluster, nodes.amd(), dict.fromkeys((made.config_manager, made.plugin), env or {}))
    return made
