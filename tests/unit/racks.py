"""Nodes that share a pool with the others of their rack."""

from __future__ import annotations

from typing import Any

from tests.unit.published import BACKEND, H100, config, equal
from tests.unit.vendor import policy

from gpupartition.api.v1alpha1 import DriverSpec
from gpupartition.backends.slices import Target
from gpupartition.domain.backend import Cluster, Config, NodeFacts
from gpupartition.domain.groups import HOSTNAME, Group, joined
from gpupartition.domain.pool import Pool

RACK = "example.com/rack"
OWN = config(equal(2)).pool  # two GPUs, each in halves or whole


def node(name: str, rack: str = "a", **labels: str) -> dict[str, Any]:
    said = {RACK: rack, HOSTNAME: f"host-of-{name}", **labels}
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "7", "labels": said}}


def racks(*sizes: int) -> DriverSpec:
    publish = {
        "driverName": "gpu.example.org",
        "inventory": {"gpus": [H100]},
        "multiNode": {"groupLabel": RACK, "sizes": sizes or (2,)},
    }
    return DriverSpec.model_validate({"type": "Publish", "publish": publish})


def pool(*nodes: str, sizes: tuple[int, ...] = (2,), own: Pool = OWN) -> Pool:
    return joined("a", RACK, dict.fromkeys(nodes, own), {n: f"host-of-{n}" for n in nodes}, sizes)


def facts(name: str, *members: str, leader: str = "n1", slices: Any = (), **group: Any) -> NodeFacts:
    of = Group(name="a", leader=leader, members=[node(n) for n in members], **group)
    return NodeFacts(node=node(name), slices=slices, group=of)


def compiled(on: NodeFacts, *layouts: Any) -> Config:
    return BACKEND.compile(racks(), policy(*layouts or (equal(2),)), on, Cluster())


def published(there: Pool, *members: str) -> list[dict[str, Any]]:
    nodes = [node(n) for n in members]
    of = Target(
        driver="gpu.example.org", pool_name="gpu.example.org/a", nodes=nodes, pool=there, assignment="x", group="a"
    )
    return of.bodies(3, "step")


def spans(of: Pool) -> list[str]:
    return [device.name for device in of.devices if "nodeSelector" in device.place]
