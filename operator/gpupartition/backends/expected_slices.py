"""What drivers will publish once a layout is there, as far as that is known before: the slices of a pool, for those who ask what will fit.

Where this operator publishes itself that is all. Other drivers choose names, places or sizes themselves, and say more of a device than anybody
else knows: what is missing is marked as unknown, and what hangs on it is unknown too. GPUs that a change leaves alone stay as they are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from gpupartition.api.v1alpha1 import DriverType
from gpupartition.backends import slices
from gpupartition.backends.example_limits import GI
from gpupartition.backends.nvidia_gpus import WHOLE
from gpupartition.domain import amd_modes, quantity
from gpupartition.domain.allocator.selectors import UNKNOWN
from gpupartition.domain.objects import Object
from gpupartition.domain.pool import Device, Pool

Content = dict[str, Any]
"""The part of a slice's spec that has the counters or the devices."""


def expected_slices(
    kind: DriverType, driver_name: str, pool_name: str, node: str, *, now: Pool, then: Pool, present: Iterable[Object]
) -> list[dict[str, Any]]:
    """The slices of a node's pool with this layout. `present` are those that it has `now`."""
    contents = list(_contents(kind, then.to_json()))
    if kind in _BY_GPU:
        contents = [{"devices": [*_left_alone(now, then, present), *_new(kind, now, then)]}]
    count = len(contents)
    pool = {"name": pool_name, "generation": 1, "resourceSliceCount": count}
    return [
        {
            "metadata": {"name": f"{driver_name}/{pool_name}/{number:05}"},
            "spec": {"driver": driver_name, **({} if then.group else {"nodeName": node}), "pool": pool, **content},
        }
        for number, content in enumerate(contents)
    ]


@lru_cache(maxsize=256)  # the nodes of a fleet are to have few different pools
def _contents(kind: DriverType, text: str) -> Sequence[Content]:
    pool = Pool.from_json(text)
    return _CONTENTS[kind](pool) if kind in _CONTENTS else ()


# -------------------------------------------------------------------------------------------------------------- by this operator


def _ours(pool: Pool) -> Sequence[Content]:
    anywhere = {"metadata": {"name": "node", "uid": ""}}
    target = slices.Target(
        driver="driver", pool_name="pool", nodes=[anywhere], pool=pool, assignment=None, group=pool.group
    )
    about = {"driver", "nodeName", "pool"}
    return [{k: v for k, v in body["spec"].items() if k not in about} for body in target.bodies(1, "")]


# ------------------------------------------------------------------------------------------------------------ by the example driver

_PART: Final = re.compile(r"gpu-(?P<gpu>\d+)(?:-partition-(?P<part>\d+)|-(?P<full>full))?")
_STEPS: Final = {"memory": GI, "compute": 1}  # in which it gives away shared devices


def _example(pool: Pool) -> Sequence[Content]:
    sets = [{"name": name, "counters": slices.quantities(each)} for name, each in pool.counters.items()]
    devices = [_example_device(device) for device in pool.devices]
    return [*([{"sharedCounters": sets}] if sets else ()), {"devices": devices}]


def _example_device(device: Device) -> Content:
    capacity: Content = slices.quantities(device.capacity)
    for name, step in _STEPS.items() if device.shared else ():
        most, least = capacity[name]["value"], quantity.render(step)
        bounds = {"min": least, "max": most, "step": least}
        capacity[name] |= {"requestPolicy": {"default": most, "validRange": bounds}}
    found = _PART.fullmatch(device.name)
    attributes: Content = {}
    if found is not None:
        attributes["index"] = {"int": int(found["gpu"])}
        attributes |= {"partition": {"int": int(found["part"])}} if found["part"] else {}
        attributes |= {"full": {"bool": True}} if found["full"] else {}
    costs = [{"counterSet": name, "counters": slices.quantities(cost)} for name, cost in device.costs.items()]
    return {
        "name": device.name,
        "attributes": attributes,
        "capacity": capacity,
        "allowMultipleAllocations": device.shared,
        UNKNOWN: ("attributes",),
        **({"consumesCounters": costs} if costs else {}),
    }


# ------------------------------------------------------------------------------------------------------ by drivers that choose places


def _left_alone(now: Pool, then: Pool, present: Iterable[Object]) -> Iterator[Object]:
    """What is published of GPUs of which the layout changes nothing, or says nothing."""
    changed = _changed(now, then)
    gpus = {device.name: device.gpu for device in now.devices}
    for body in present:
        for device in body["spec"].get("devices") or ():
            if gpus.get(device["name"]) not in changed:
                yield device


def _new(kind: DriverType, now: Pool, then: Pool) -> Iterator[Content]:
    told, changed = _BY_GPU[kind], _changed(now, then)
    numbers: Counter[tuple[str, str]] = Counter()
    for device in then.devices:
        if device.gpu in changed:
            numbers[device.gpu, device.kind] += 1
            name = f"{device.kind} of {device.gpu}, number {numbers[device.gpu, device.kind]}"
            attributes = {**device.attributes, **told(device)}
            yield {"name": name, "attributes": attributes, UNKNOWN: ("attributes", "capacity")}


def _changed(now: Pool, then: Pool) -> frozenset[str]:
    return now.recut(then) & then.gpus


def _nvidia(device: Device) -> Content:
    return {"type": {"string": "gpu" if device.kind == WHOLE else "mig"}}


def _amd(device: Device) -> Content:
    whole = device.kind.startswith(f"{amd_modes.WHOLE.compute.lower()}_")
    return {"type": {"string": "amdgpu" if whole else "amdgpu-partition"}}


_CONTENTS: Final[Mapping[DriverType, Callable[[Pool], Sequence[Content]]]] = {
    DriverType.PUBLISH: _ours,
    DriverType.EXAMPLE_DRIVER: _example,
}
_BY_GPU: Final[Mapping[DriverType, Callable[[Device], Content]]] = {
    DriverType.NVIDIA_MIG: _nvidia,
    DriverType.AMD_DCM: _amd,
}
"""What such a driver says of a device by its kind."""
