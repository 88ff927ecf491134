"""Of which kinds the devices of a pool are, for each type of driver: by what claims can tell them apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gpupartition.api.v1alpha1 import DriverType
from gpupartition.backends.nvidia_gpus import WHOLE
from gpupartition.domain import amd_modes
from gpupartition.domain.device_classes import Offer, name_of, part
from gpupartition.domain.pool import Device, Pool

MEMORY: Final = "memory"


def offers(kind: DriverType, pool: Pool) -> dict[str, Offer]:
    """The kinds of devices that the pool of such a driver has, by name, in the order in which they are published."""
    found: dict[str, Offer] = {}
    for device in pool.devices:
        offer = _OFFERS[kind](device, pool)
        if offer is not None:
            found.setdefault(offer.name, offer)
    return found


def _publish(device: Device, pool: Pool) -> Offer | None:  # noqa: ARG001
    profile = device.text("profile")
    return Offer(name=name_of(profile), texts={"profile": profile}) if profile else None


def _example(device: Device, pool: Pool) -> Offer:
    """It says of a part nothing that a whole does not, but how large it is."""
    whole = sum(pool.counters[name][MEMORY] for name in device.costs) or device.capacity[MEMORY]
    parts = whole // device.capacity[MEMORY]
    return Offer(name=part(parts), amounts={MEMORY: device.capacity[MEMORY]})


def _nvidia(device: Device, pool: Pool) -> Offer | None:  # noqa: ARG001
    if device.kind == WHOLE:
        return Offer(name=part(1), texts={"type": "gpu"})
    profile = device.text("profile")
    return Offer(name=name_of(profile), texts={"type": "mig", "profile": profile}) if profile else None


def _amd(device: Device, pool: Pool) -> Offer | None:  # noqa: ARG001
    mode = amd_modes.Mode.read(device.kind)
    if mode is None:
        return None
    whole = mode == amd_modes.WHOLE
    return Offer(name=part(1) if whole else name_of(mode.name), texts={"partitionProfile": mode.name})


_OFFERS: Final[Mapping[DriverType, Callable[[Device, Pool], Offer | None]]] = {
    DriverType.PUBLISH: _publish,
    DriverType.EXAMPLE_DRIVER: _example,
    DriverType.NVIDIA_MIG: _nvidia,
    DriverType.AMD_DCM: _amd,
}
