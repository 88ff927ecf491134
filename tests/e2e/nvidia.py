"""NVIDIA's software on a test's own nodes, as a platform team would install it for static MIG, and what is to be seen of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import yaml
from testbed import nodes
from testbed.drivers import machine
from testbed.drivers.gpus import read_spec
from testbed.drivers.mig_manager import CONFIG, STATE
from testbed.drivers.nvidia_slices import DRIVER
from testbed.faults import ANNOTATION
from tests.e2e.harness import eventually

from gpupartition.kube import CONFIG_MAPS, DAEMON_SETS, NAMESPACES, NODES, PODS, RESOURCE_SLICES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.e2e.harness import Cluster

Object = dict[str, Any]

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
class Nvidia:
    """One test's install. Its nodes carry `pool: <name of the test>`."""

    cluster: Cluster
    operator_namespace: str
    """Of mig-manager, its ConfigMap and dcgm-exporter."""
    driver_namespace: str
    """Of the DRA driver."""
    config_map: str = "mig-parted-config"
    mig_manager: str = "nvidia-mig-manager"
    plugin: str = "dra-driver-nvidia-gpu-kubelet-plugin"

    async def nodes(self, *gpus: str, config: str = "all-disabled") -> list[str]:
        """Make a node for each of these, such as "8x NVIDIA H100 80GB HBM3", and wait until its GPUs are announced."""
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
            await self.becomes(name, "success")
            await eventually(partial(self.slices, name))
        return names

    async def configure(self, **layouts: list[Object]) -> None:
        """Write mig-manager's file: these entries beside the one that every file has. `_` stands for `-` in their names."""
        configs = {"all-disabled": DISABLED, **{key.replace("_", "-"): entries for key, entries in layouts.items()}}
        text = yaml.safe_dump({"version": "v1", "mig-configs": configs})
        await self.cluster.client.patch(
            CONFIG_MAPS, self.config_map, {"data": {"config.yaml": text}}, namespace=self.operator_namespace
        )

    async def select(self, node: str, config: str | None) -> None:
        """Flip the label; the old state goes in the same write."""
        await self.cluster.client.patch(NODES, node, {"metadata": {"labels": {CONFIG: config, STATE: None}}})

    async def apply(self, node: str, config: str, *, ends: str = "success") -> None:
        """Flip the label, and wait until mig-manager has said how it went."""
        await self.select(node, config)
        await self.becomes(node, ends)

    async def becomes(self, node: str, state: str | None) -> None:
        """Wait until the state label is this."""

        async def so() -> bool:
            labels = await self.labels(node)
            assert labels.get(STATE) == state, labels
            return True

        await eventually(so)

    async def labels(self, node: str) -> dict[str, str]:
        return dict((await self.cluster.client.get(NODES, node))["metadata"].get("labels") or {})

    async def clients(self, node: str) -> set[str]:
        """The values of the labels by which NVIDIA's own programs are paused; mig-manager's own is not one of them."""
        return {
            value
            for key, value in (await self.labels(node)).items()
            if key.startswith("nvidia.com/gpu.deploy.") and not key.endswith("mig-manager")
        }

    async def faults(self, node: str, switches: str | None) -> None:
        """Set the fault switches; None heals."""
        await self.cluster.client.patch(NODES, node, {"metadata": {"annotations": {ANNOTATION: switches}}})

    async def hardware(self, node: str) -> list[list[str]]:
        """The instances of each GPU, as 3g.40gb@4, as they were told last."""
        notes = (await self.cluster.client.get(NODES, node))["metadata"].get("annotations") or {}
        return [gpu["instances"] for gpu in json.loads(notes.get(machine.STATE, '{"gpus": []}'))["gpus"]]

    async def slices(self, node: str) -> list[Object]:
        selector = f"spec.driver={DRIVER},spec.nodeName={node}"
        listing = await self.cluster.client.list(RESOURCE_SLICES, field_selector=selector)
        return sorted(listing.items, key=lambda item: str(item["metadata"]["name"]))

    async def devices(self, node: str) -> list[str]:
        """What is announced, by name."""
        return [each["name"] for item in await self.slices(node) for each in item["spec"].get("devices", ())]

    async def announces(self, node: str, *names: str) -> None:
        """Wait until exactly these are announced."""

        async def so() -> bool:
            assert await self.devices(node) == list(names)
            return True

        await eventually(so)

    async def pods(self, node: str, app: str) -> list[Object]:
        """The pods of one of the DaemonSets on a node."""
        namespace = self.driver_namespace if app == self.plugin else self.operator_namespace
        listing = await self.cluster.client.list(PODS, namespace=namespace, field_selector=f"spec.nodeName={node}")
        return [
            pod
            for pod in listing.items
            if any(owner["name"] == app for owner in pod["metadata"].get("ownerReferences", ()))
        ]

    async def restart(self, node: str, app: str) -> None:
        """Delete a pod of a DaemonSet, and wait until its successor is Ready."""
        (old,) = await self.pods(node, app)
        await self.cluster.client.delete(PODS, old["metadata"]["name"], namespace=old["metadata"]["namespace"])

        async def replaced() -> bool:
            uid = old["metadata"]["uid"]
            return any(pod["metadata"]["uid"] != uid and nodes.is_ready(pod) for pod in await self.pods(node, app))

        await eventually(replaced)


async def install(cluster: Cluster, env: Mapping[str, str] | None = None) -> Nvidia:
    """Install NVIDIA's software for this test alone, with `env` in mig-manager's environment."""
    made = Nvidia(
        cluster=cluster,
        operator_namespace=await cluster.namespace("gpu-operator"),
        driver_namespace=await cluster.namespace("dra-driver-nvidia-gpu"),
    )
    for kind, body in nodes.nvidia():
        if kind is NAMESPACES:
            continue
        if kind.namespaced:
            body["metadata"]["namespace"] = f"{cluster.name}-{body['metadata']['namespace']}"
        if kind is DAEMON_SETS:
            spec = body["spec"]["template"]["spec"]
            spec["nodeSelector"] = {**spec.get("nodeSelector", {}), "pool": cluster.name}
            if body["metadata"]["name"] == made.mig_manager:
                nodes.set_env(body, **(env or {}))
        await cluster.create(kind, body)
    return made
