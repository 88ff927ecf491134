"""Nodes with NVIDIA's software and the operator's driver over them, for tests of static MIG."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml
from testbed.drivers.mig_manager import CONFIG
from tests.e2e.harness import POLICIES, eventually
from tests.e2e.nvidia import Nvidia, install
from tests.e2e.rollout import apply, at_rest, operator, policy, ready

from gpupartition.names import API_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testbed.programs import Program
    from tests.e2e.harness import Cluster

Object = dict[str, Any]

POLICY: Final = "mig"
COMPONENT: Final = Path(__file__).parents[2] / "manifests" / "components" / "nvidia-mig"


def profiles(*named: str | tuple[str, int], **more: Any) -> Object:
    """A layout: these partitions, and no others."""
    counts = [(n, 1) if isinstance(n, str) else n for n in named]
    wanted = [{"name": name, "count": count} for name, count in counts]
    return {"name": "parts", "match": {"all": True}, "type": "Profiles", "profiles": wanted, **more}


@dataclass(frozen=True, kw_only=True)
class Site:
    """NVIDIA's software, nodes with GPUs, and a GpuPartitionDriver over them."""

    cluster: Cluster
    nvidia: Nvidia
    nodes: list[str]

    async def wants(self, *layouts: Object, **rollout: Any) -> None:
        """Write the policy."""
        await apply(self.cluster, policy(POLICY, self.cluster.name, *layouts, rollout=rollout))

    async def gets(self, *layouts: Object, **rollout: Any) -> None:
        """Write the policy, and wait until all nodes have it and nothing of the work is left."""
        await self.wants(*layouts, **rollout)
        await ready(self.cluster, POLICY, within=60)
        await at_rest(self.cluster)

    async def announced(self, node: str) -> dict[str, int]:
        """How many devices of each profile a node announces; a whole GPU is `whole`."""
        found: Counter[str] = Counter()
        for item in await self.nvidia.slices(node):
            for device in item["spec"].get("devices", ()):
                found[device["attributes"].get("profile", {}).get("string", "whole")] += 1
        return dict(found)

    async def announces(self, node: str, **counts: int) -> None:
        """Wait until a node announces exactly so many; `_1g_10gb` stands for `1g.10gb`."""
        wanted = {name.removeprefix("_").replace("_", "."): n for name, n in counts.items()}

        async def so() -> bool:
            assert await self.announced(node) == wanted
            return True

        await eventually(so)

    async def assigned(self, node: str) -> str | None:
        """The value of the label."""
        return (await self.nvidia.labels(node)).get(CONFIG)

    async def said(self, kind: str) -> Object:
        """A condition of the policy, if there is one."""
        body = await self.cluster.client.get(POLICIES, POLICY)
        found = [c for c in body.get("status", {}).get("conditions", ()) if c["type"] == kind]
        return found[0] if found else {}


async def site(
    cluster: Cluster, *gpus: str, env: Mapping[str, str] | None = None, spec: Object | None = None, **seconds: float
) -> Site:
    """Install everything for a node with each of these GPUs, and start an operator that waits briefly."""
    nvidia = await install(cluster, env)
    names = await nvidia.nodes(*gpus)
    await driver(cluster, nvidia, **(spec or {}))
    made = Site(cluster=cluster, nvidia=nvidia, nodes=names)
    await started(cluster, **seconds)
    return made


async def started(cluster: Cluster, **seconds: float) -> Program:
    """An operator that waits briefly; mig-manager's mounts are a second old in tests."""
    return await operator(cluster, **({"config_age": 1.5, "applying_mig": 60, "verifying": 60} | seconds))


async def driver(cluster: Cluster, nvidia: Nvidia, **spec: Any) -> None:
    """Apply the GpuPartitionDriver, named like the test, and grant the operator what the component of the manifests grants."""
    if not await asyncio.to_thread(cluster.controlplane.files.kubeconfig("operator").exists):
        await cluster.controlplane.install_operator()
    text = await asyncio.to_thread((COMPONENT / "role.yaml").read_text)
    text = text.replace("gpupartition-mig,", f"{nvidia.config_map},").replace(
        "[gpupartition-mig]", f"[{nvidia.config_map}]"
    )
    bodies = list(yaml.safe_load_all(text))
    spaces = {"gpu-operator": nvidia.operator_namespace, "dra-driver-nvidia-gpu": nvidia.driver_namespace}
    for body in bodies:
        body["metadata"]["namespace"] = spaces[body["metadata"]["namespace"]]
    await cluster.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(bodies))
    told = {
        "migManager": {"namespace": nvidia.operator_namespace, "name": nvidia.mig_manager},
        "config": nvidia.config_map,
        "plugin": {"namespace": nvidia.driver_namespace, "name": nvidia.plugin},
        **spec,
    }
    body = {
        "apiVersion": API_VERSION,
        "kind": "GpuPartitionDriver",
        "metadata": {"name": cluster.name},
        "spec": {"type": "NvidiaMig", "nvidiaMig": told, "maxUnavailable": "100%"},
    }
    await apply(cluster, body)


__all__ = ["POLICY", "Site", "driver", "profiles", "site", "started"]
