"""What ResourceSlices offer: the pool that the scheduler makes of them.

Follows the allocator's rules for pools (k8s.io/dynamic-resource-allocation, structured: GatherPools): the highest generation counts, the pool
is usable only when all slices of it are there, and one bad reference makes all of it invalid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

import orjson

from gpupartition.domain import quantity
from gpupartition.domain.pool import FLEET, Amounts, Device, Pool
from gpupartition.names import TAINT_KEY


def offered_by(slices: Iterable[Mapping[str, Any]]) -> Pool:
    """What the scheduler makes of these ResourceSlices, all of one driver and one pool (an empty iterable: the empty pool)."""
    ordered = sorted(slices, key=lambda s: str(s["metadata"]["name"]))
    generation = max((int(s["spec"]["pool"]["generation"]) for s in ordered), default=0)
    current = [s["spec"] for s in ordered if int(s["spec"]["pool"]["generation"]) == generation]
    attributes = [body.get("attributes", {}) for spec in current for body in spec.get("devices", ())]
    bare = _read(generation, orjson.dumps(list(map(_without_attributes, current))))
    return _labelled(bare, orjson.dumps(attributes)) if any(attributes) else bare


@lru_cache(maxsize=FLEET)
def _read(generation: int, offered: bytes) -> Pool:
    counters: dict[str, Amounts] = {}
    devices: list[Device] = []
    problems: list[str] = []
    contents = orjson.loads(offered)
    for _, counter_sets, bodies in contents:
        for counter_set in counter_sets:
            if counter_set["name"] in counters:
                problems.append(f"counter set {counter_set['name']} is there twice")
            counters[counter_set["name"]] = _amounts(counter_set["counters"])
        devices += [read_device(body) for body in bodies]
    counts = {int(count) for count, *_ in contents}
    if counts and counts != {len(contents)}:
        wanted = "/".join(str(c) for c in sorted(counts))
        problems.append(f"{len(contents)} of {wanted} slices of generation {generation} are there")
    names = Counter(d.name for d in devices)
    problems += [f"device {name} is there twice" for name in sorted(names) if names[name] > 1]
    for device in devices:
        for name, cost in device.costs.items():
            missing = sorted(set(cost) - set(counters.get(name, ())))
            if missing:
                problems.append(f"device {device.name} draws on counter {missing[0]} of {name}, which does not exist")
    return Pool(devices=tuple(devices), counters=counters, generation=generation, problem="; ".join(problems[:3]))


def _without_attributes(spec: Mapping[str, Any]) -> list[Any]:
    """What slices of all nodes of a kind offer: their GPUs differ in serial numbers."""
    devices = [{name: of for name, of in body.items() if name != "attributes"} for body in spec.get("devices", ())]
    return [spec["pool"]["resourceSliceCount"], spec.get("sharedCounters", ()), devices]


@lru_cache(maxsize=FLEET)
def _labelled(bare: Pool, attributes: bytes) -> Pool:
    return bare.labelled(orjson.loads(attributes))


def read_device(device: Mapping[str, Any]) -> Device:
    """One entry of `spec.devices`."""
    capacity, shared = device.get("capacity", {}), bool(device.get("allowMultipleAllocations", False))
    policies = {k: v["requestPolicy"] for k, v in capacity.items() if "requestPolicy" in v} if shared else {}
    costs = {c["counterSet"]: _amounts(c["counters"]) for c in device.get("consumesCounters", ())}
    return Device(
        name=device["name"],
        capacity=_amounts(capacity),
        costs=costs,
        shared=shared,
        attributes=device.get("attributes", {}),
        request_policy=policies,
        retired=any(taint.get("key") == TAINT_KEY for taint in device.get("taints", ())),
        place={name: device[name] for name in _PLACES if name in device},
    )


_PLACES: Final = ("nodeName", "nodeSelector", "allNodes")


def _amounts(values: Mapping[str, Mapping[str, Any]]) -> Amounts:
    return {name: quantity.capped(str(value["value"])) for name, value in values.items()}
