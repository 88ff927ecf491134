"""Nodes with NVIDIA's software and the operator's driver over them, for tests of static MIG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tests.e2e import vendor_site
from tests.e2e.nvidia import Nvidia, install
from tests.e2e.vendor_site import driver, started

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.e2e.harness import Cluster

    from gpupartition.kube import Object

POLICY: Final = "mig"


def profiles(*named: str | tuple[str, int], **more: Any) -> Object:
    """A layout: these partitions, and no others."""
    counts = [(n, 1) if isinstance(n, str) else n for n in named]
    wanted = [{"name": name, "count": count} for name, count in counts]
    return {"name": "parts", "match": {"all": True}, "type": "Profiles", "profiles": wanted, **more}


@dataclass(frozen=True, kw_only=True)
class Site(vendor_site.Site[Nvidia]):
    """NVIDIA's software, nodes with GPUs, and a GpuPartitionDriver over them."""

    POLICY = POLICY
    KIND = "profile"
    WHOLE = "whole"

    async def announces(self, node: str, **counts: int) -> None:
        """Wait until a node announces exactly so many of each profile; `_1g_10gb` stands for `1g.10gb`, `whole` for a GPU."""
        await self._announces(node, {name.removeprefix("_").replace("_", "."): n for name, n in counts.items()})


async def site(
    cluster: Cluster, *gpus: str, env: Mapping[str, str] | None = None, spec: Object | None = None, **seconds: float
) -> Site:
    """Install everything for a node with each of these GPUs, and start an operator that waits briefly."""
    software = await install(cluster, env)
    nodes = await software.nodes(*gpus)
    await driver(cluster, software, **(spec or {}))
    await started(cluster, **seconds)
    return Site(cluster=cluster, software=software, nodes=nodes)


__all__ = ["POLICY", "Site", "driver", "profiles", "site", "started"]
