"""What AMD's DRA driver announces: names, attributes and capacities of v1.0.

Without the feature gate AutoPartition: what was there when it started, each GPU as a whole or in its partitions, all in one slice and without
counters. With it: each mode into which a GPU could be brought, one of which excludes the others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from testbed.drivers.amd_gpus import SIMDS, AmdGpu
from testbed.drivers.example import quantity

DRIVER: Final = "gpu.amd.com"
MIB: Final = 1 << 20
FIRST_RENDER: Final = 128  # the number of the first render node; the card's number is what comes after
DRIVER_VERSION: Final = "6.12.12"
AUTO_PARTITION: Final = (
    # compute mode, memory mode, partitions: fixed in the driver, whatever the GPU
    ("spx", "nps1", 1),
    ("dpx", "nps1", 2),
    ("dpx", "nps2", 2),
    ("qpx", "nps1", 4),
    ("cpx", "nps1", 8),
    ("cpx", "nps4", 8),
)
MOST_DEVICES: Final = 64  # in a slice whose devices consume counters
MOST_COUNTER_SETS: Final = 8  # in a slice

DEVICE: Final = re.compile(r"gpu-(?P<card>\d+)-(?P<render>\d+)")
AUTO_DEVICE: Final = re.compile(r"gpu-(?P<index>\d+)-[a-z]+-nps\d")

Object = dict[str, Any]


def draw(gpus: Sequence[AmdGpu], places: Sequence[int] | None = None) -> list[Object]:
    """The contents of the pool's slices: one, with what is there of the GPUs in these places (None: all)."""
    there = range(len(gpus)) if places is None else places
    devices = [_device(gpus[index], index, minor) for index in there for minor in gpus[index].minors]
    return [{"devices": sorted(devices, key=lambda device: str(device["name"]))}]


def draw_auto(gpus: Sequence[AmdGpu]) -> list[Object]:
    """The contents of the pool's slices with AutoPartition: counters and devices apart."""
    cut = [index for index, gpu in enumerate(gpus) if gpu.memory]
    counters = [{"name": f"gpu-{index}-mutex", "counters": {"partition-mode": {"value": "1"}}} for index in cut]
    devices = [
        each
        for index, gpu in enumerate(gpus)
        for each in (_modes(gpu, index) if gpu.memory else [_device(gpu, index, gpu.minors[0])])
    ]
    return [
        *({"sharedCounters": part} for part in _parts(counters, MOST_COUNTER_SETS)),
        *({"devices": part} for part in _parts(devices, MOST_DEVICES)),
    ]


def device_name(minor: int) -> str:
    """By the numbers of its device files, such as gpu-0-128."""
    return f"gpu-{minor}-{FIRST_RENDER + minor}"


def meant(device: str, gpus: Sequence[AmdGpu], places: Sequence[int] | None = None) -> int | None:
    """The GPU of a device, as the device files are numbered now; None for what is not there (any more), or in none of these places."""
    if auto := AUTO_DEVICE.fullmatch(device):
        return int(auto["index"]) if int(auto["index"]) < len(gpus) else None
    found = DEVICE.fullmatch(device)
    minor = int(found["card"]) if found else -1
    there = range(len(gpus)) if places is None else places
    return next((index for index in there if minor in gpus[index].minors), None)


def _common(gpu: AmdGpu, index: int) -> Object:
    domain, slot = divmod(index, 8)
    return {
        "productName": {"string": gpu.product},
        "deviceID": {"string": gpu.model.pci_id},
        "driverVersion": {"version": DRIVER_VERSION},
        "driverVersionFull": {"string": DRIVER_VERSION},
        "numaNode": {"int": slot // 4},
        "resource.kubernetes.io/pciBusID": {"string": f"{domain:04x}:{0x05 + 0x20 * slot:02x}:00.0"},
        "resource.kubernetes.io/pcieRoot": {"string": f"pci{domain:04x}:{0x20 * slot:02x}"},
    }


def _device(gpu: AmdGpu, index: int, minor: int) -> Object:
    profile = {"partitionProfile": {"string": f"{gpu.compute}_{gpu.memory}".lower()}} if gpu.memory else {}
    return {
        "name": device_name(minor),
        "attributes": {"type": {"string": _type(gpu.parts)}, **profile, **_common(gpu, index)},
        "capacity": {name: {"value": value} for name, value in _amounts(gpu, gpu.parts).items()},
    }


def _modes(gpu: AmdGpu, index: int) -> list[Object]:
    bus = _common(gpu, index)["resource.kubernetes.io/pciBusID"]
    made = []
    for compute, memory, parts in AUTO_PARTITION:
        whole, share = ({"partitions": str(count), **_amounts(gpu, parts // count)} for count in (parts, 1))
        device: Object = {
            "name": f"gpu-{index}-{compute}-{memory}",
            "attributes": {
                "type": {"string": _type(parts)},
                "computePartition": {"string": compute},
                "memoryPartition": {"string": memory},
                "gpuIndex": {"int": index},
                "pciAddr": bus,
                **_common(gpu, index),
            },
            "capacity": {name: {"value": value} for name, value in whole.items()},
            "consumesCounters": [{"counterSet": f"gpu-{index}-mutex", "counters": {"partition-mode": {"value": "1"}}}],
        }
        if parts > 1:
            device["allowMultipleAllocations"] = True
            for name, value in share.items():
                device["capacity"][name]["requestPolicy"] = {"default": value, "validValues": [value]}
        made.append(device)
    return made


def _amounts(gpu: AmdGpu, parts: int) -> dict[str, str]:
    """What one of so many equal parts has."""
    units = gpu.model.units // parts
    return {
        "memory": quantity(gpu.model.memory * MIB // parts),
        "computeUnits": str(units),
        "simdUnits": str(units * SIMDS),
    }


def _type(parts: int) -> str:
    return "amdgpu" if parts == 1 else "amdgpu-partition"


def _parts(items: Sequence[Object], size: int) -> list[list[Object]]:
    return [list(items[start : start + size]) for start in range(0, len(items), size)]
