"""What NVIDIA's DRA driver announces of GPUs that were cut before it started (static MIG): names, attributes and capacities of v0.5.

A GPU in MIG mode is not announced as a whole, and with MIG mode and no instance on it not at all. There are no counters: what was not cut does
not exist. Everything is one slice.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final

from testbed.drivers.example import quantity
from testbed.drivers.gpus import Gpu, Instance, memory_mib, spelled

DRIVER: Final = "gpu.nvidia.com"
MIB: Final = 1 << 20
ENGINES: Final = {
    # capacity: name in the table of MIG profiles
    "multiprocessors": "multiprocessors",
    "copyEngines": "copy-engines",
    "decoders": "decoders",
    "encoders": "encoders",
    "jpegEngines": "jpeg-engines",
    "ofaEngines": "ofa-engines",
}
COMPUTE_CAPABILITY: Final = {"Ampere": "8.0.0", "Hopper": "9.0.0", "Blackwell": "10.0.0"}
RELEASES: Final = {False: ("580.65.6", "13.0.0", 0), True: ("550.54.15", "12.4.0", 64)}
"""Of the driver, by `other_names`: its version, CUDA's, and how many MiB less it says that there are."""

Object = dict[str, Any]


def draw(
    node: str,
    gpus: Sequence[Gpu],
    places: Sequence[int] | None = None,
    *,
    other_names: bool = False,
    whole_too: bool = False,
) -> list[Object]:
    """The contents of the pool's slices, of the GPUs in these places (None: all).

    `whole_too`: announces cut GPUs as a whole as well, as some releases did.
    """
    devices: list[Object] = []
    for index in range(len(gpus)) if places is None else places:
        gpu = gpus[index]
        common = _common(gpu, index, other_names)
        if not gpu.mig or whole_too:
            devices.append(_whole(node, gpu, index, common, other_names))
        devices += [_part(node, gpu, index, instance, common, other_names) for instance in gpu.instances]
    return [{"devices": sorted(devices, key=lambda device: str(device["name"]))}]


def device_name(index: int, gpu: Gpu, instance: Instance, *, other_names: bool = False) -> str:
    """Such as gpu-0-mig-1g10gb-19-0: profile, number of the profile on this GPU, first memory slice."""
    profile = spelled(instance.profile, other=other_names).replace(".", "").replace("+", "-")
    return f"gpu-{index}-mig-{profile}-{gpu.profile(instance).gi_profile_id}-{instance.start}"


DEVICE: Final = re.compile(r"gpu-(?P<index>\d+)(-mig-.+-(?P<profile>\d+)-(?P<start>\d+))?")


def meant(device: str, gpus: Sequence[Gpu]) -> tuple[int, Instance | None] | None:
    """The GPU of a device, and its instance unless it is a whole GPU; None for what is not there (any more)."""
    found = DEVICE.fullmatch(device)
    if not found or int(found["index"]) >= len(gpus):
        return None
    index = int(found["index"])
    if found["profile"] is None:
        return index, None
    wanted = int(found["profile"]), int(found["start"])
    there: Iterator[Instance] = (
        each for each in gpus[index].instances if (gpus[index].profile(each).gi_profile_id, each.start) == wanted
    )
    instance = next(there, None)
    return (index, instance) if instance else None


def _common(gpu: Gpu, index: int, other_names: bool) -> Object:
    driver, cuda, _ = RELEASES[other_names]
    architecture = gpu.model.architecture if gpu.model else "Ada Lovelace"
    bus = f"{0x1B + index:02x}"
    return {
        "productName": {"string": gpu.product},
        "brand": {"string": "Nvidia"},
        "architecture": {"string": architecture},
        "cudaComputeCapability": {"version": COMPUTE_CAPABILITY.get(architecture, "8.9.0")},
        "driverVersion": {"version": driver},
        "cudaDriverVersion": {"version": cuda},
        "resource.kubernetes.io/pciBusID": {"string": f"0000:{bus}:00.0"},
        "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{bus}"},
    }


def _whole(node: str, gpu: Gpu, index: int, common: Object, other_names: bool) -> Object:
    own = {"type": {"string": "gpu"}, "uuid": {"string": gpu.identity(node, index)}}
    memory = {"value": quantity((memory_mib(gpu) - RELEASES[other_names][2]) * MIB)}
    return {"name": f"gpu-{index}", "attributes": {**own, **common}, "capacity": {"memory": memory}}


def _part(node: str, gpu: Gpu, index: int, instance: Instance, common: Object, other_names: bool) -> Object:
    profile = gpu.profile(instance)
    parent = gpu.identity(node, index)
    engines = dict(profile.engines)
    share = memory_mib(gpu) * profile.size // (gpu.model.memory_slices if gpu.model else 1)
    memory = (profile.memory or share) - RELEASES[other_names][2]
    capacity = {name: {"value": str(engines.get(key, 0))} for name, key in ENGINES.items()}
    slots = range(instance.start, instance.start + profile.size)
    return {
        "name": device_name(index, gpu, instance, other_names=other_names),
        "attributes": {
            "type": {"string": "mig"},
            "uuid": {"string": f"MIG-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{profile.gi_profile_id}.{instance}.{parent}')}"},
            "parentUUID": {"string": parent},
            "profile": {"string": spelled(instance.profile, other=other_names)},
            **common,
        },
        "capacity": {
            **capacity,
            "memory": {"value": quantity(memory * MIB)},
            **{f"memorySlice{slot}": {"value": "1"} for slot in slots},
        },
    }
