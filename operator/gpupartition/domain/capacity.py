"""How many devices of each profile there are, and how many of them are allocated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from gpupartition.api.v1alpha1 import ProfileCapacity
from gpupartition.domain import quantity
from gpupartition.domain.offered import read_device
from gpupartition.domain.pool import Device

Stock = tuple[tuple[str, int, int], ...]
"""Of each profile: how many devices, and how many of them are allocated."""


def profile_of(device: Device) -> str:
    """What a device is called among its equals: its published profile, or how much memory it has."""
    published = next((v.get("string") for k, v in sorted(device.attributes.items()) if k.endswith("profile")), None)
    if published:
        return str(published)
    memory = next((v for k, v in sorted(device.capacity.items()) if k.endswith("memory")), None)
    return quantity.render(memory) if memory is not None else "device"


def profiles_of(devices: Iterable[Mapping[str, Any]]) -> Mapping[str, str]:
    """The profile of each device of a slice, by its name, but for retired ones."""
    return {device.name: profile_of(device) for device in map(read_device, devices) if not device.retired}


def stock_of(
    offered: Iterable[tuple[str, Mapping[str, str]]], claims: Iterable[Mapping[str, Any]], *, driver: str
) -> Stock:
    """Count published devices, given as pool and profiles of each slice, and those that some claim has. A shared device counts once."""
    profiles = {(pool, name): profile for pool, devices in offered for name, profile in devices.items()}
    taken = {
        (result["pool"], result["device"])
        for claim in claims
        for result in claim["status"]["allocation"].get("devices", {}).get("results", ())
        if result["driver"] == driver
    }
    there, allocated = Counter(profiles.values()), Counter(profiles[key] for key in taken if key in profiles)
    return tuple((profile, number, allocated[profile]) for profile, number in sorted(there.items()))


MOST: Final = 512
"""As many profiles as a policy's status has room for."""


def by_profile(stocks: Iterable[Stock]) -> list[ProfileCapacity]:
    """Add up what there is in several places, sorted by profile. Of more than a status may name the last ones are one entry, `and 2 more`."""
    total: Counter[str] = Counter()
    allocated: Counter[str] = Counter()
    for stock, times in Counter(stocks).items():  # the nodes of a fleet are much alike
        for profile, number, taken in stock:
            total[profile] += number * times
            allocated[profile] += taken * times
    found = [ProfileCapacity(profile=p, total=n, allocated=allocated[p]) for p, n in sorted(total.items())]
    if len(found) <= MOST:
        return found
    named, others = found[: MOST - 1], found[MOST - 1 :]
    there, taken = sum(each.total for each in others), sum(each.allocated for each in others)
    return [*named, ProfileCapacity(profile=f"and {len(others)} more", total=there, allocated=taken)]
