"""Nodes in racks, whose GPUs are published together: what their tests share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tests.e2e.claims import device_class
from tests.e2e.publishing import Site, gpus
from tests.e2e.rollout import apply, operator

from gpupartition.names import API_VERSION

if TYPE_CHECKING:
    from testbed.programs import Program
    from tests.e2e.claims import Users
    from tests.e2e.harness import Cluster


RACK: Final = "example.com/rack"


@dataclass(frozen=True, kw_only=True)
class Racks(Site):
    """Nodes in racks, whose GPUs can work on one job."""

    racks: tuple[str, ...] = ()

    def in_rack(self, rack: str) -> Site:
        """What publishing.py says of the pool of the first node, it says here of that of a rack."""
        return replace(self, nodes=(rack,))

    def users_anywhere(self) -> Users:
        return replace(self.users(), node="")


async def racks(
    cluster: Cluster,
    *,
    each: int,
    sizes: tuple[int, ...] = (2,),
    count: int = 1,
    program: Program | None = None,
    **seconds: float,
) -> Racks:
    """Racks of so many nodes with two GPUs, and an operator unless there is one."""
    program = program or await operator(cluster, **seconds)
    driver = await device_class(cluster, f"{cluster.name}.racks.example")
    publish = {
        "driverName": driver,
        "inventory": {"gpus": [gpus(2)]},
        "multiNode": {"groupLabel": RACK, "sizes": list(sizes)},
    }
    spec = {"type": "Publish", "publish": publish, "maxUnavailable": "100%"}
    await apply(
        cluster,
        {"apiVersion": API_VERSION, "kind": "GpuPartitionDriver", "metadata": {"name": driver}, "spec": spec},
    )
    names = [f"{cluster.name}-rack-{number}" for number in range(count)]
    nodes: list[str] = []
    for name in names:
        nodes += await cluster.nodes(each, pool=driver, labels={RACK: name})
    return Racks(
        cluster=cluster,
        driver=driver,
        namespace=await cluster.namespace(),
        program=program,
        nodes=tuple(nodes),
        racks=tuple(names),
    )


SPAN: Final = "has(mine.nodes) && mine.nodes == {}"
"""A device over so many nodes."""
