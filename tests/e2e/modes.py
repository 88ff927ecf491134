"""Nodes with AMD's software and the operator's driver over them, for tests of modes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tests.e2e import vendor_site
from tests.e2e.amd import Amd, install
from tests.e2e.vendor_site import driver, started

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.e2e.harness import Cluster

    from gpupartition.kube import Object

POLICY: Final = "modes"


def mode(compute: str, memory: str, **more: Any) -> Object:
    """A layout: every GPU in these modes."""
    told = {"compute": compute, "memory": memory}
    return {"name": "modes", "match": {"all": True}, "type": "Mode", "mode": told, **more}


@dataclass(frozen=True, kw_only=True)
class Site(vendor_site.Site[Amd]):
    """AMD's software, nodes with GPUs, and a GpuPartitionDriver over them."""

    POLICY = POLICY
    KIND = "partitionProfile"

    async def announces(self, node: str, **counts: int) -> None:
        """Wait until a node announces exactly so many devices of each partitionProfile."""
        await self._announces(node, counts)

    async def profiles(self) -> dict[str, Any]:
        """What Device Config Manager can be told."""
        found: dict[str, Any] = json.loads((await self.file())["data"]["config.json"])["gpu-config-profiles"]
        return found


async def site(cluster: Cluster, *gpus: str, env: Mapping[str, str] | None = None, **seconds: float) -> Site:
    """Install everything for a node with each of these GPUs, and start an operator that waits briefly."""
    software = await install(cluster, env)
    nodes = await software.nodes(*gpus)
    await driver(cluster, software)
    await started(cluster, **seconds)
    return Site(cluster=cluster, software=software, nodes=nodes)


__all__ = ["POLICY", "Site", "driver", "mode", "site"]
