"""Nodes whose GPUs are published in one pool, so that one device may span several of them (KEP-4815: multi-host devices).

Counters keep apart only what is in one pool. So the pool of a group has the devices of all its nodes, and beside the counters of their GPUs
one counter for each node: a device on a node takes one of it, and a device that spans nodes takes all of each. A device may draw on two
counter sets at most (ResourceSliceMaxDeviceCounterConsumptionsPerDevice, 1.35 to 1.37): its GPU's, and that of the nodes.

A pool is written as one. So one node of the group leads: its record has the pool, and the others follow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gpupartition.domain.objects import Object
from gpupartition.domain.pool import NODES, Device, Pool

PLACES: Final = 1_000_000  # what a node's counter has: more than any node has devices
MAX_NODES: Final = 32  # ResourceSliceMaxCountersPerCounterSet
HOSTNAME: Final = "kubernetes.io/hostname"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The group of a node.

    `leader` has the pool in its record; `former` is whose record has it where the leader's has not, or not yet what became of it (leading.py).
    `members` are the Nodes in the pool, by name. `kept_out`: why the node that was asked about is neither. `skipped`: a member that somebody
    asked to leave alone. `settled`: the fingerprint that both the leader and the node that was asked about were verified with:
    while slices are restored, or retired devices taken away, they have it still.
    """

    name: str
    leader: str
    former: str = ""
    settled: str = ""
    members: Sequence[Object] = ()
    kept_out: str = ""
    skipped: str = ""

    @property
    def names(self) -> frozenset[str]:
        """Those of its members."""
        return frozenset(str(member["metadata"]["name"]) for member in self.members)


def group_of(spec: Mapping[str, Any]) -> str:
    """The group whose pool a ResourceSlice is a part of, by the pool's name; "" for that of one node, or of somebody else."""
    driver, pool = str(spec["driver"]), str(spec["pool"]["name"])
    return pool.removeprefix(f"{driver}/") if pool.startswith(f"{driver}/") and not spec.get("nodeName") else ""


def node_key(node: str) -> str:
    """What a node's counter, and what is on it, is called: names of nodes are longer than names of devices may be."""
    return f"n{hashlib.sha256(node.encode()).hexdigest()[:10]}"


def on_nodes(pool: Pool) -> frozenset[str]:
    """The keys of the nodes that the devices of a pool are on."""
    return frozenset(key for device in pool.devices for key in device.costs.get(NODES, ()))


def joined(
    name: str, label: str, parts: Mapping[str, Pool], hostnames: Mapping[str, str], sizes: Iterable[int]
) -> Pool:
    """The pool of a group from the pools of its nodes, by their names. Nodes in the order of their names are next to each other."""
    nodes = sorted(parts)
    devices = [_on(node, device) for node in nodes for device in parts[node].devices]
    for size in sorted(set(sizes)):
        devices += [_over(some, label, name, parts, hostnames) for some in _blocks(nodes, size)]
    counters = {f"{gpu}-{node_key(node)}": amounts for node in nodes for gpu, amounts in parts[node].counters.items()}
    places = {NODES: {node_key(node): PLACES for node in nodes}} if nodes else {}
    return Pool(devices=tuple(devices), counters=counters | places, group=name)


def _on(node: str, device: Device) -> Device:
    key = node_key(node)
    costs = {f"{gpu}-{key}": amounts for gpu, amounts in device.costs.items()}
    return replace(device, name=f"{device.name}-{key}", costs=costs | {NODES: {key: 1}}, place={"nodeName": node})


def _blocks(nodes: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """Which nodes a device of this many spans: none is in two, so that none strands another one of its size."""
    return (nodes[start : start + size] for start in range(0, len(nodes) - size + 1, size))


def _over(
    nodes: Sequence[str], label: str, group: str, parts: Mapping[str, Pool], hostnames: Mapping[str, str]
) -> Device:
    """All GPUs of these nodes as one device. A selector of several nodes by name is not to be had (matchFields takes one)."""
    hosts = [hostnames[node] for node in nodes]
    attributes: dict[str, Any] = {
        "profile": {"string": f"{len(nodes)}nodes"},
        "nodes": {"int": len(nodes)},
        "gpus": {"int": sum(len(parts[node].counters) for node in nodes)},
    }
    devices = [device for node in nodes for device in parts[node].devices]
    products = {str(d.attributes["productName"]["string"]) for d in devices}
    attributes |= {"productName": {"string": products.pop()}} if len(products) == 1 else {}
    memory = sum(amounts.get("memory", 0) for node in nodes for amounts in parts[node].counters.values())
    selector = [
        {"key": label, "operator": "In", "values": [group]},
        {"key": HOSTNAME, "operator": "In", "values": hosts},
    ]
    mark = hashlib.sha256("/".join([*nodes, *hosts]).encode()).hexdigest()[:10]
    return Device(
        name=f"{len(nodes)}nodes-{mark}",
        capacity={"memory": memory} if memory else {},
        costs={NODES: {node_key(node): PLACES for node in nodes}},
        attributes=attributes,
        place={"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": selector}]}},
    )


def over_several(pool: Pool, node: str) -> list[Device]:
    """The devices of a pool that span this node and others."""
    return [d for d in pool.devices if node_key(node) in d.costs.get(NODES, ()) and "nodeName" not in d.place]


def of_node(pool: Pool, node: str) -> Pool:
    """What of a pool is on one of its nodes, as if it were that node's own. A device that spans nodes stands on each of its GPUs."""
    if not any(device.place for device in pool.devices):
        return pool
    own = [device for device in pool.devices if device.place.get("nodeName") == node]
    gpus = {gpu: device for device in reversed(own) for gpu in device.costs if gpu != NODES}
    counters = {gpu: amounts for gpu, amounts in pool.counters.items() if gpu in gpus}
    shares = [
        replace(
            device,
            attributes={**gpus[gpu].attributes, **device.attributes},
            capacity={"memory": amounts["memory"]} if "memory" in amounts else {},
            costs={gpu: amounts},
        )
        for device in over_several(pool, node)
        for gpu, amounts in counters.items()
    ]
    return replace(pool, devices=(*own, *shares), counters=counters)
