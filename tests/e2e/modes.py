"""Nodes with AMD's software and the operator's driver over them, for tests of modes."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml
from testbed.drivers.dcm import PROFILE
from tests.e2e.amd import Amd, install
from tests.e2e.harness import eventually
from tests.e2e.rollout import apply, at_rest, operator, policy, ready

from gpupartition.kube import CONFIG_MAPS
from gpupartition.names import API_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.e2e.harness import Cluster

Object = dict[str, Any]

POLICY: Final = "modes"
COMPONENT: Final = Path(__file__).parents[2] / "manifests" / "components" / "amd-dcm"


def mode(compute: str, memory: str, **more: Any) -> Object:
    """A layout: every GPU in these modes."""
    told = {"compute": compute, "memory": memory}
    return {"name": "modes", "match": {"all": True}, "type": "Mode", "mode": told, **more}


@dataclass(frozen=True, kw_only=True)
class Site:
    """AMD's software, nodes with GPUs, and a GpuPartitionDriver over them."""

    cluster: Cluster
    amd: Amd
    nodes: list[str]

    async def wants(self, *layouts: Object, **rollout: Any) -> None:
        """Write the policy."""
        await apply(self.cluster, policy(POLICY, self.cluster.name, *layouts, rollout=rollout))

    async def gets(self, *layouts: Object, **rollout: Any) -> None:
        """Write the policy, and wait until all nodes have it and nothing of the work is left."""
        await self.wants(*layouts, **rollout)
        await ready(self.cluster, POLICY, within=60)
        await at_rest(self.cluster)

    async def announces(self, node: str, **counts: int) -> None:
        """Wait until a node announces exactly so many devices of each partitionProfile."""

        async def so() -> bool:
            found: Counter[str] = Counter()
            for item in await self.amd.slices(node):
                for device in item["spec"].get("devices", ()):
                    found[device["attributes"]["partitionProfile"]["string"]] += 1
            assert found == counts
            return True

        await eventually(so)

    async def assigned(self, node: str) -> str | None:
        """The value of the label."""
        return (await self.amd.labels(node)).get(PROFILE)

    async def file(self) -> Object:
        """The ConfigMap of profiles."""
        found: Object = await self.cluster.client.get(
            CONFIG_MAPS, self.amd.config_map, namespace=self.amd.operator_namespace
        )
        return found

    async def profiles(self) -> dict[str, Any]:
        """What Device Config Manager can be told."""
        found: dict[str, Any] = json.loads((await self.file())["data"]["config.json"])["gpu-config-profiles"]
        return found


async def site(cluster: Cluster, *gpus: str, env: Mapping[str, str] | None = None, **seconds: float) -> Site:
    """Install everything for a node with each of these GPUs, and start an operator that waits briefly."""
    amd = await install(cluster, env)
    names = await amd.nodes(*gpus)
    await driver(cluster, amd)
    await operator(cluster, **({"config_age": 1.5, "applying_dcm": 60, "verifying": 60} | seconds))
    return Site(cluster=cluster, amd=amd, nodes=names)


async def driver(cluster: Cluster, amd: Amd) -> None:
    """Apply the GpuPartitionDriver, named like the test, and grant the operator what the component of the manifests grants."""
    if not await asyncio.to_thread(cluster.controlplane.files.kubeconfig("operator").exists):
        await cluster.controlplane.install_operator()
    text = await asyncio.to_thread((COMPONENT / "role.yaml").read_text)
    bodies = list(yaml.safe_load_all(re.sub(r"\bgpupartition-amd(?=[,\]])", amd.config_map, text)))
    spaces = {"kube-amd-gpu": amd.operator_namespace, "k8s-gpu-dra-driver": amd.driver_namespace}
    for body in bodies:
        body["metadata"]["namespace"] = spaces[body["metadata"]["namespace"]]
    await cluster.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(bodies))
    told = {
        "configManager": {"namespace": amd.operator_namespace, "name": amd.config_manager},
        "config": amd.config_map,
        "plugin": {"namespace": amd.driver_namespace, "name": amd.plugin},
    }
    body = {
        "apiVersion": API_VERSION,
        "kind": "GpuPartitionDriver",
        "metadata": {"name": cluster.name},
        "spec": {"type": "AmdDcm", "amdDcm": told, "maxUnavailable": "100%"},
    }
    await apply(cluster, body)


__all__ = ["POLICY", "Site", "driver", "mode", "site"]
