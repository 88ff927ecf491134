"""NVIDIA's software on a test's own nodes, as a platform team would install it for static MIG, and what is to be seen of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import yaml
from testbed import nodes
from testbed.drivers import machine
from testbed.drivers.gpus import read_spec
from testbed.drivers.mig_manager import CONFIG, STATE
from testbed.drivers.nvidia_slices import DRIVER
from tests.e2e.harness import eventually
from tests.e2e.vendor import Vendor, place

from gpupartition.kube import CONFIG_MAPS, NODES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.e2e.harness import Cluster

    from gpupartition.kube import Object

H100: Final = "NVIDIA H100 80GB HBM3"
A100: Final = "NVIDIA A100-SXM4-40GB"

DISABLED: Final = [{"devices": "all", "mig-enabled": False}]


def only(counts: Mapping[str, int], *, devices: object = "all") -> Object:
    """An entry of a layout: these partitions, by profile, on each of these GPUs."""
    return {"devices": devices, "mig-enabled": True, "mig-devices": dict(counts)}


def every(counts: Mapping[str, int]) -> list[Object]:
    """A layout that gives every GPU these partitions."""
    return [only(counts)]


@dataclass(frozen=True, kw_only=True)
class Nvidia(Vendor):
    """mig-manager, dcgm-exporter and the DRA driver."""

    DRIVER = DRIVER
    CONFIG = CONFIG
    STATE = STATE
    TYPE = "NvidiaMig"
    COMPONENT = "nvidia-mig"
    GRANTED = "gpupartition-mig"
    NAMESPACES = ("gpu-operator", "dra-driver-nvidia-gpu")

    config_map: str = "mig-parted-config"
    mig_manager: str = "nvidia-mig-manager"
    plugin: str = "dra-driver-nvidia-gpu-kubelet-plugin"

    @property
    def agent(self) -> tuple[str, str]:
        return "migManager", self.mig_manager

    async def nodes(self, *gpus: str, config: str | None = "all-disabled") -> list[str]:
        """Make a node for each of these, such as "8x NVIDIA H100 80GB HBM3", and wait until its GPUs are announced.

        `config` None: without the label, so that mig-manager does nothing.
        """
        names = await self.cluster.nodes(len(gpus))
        for name, spec in zip(names, gpus, strict=True):
            found = read_spec(spec)
            of_gpus = {
                "nvidia.com/gpu.product": found[0].product.replace(" ", "-"),
                "nvidia.com/gpu.count": str(len(found)),
            }
            labels = {**nodes.NVIDIA_LABELS, **of_gpus, CONFIG: config}
            meta = {"annotations": {machine.SPEC: spec}, "labels": {**labels, "pool": self.cluster.name}}
            await self.cluster.client.patch(NODES, name, {"metadata": meta})
        for name in names:
            await self.becomes(name, "success" if config is not None else None)
            await eventually(partial(self.slices, name))
        return names

    async def configure(self, **layouts: list[Object]) -> None:
        """Write mig-manager's file: these entries beside the one that every file has. `_` stands for `-` in their names."""
        configs = {"all-disabled": DISABLED, **{key.replace("_", "-"): entries for key, entries in layouts.items()}}
        text = yaml.safe_dump({"version": "v1", "mig-configs": configs})
        await self.cluster.client.patch(
            CONFIG_MAPS, self.config_map, {"data": {"config.yaml": text}}, namespace=self.operator_namespace
        )

    async def by_hand(self, node: str, *gpus: list[str]) -> None:
        """Cut each GPU into these instances, such as 3g.40gb@4, as somebody does with nvidia-smi."""
        await self.changed_by_hand(node, [{"mig": bool(instances), "instances": instances} for instances in gpus])

    async def clients(self, node: str) -> set[str]:
        """The values of the labels by which NVIDIA's own programs are paused; mig-manager's own is not one of them."""
        return {
            value
            for key, value in (await self.labels(node)).items()
            if key.startswith("nvidia.com/gpu.deploy.") and not key.endswith("mig-manager")
        }

    async def hardware(self, node: str) -> list[list[str]]:
        """The instances of each GPU, as 3g.40gb@4, as they were told last."""
        return [gpu["instances"] for gpu in await self.gpus(node)]

    async def devices(self, node: str) -> list[str]:
        """What is announced, by name."""
        return [each["name"] for each in await self.announced(node)]

    async def announces(self, node: str, *names: str) -> None:
        """Wait until exactly these are announced."""

        async def so() -> bool:
            assert await self.devices(node) == list(names)
            return True

        await eventually(so)


async def install(cluster: Cluster, env: Mapping[str, str] | None = None) -> Nvidia:
    """Install NVIDIA's software for this test alone, with `env` in mig-manager's environment."""
    made = Nvidia(
        cluster=cluster,
        operator_namespace=await cluster.namespace("gpu-operator"),
        driver_namespace=await cluster.namespace("dra-driver-nvidia-gpu"),
    )
    await place(cluster, nodes.nvidia(), {made.mig_manager: env or {}})
    return made
