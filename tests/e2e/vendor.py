"""A vendor's software on a test's own nodes: what tests of every vendor ask of it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from testbed import nodes
from testbed.drivers import machine
from testbed.faults import ANNOTATION
from tests.e2e.harness import eventually

from gpupartition.kube import DAEMON_SETS, NAMESPACES, NODES, PODS, RESOURCE_SLICES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tests.e2e.harness import Cluster

    from gpupartition.kube import Kind, Object


@dataclass(frozen=True, kw_only=True)
class Vendor(ABC):
    """One test's install. Its nodes carry `pool: <name of the test>`."""

    DRIVER: ClassVar[str]
    CONFIG: ClassVar[str]
    """Label of a node: how its GPUs are to be cut."""
    STATE: ClassVar[str]
    """Label of a node: how it went."""
    TYPE: ClassVar[str]
    """Of a GpuPartitionDriver over it."""
    COMPONENT: ClassVar[str]
    """Of the manifests: what the operator needs for it."""
    GRANTED: ClassVar[str]
    """The ConfigMap of layouts, as that calls it."""
    NAMESPACES: ClassVar[tuple[str, str]]
    """Where that has the program that cuts GPUs, and the DRA driver."""

    cluster: Cluster
    operator_namespace: str
    """Of the program that cuts GPUs, and of its ConfigMap."""
    config_map: str
    driver_namespace: str
    """Of the DRA driver."""
    plugin: str
    """The DRA driver's DaemonSet."""

    @property
    @abstractmethod
    def agent(self) -> tuple[str, str]:
        """The field of a GpuPartitionDriver for the DaemonSet of the program that cuts GPUs, and its name."""

    async def select(self, node: str, config: str | None) -> None:
        """Flip the label; the old state goes in the same write."""
        await self.cluster.client.patch(NODES, node, {"metadata": {"labels": {self.CONFIG: config, self.STATE: None}}})

    async def apply(self, node: str, config: str, *, ends: str = "success") -> None:
        """Flip the label, and wait until it was said how it went."""
        await self.select(node, config)
        await self.becomes(node, ends)

    async def becomes(self, node: str, state: str | None) -> None:
        """Wait until the state label is this."""

        async def so() -> bool:
            labels = await self.labels(node)
            assert labels.get(self.STATE) == state, labels
            return True

        await eventually(so)

    async def labels(self, node: str) -> dict[str, str]:
        return dict((await self.cluster.client.get(NODES, node))["metadata"].get("labels") or {})

    async def faults(self, node: str, switches: str | None) -> None:
        """Set the fault switches; None heals."""
        await self.cluster.client.patch(NODES, node, {"metadata": {"annotations": {ANNOTATION: switches}}})

    async def gpus(self, node: str) -> list[Object]:
        """The state of each GPU, as it was told last; nothing when none was ever changed."""
        notes = (await self.cluster.client.get(NODES, node))["metadata"].get("annotations") or {}
        return list(json.loads(notes.get(machine.STATE, '{"gpus": []}'))["gpus"])

    async def changed_by_hand(self, node: str, gpus: Iterable[Object]) -> None:
        """Have somebody cut the GPUs so on the node itself, behind the back of all programs, and the DRA driver look again."""
        body = await self.cluster.client.get(NODES, node)
        about = {"spec": body["metadata"]["annotations"][machine.SPEC], "boot": body["status"]["nodeInfo"]["bootID"]}
        note = {machine.STATE: json.dumps({**about, "gpus": list(gpus)})}
        await self.cluster.client.patch(NODES, node, {"metadata": {"annotations": note}})
        await self.restart(node, self.plugin)

    async def slices(self, node: str) -> list[Object]:
        selector = f"spec.driver={self.DRIVER},spec.nodeName={node}"
        listing = await self.cluster.client.list(RESOURCE_SLICES, field_selector=selector)
        return sorted(listing.items, key=lambda item: str(item["metadata"]["name"]))

    async def announced(self, node: str) -> list[Object]:
        """The devices of all slices."""
        return [each for item in await self.slices(node) for each in item["spec"].get("devices", ())]

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


async def place(
    cluster: Cluster, objects: Iterable[tuple[Kind, Object]], env: Mapping[str, Mapping[str, str]] | None = None
) -> None:
    """Install these for one test alone, in namespaces of its own that are there already; `env` is by DaemonSet."""
    for kind, body in objects:
        if kind is NAMESPACES:
            continue
        if kind.namespaced:
            body["metadata"]["namespace"] = f"{cluster.name}-{body['metadata']['namespace']}"
        if kind is DAEMON_SETS:
            spec = body["spec"]["template"]["spec"]
            spec["nodeSelector"] = {**spec.get("nodeSelector", {}), "pool": cluster.name}
            nodes.set_env(body, **(env or {}).get(body["metadata"]["name"], {}))
        await cluster.create(kind, body)
