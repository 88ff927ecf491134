"""Nodes with a vendor's software and the operator's driver over them: what tests of static MIG and of AMD's modes do alike."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

import yaml
from tests.e2e.harness import POLICIES, eventually
from tests.e2e.rollout import apply, at_rest, operator, policy, ready, records
from tests.e2e.vendor import Vendor

from gpupartition.kube import CONFIG_MAPS
from gpupartition.names import API_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testbed.programs import Program
    from tests.e2e.harness import Cluster

    from gpupartition.kube import Object

V = TypeVar("V", bound=Vendor)

COMPONENTS: Final = Path(__file__).parents[2] / "manifests" / "components"


@dataclass(frozen=True, kw_only=True)
class Site(Generic[V]):
    """A vendor's software, nodes with GPUs, and a GpuPartitionDriver over them."""

    POLICY: ClassVar[str]
    KIND: ClassVar[str]
    """The attribute by which devices of a GPU are told apart."""
    WHOLE: ClassVar[str] = ""
    """What stands for a device without it."""

    cluster: Cluster
    software: V
    nodes: list[str]

    async def wants(self, *layouts: Object, **rollout: Any) -> None:
        """Write the policy."""
        await apply(self.cluster, policy(self.POLICY, self.cluster.name, *layouts, rollout=rollout))

    async def gets(self, *layouts: Object, **rollout: Any) -> None:
        """Write the policy, and wait until all nodes have it and nothing of the work is left."""
        await self.wants(*layouts, **rollout)
        await ready(self.cluster, self.POLICY, within=60)
        await at_rest(self.cluster)

    async def announced(self, node: str) -> dict[str, int]:
        """How many devices of each kind a node announces."""
        devices = await self.software.announced(node)
        return dict(Counter(each["attributes"].get(self.KIND, {}).get("string", self.WHOLE) for each in devices))

    async def assigned(self, node: str) -> str | None:
        """The value of the label."""
        return (await self.software.labels(node)).get(self.software.CONFIG)

    async def other_target(self, former: str | None) -> str:
        """Wait until its one node is on its way to another assignment; returns that."""

        async def look() -> str:
            (record,) = (await records(self.cluster)).values()
            value = str(record["status"].get("target", {}).get("assignment", ""))
            assert value not in {"", former}
            return value

        return await eventually(look)

    async def said(self, kind: str) -> Object:
        """A condition of the policy, if there is one."""
        body = await self.cluster.client.get(POLICIES, self.POLICY)
        found = [c for c in body.get("status", {}).get("conditions", ()) if c["type"] == kind]
        return found[0] if found else {}

    async def file(self) -> Object:
        """The ConfigMap of layouts."""
        where = {"namespace": self.software.operator_namespace}
        found: Object = await self.cluster.client.get(CONFIG_MAPS, self.software.config_map, **where)
        return found

    async def _announces(self, node: str, wanted: Mapping[str, int]) -> None:
        async def so() -> bool:
            assert await self.announced(node) == wanted
            return True

        await eventually(so)


async def started(cluster: Cluster, **seconds: float) -> Program:
    """An operator that waits briefly; what is mounted is a second old in tests."""
    brief = {"config_age": 1.5, "applying_mig": 60, "applying_dcm": 60, "verifying": 60}
    return await operator(cluster, **(brief | seconds))


async def driver(cluster: Cluster, software: Vendor, **spec: Any) -> None:
    """Apply the GpuPartitionDriver, named like the test, and grant the operator what the component of the manifests grants."""
    if not await asyncio.to_thread(cluster.controlplane.files.kubeconfig("operator").exists):
        await cluster.controlplane.install_operator()
    text = await asyncio.to_thread((COMPONENTS / software.COMPONENT / "role.yaml").read_text)
    # The ConfigMap is called otherwise in tests; that of its tables is not.
    bodies = list(yaml.safe_load_all(re.sub(rf"\b{software.GRANTED}(?=[,\]])", software.config_map, text)))
    spaces = dict(zip(software.NAMESPACES, (software.operator_namespace, software.driver_namespace), strict=True))
    for body in bodies:
        body["metadata"]["namespace"] = spaces[body["metadata"]["namespace"]]
    await cluster.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(bodies))
    field, agent = software.agent
    told = {
        field: {"namespace": software.operator_namespace, "name": agent},
        "config": software.config_map,
        "plugin": {"namespace": software.driver_namespace, "name": software.plugin},
        **spec,
    }
    body = {
        "apiVersion": API_VERSION,
        "kind": "GpuPartitionDriver",
        "metadata": {"name": cluster.name},
        "spec": {"type": software.TYPE, software.TYPE[0].lower() + software.TYPE[1:]: told, "maxUnavailable": "100%"},
    }
    await apply(cluster, body)
