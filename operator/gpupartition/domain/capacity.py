"""How many devices of each profile there are, and how many of them are allocated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from gpupartition.api.v1alpha1 import ProfileCapacity
from gpupartition.domain import quantity
from gpupartition.domain.pool import Device, read_device

Stock = tuple[tuple[str, int, int], ...]
"""Of each profile: how many devices, and how many of them are allocated."""


def profile_of(device: Device) -> str:
    """What a device is called among its equals: its published profile, or how much memory it has."""
    published = next((v.get("string") for k, v in sorted(device.attributes.items()) if k.endswith("profile")), None)
    if published:
        return str(published)
    memory = next((v for k, v in sorted(device.capacity.items()) if k.endswith("memory")), None)
    return quantity.render(memory) if memory is not None else "device"


def stock_of(slices: Iterable[Mapping[str, Any]], claims: Iterable[Mapping[str, Any]], *, driver: str) -> Stock:
    """Count published devices and those that some claim has, but for retired ones. A shared device counts once."""
    there: Counter[str] = Counter()
    profiles: dict[tuple[str, str], str] = {}
    for body in slices:
        for device in map(read_device, body["spec"].get("devices", ())):
            if device.retired:
                continue
            profile = profile_of(device)
            profiles[body["spec"]["pool"]["name"], device.name] = profile
            there[profile] += 1
    taken = {
        (result["pool"], result["device"])
        for claim in claims
        for result in claim["status"]["allocation"].get("devices", {}).get("results", ())
        if result["driver"] == driver
    }
    allocated = Counter(profiles[key] for key in taken if key in profiles)
    return tuple((profile, number, allocated[profile]) for profile, number in sorted(there.items()))


def by_profile(stocks: Iterable[Stock]) -> list[ProfileCapacity]:
    """Add up what there is in several places, sorted by profile."""
    total: Counter[str] = Counter()
    allocated: Counter[str] = Counter()
    for stock, times in Counter(stocks).items():  # the nodes of a fleet are much alike
        for profile, number, taken in stock:
            total[profile] += number * times
            allocated[profile] += taken * times
    return [ProfileCapacity(profile=p, total=n, allocated=allocated[p]) for p, n in sorted(total.items())][:64]
