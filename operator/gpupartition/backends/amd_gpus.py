"""The GPUs of a node under AMD's DRA driver: read from what it publishes, and what it was known to publish.

Its devices are named after minor numbers, which shift with each change: a GPU is known by where it is plugged in. By its attribute
partitionProfile a device says in which modes its GPU is. A GPU that was published and no longer is has died: it stays on record, marked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from gpupartition.domain.amd_modes import Mode
from gpupartition.domain.pool import Device, Pool

FIXED: Final = "fixed"  # the kind of a device whose GPU is in no mode that it could leave
_OTHER: Final = "other"
_BUS: Final = "resource.kubernetes.io/pciBusID"
_MISSING: Final = "missing"  # an attribute of our own, in records alone
_AUTO: Final = re.compile(r"^gpu-\d+-[a-z]px-nps\d$")


@dataclass(frozen=True, slots=True, order=True)
class AmdGpu:
    """One GPU: where it is plugged in, and its product."""

    bus: str
    product: str


Gpus = tuple[AmdGpu, ...]
"""In the order of their PCI addresses, by which they are numbered."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How one GPU is cut: the modes, and how many partitions that makes."""

    mode: Mode
    partitions: int


Cuts = tuple[Cut | None, ...]
"""One for each GPU; None: it is left as it is."""


# ------------------------------------------------------------------------------------------------------------- what is published


def published(pool: Pool) -> Pool:
    """The pool as this driver is compared: devices of GPUs, by modes. Names, numbers and sizes are left out: they shift, or are rounded."""
    return Pool(devices=tuple(map(_device, pool.devices)), generation=pool.generation, problem=pool.problem)


def _device(device: Device) -> Device:
    bus, profile = _bus(device), _text(device, "partitionProfile").lower()
    return Device(
        name=device.name,
        shared=device.shared,
        attributes=_attributes(bus, _text(device, "productName"), profile),
        gpu=bus or device.name,
        kind=(profile or FIXED) if bus else _OTHER,
    )


def _bus(device: Device) -> str:
    return _text(device, _BUS) or _text(device, "pciAddr") or _text(device, "parentPciAddr")  # the others before 1.0


def _text(device: Device, name: str) -> str:
    return device.text(name, f"gpu.amd.com/{name}")


@lru_cache(maxsize=4096)  # of all partitions of a GPU
def _attributes(bus: str, product: str, profile: str) -> Mapping[str, Any]:
    told = {"productName": product, "partitionProfile": profile, _BUS: bus}
    return {key: {"string": text} for key, text in told.items() if text}


def automatic(pool: Pool) -> str:
    """A device that the driver publishes for each mode that a GPU could be in, to cut the GPU itself when it is claimed; "" without one."""
    found = (d.name for d in pool.devices if _AUTO.match(d.name) or (d.shared and _text(d, "computePartition")))
    return min(found, default="")


def gpus_on(*pools: Pool) -> Gpus:
    """The GPUs of these pools, as this driver is compared, the first that names one being right about its product."""
    found: dict[str, AmdGpu] = {}
    for pool in pools:
        for bus, attributes in _told(pool):
            if bus not in found:
                found[bus] = AmdGpu(bus, str(attributes.get("productName", {}).get("string", "")))
    return tuple(found[bus] for bus in sorted(found))


def there_of(gpus: Gpus, seen: Pool, known: Pool) -> Gpus:
    """Those of these GPUs that the node has now. While nothing is published that is what was known last."""
    names = {bus for bus, _ in _told(seen)} if seen.usable else set()
    gone = {bus for bus, attributes in _told(known) if _MISSING in attributes}
    return tuple(gpu for gpu in gpus if (gpu.bus in names if names else gpu.bus not in gone))


def _told(pool: Pool) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each GPU, by its place, with what one of its devices says."""
    yield from {device.gpu: device.attributes for device in pool.devices if device.kind != _OTHER}.items()
    yield from pool.kept.items()


def cuts_now(gpus: Gpus, *pools: Pool) -> Cuts:
    """How these GPUs are cut by the first pool that says so; None for one of which none does, and for one that cannot be cut."""
    found: dict[str, Cut | None] = {}
    for pool in pools:
        for bus, kinds in pool.kinds.items():
            found.setdefault(bus, _cut(kinds))
        for bus, attributes in pool.kept.items():
            mode = Mode.read(_text(Device(name=bus, attributes=attributes), "partitionProfile"))
            found.setdefault(bus, Cut(mode, 0) if mode is not None else None)
    return tuple(found.get(gpu.bus) for gpu in gpus)


def _cut(kinds: Sequence[str]) -> Cut | None:
    mode = Mode.read(kinds[0])
    return Cut(mode, len(kinds)) if mode is not None and len(set(kinds)) == 1 else None


# ------------------------------------------------------------------------------------------------------------- what is expected


@lru_cache(maxsize=1024)
def expected(gpus: Gpus, cuts: Cuts, there: Gpus) -> Pool:
    """What will be published once these GPUs, of which those are there, are cut so; names are made up, and do not count."""
    devices: list[Device] = []
    kept: dict[str, Any] = {}
    for gpu, cut in zip(gpus, cuts, strict=True):
        attributes = _attributes(gpu.bus, gpu.product, cut.mode.name if cut is not None else "")
        attributes = attributes if gpu in there else {**attributes, _MISSING: {"bool": True}}
        if cut is None:
            kept[gpu.bus] = attributes
        else:
            devices += _partitions(gpu, cut, attributes)
    return Pool(devices=tuple(devices), kept=kept)


def _partitions(gpu: AmdGpu, cut: Cut, attributes: Mapping[str, Any]) -> Iterator[Device]:
    profile = cut.mode.name
    for number in range(cut.partitions):
        name = f"{re.sub('[^0-9a-z]', '-', gpu.bus.lower())}-{profile.replace('_', '-')}-{number}"
        yield Device(name=name, attributes=attributes, gpu=gpu.bus, kind=profile)


def as_it_is(gpus: Gpus, cuts: Cuts, seen: Pool) -> Pool:
    """What is published of the GPUs that are cut so, under the names that it has: those of whoever holds a device."""
    wanted = expected(gpus, cuts, gpus)
    there = {device.gpu for device in wanted.devices}
    return replace(wanted, devices=tuple(device for device in seen.devices if device.gpu in there))


def disturbed(now: Pool, then: Pool) -> frozenset[str]:
    """Present devices that a change takes away from whoever holds them.

    Those of the GPUs that change, where all are to be alike. All of the node, where its memory mode changes, because the kernel's driver is
    loaded anew; and where GPUs are to differ, because they are told by numbers, and AMD's library may count them in another order.
    """
    changed = now.recut(then)
    if not changed:
        return frozenset()
    wanted = {device.kind for device in then.devices}
    if then.kept or len(wanted) > 1 or _memory(now) - _memory(then):
        return frozenset(d.name for d in now.devices)
    return frozenset(d.name for d in now.devices if d.gpu in changed)


def _memory(pool: Pool) -> set[str]:
    modes = (Mode.read(device.kind) for device in pool.devices)
    return {mode.memory for mode in modes if mode is not None}
