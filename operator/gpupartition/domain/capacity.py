"""How many devices of each profile there are, and how many of them are allocated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from gpupartition.api.v1alpha1 import ProfileCapacity
from gpupartition.domain import quantity
from gpupartition.domain.pool import Device, read_device


def profile_of(device: Device) -> str:
    """What a device is called among its equals: its published profile, or how much memory it has."""
    published = next((v.get("string") for k, v in sorted(device.attributes.items()) if k.endswith("profile")), None)
    if published:
        return str(published)
    memory = next((v for k, v in sorted(device.capacity.items()) if k.endswith("memory")), None)
    return quantity.render(memory) if memory is not None else "device"


def by_profile(
    slices: Iterable[Mapping[str, Any]], claims: Iterable[Mapping[str, Any]], *, driver: str
) -> list[ProfileCapacity]:
    """Count published devices and those that some claim has, sorted by profile. A shared device counts once."""
    total: Counter[str] = Counter()
    profiles: dict[tuple[str, str], str] = {}
    for body in slices:
        for device in body["spec"].get("devices", ()):
            profile = profile_of(read_device(device))
            profiles[body["spec"]["pool"]["name"], device["name"]] = profile
            total[profile] += 1
    taken = {
        (result["pool"], result["device"])
        for claim in claims
        for result in claim["status"]["allocation"].get("devices", {}).get("results", ())
        if result["driver"] == driver
    }
    allocated = Counter(profiles[key] for key in taken if key in profiles)
    return [ProfileCapacity(profile=p, total=n, allocated=allocated[p]) for p, n in sorted(total.items())][:64]
