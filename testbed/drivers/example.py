"""The simulated dra-example-driver: what its environment asks for, and the slices that it draws from it.

Names, order, attributes, capacities, counters and request policies are those of kubernetes-sigs/dra-example-driver v0.4.0, profile `gpu`.
Nothing is refused in here: like the real one it offers impossible layouts to the API server, which rejects them.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Number = TypeVar("Number", int, float)

GI: Final = 1 << 30
GPU_MEMORY: Final = 80 * GI  # bytes
GPU_COMPUTE: Final = 100

# What Go's strconv.ParseBool takes; the real driver exits on anything else.
BOOLEANS: Final = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("", "0", "f", "F", "false", "FALSE", "False"), False),
}

BINARY_SUFFIXES: Final = ((1 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki"))


class BadEnvironmentError(ValueError):
    """The driver cannot start with this environment: the real one exits, so its pod crashes in a loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the pod's environment says. `devices` is the number of GPUs, `partitions` 0 means plain whole GPUs."""

    node: str
    driver: str = "gpu.example.com"
    devices: int = 8
    partitions: int = 0
    shared: bool = False
    sync_seconds: float = 30.0
    wipe_seconds: float = 30.0

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Settings:
        """Read the container's environment; raises BadEnvironmentError with every problem at once."""
        problems: list[str] = []

        def number(name: str, default: Number) -> Number:
            try:
                return type(default)(env.get(name) or default)
            except ValueError:
                problems.append(f"{name}={env[name]!r} is not a number")
                return default

        shared = BOOLEANS.get(env.get("GPU_ALLOW_MULTIPLE_ALLOCATIONS", ""))
        if shared is None:
            problems.append(
                f"GPU_ALLOW_MULTIPLE_ALLOCATIONS={env['GPU_ALLOW_MULTIPLE_ALLOCATIONS']!r}: use true or false"
            )
        if not env.get("NODE_NAME"):
            problems.append("NODE_NAME is missing: set it from the field spec.nodeName")
        if env.get("DEVICE_PROFILE", "gpu") != "gpu":
            problems.append(f"DEVICE_PROFILE={env['DEVICE_PROFILE']!r} is not simulated: use gpu")
        settings = cls(
            node=env.get("NODE_NAME", ""),
            driver=env.get("DRIVER_NAME") or "gpu.example.com",
            devices=number("NUM_DEVICES", 8),
            partitions=number("GPU_PARTITIONS", 0),
            shared=bool(shared),
            sync_seconds=number("TESTBED_SYNC_SECONDS", 30.0),
            wipe_seconds=number("TESTBED_WIPE_SECONDS", 30.0),
        )
        if problems:
            raise BadEnvironmentError("; ".join(problems))
        return settings


def draw(settings: Settings) -> list[dict[str, Any]]:
    """The contents of the pool's slices, in order of their index: each holds either `sharedCounters` or `devices`."""
    if settings.partitions <= 0:
        return [{"devices": [_device(settings, gpu, f"gpu-{gpu}") for gpu in range(settings.devices)]}]
    counters = [
        {"name": _counter_set(gpu), "counters": _values(GPU_MEMORY, GPU_COMPUTE)} for gpu in range(settings.devices)
    ]
    devices = [device for gpu in range(settings.devices) for device in _partitioned(settings, gpu)]
    return [{"sharedCounters": counters}, {"devices": devices}]


def quantity(amount: int) -> str:
    """Bytes as the API server writes them back: with the largest binary suffix that leaves a whole number."""
    for unit, suffix in BINARY_SUFFIXES:
        if amount and amount % unit == 0:
            return f"{amount // unit}{suffix}"
    return str(amount)


def _partitioned(settings: Settings, gpu: int) -> Iterator[dict[str, Any]]:
    """All parts of one GPU, then the whole: the order is the scheduler's order of preference."""
    parts = settings.partitions
    share = (GPU_MEMORY // parts, GPU_COMPUTE // parts)
    for part in range(parts):
        extra = {"partition": {"int": part}, "partitionable": {"bool": True}}
        yield _device(settings, gpu, f"gpu-{gpu}-partition-{part}", share, extra, counted=True)
    extra = {"partitionable": {"bool": True}, "full": {"bool": True}}
    yield _device(settings, gpu, f"gpu-{gpu}-full", attributes=extra, counted=True)


def _device(
    settings: Settings,
    gpu: int,
    name: str,
    size: tuple[int, int] = (GPU_MEMORY, GPU_COMPUTE),
    attributes: Mapping[str, Any] | None = None,
    *,
    counted: bool = False,
) -> dict[str, Any]:
    memory, compute = size
    capacity: dict[str, Any] = _values(memory, compute)
    if settings.shared:
        for key, step in (("memory", "1Gi"), ("compute", "1")):
            most = capacity[key]["value"]
            capacity[key]["requestPolicy"] = {"default": most, "validRange": {"min": step, "max": most, "step": step}}
    device = {
        "name": name,
        "attributes": {
            "index": {"int": gpu},
            "uuid": {"string": _uuid(settings.node, gpu)},
            "model": {"string": "LATEST-GPU-MODEL"},
            "driverVersion": {"version": "1.0.0"},
            **(attributes or {}),
        },
        "capacity": capacity,
        "allowMultipleAllocations": settings.shared,
    }
    if counted:
        device["consumesCounters"] = [{"counterSet": _counter_set(gpu), "counters": _values(memory, compute)}]
    return device


def _values(memory: int, compute: int) -> dict[str, dict[str, str]]:
    return {"memory": {"value": quantity(memory)}, "compute": {"value": str(compute)}}


def _counter_set(gpu: int) -> str:
    return f"gpu-{gpu}-counters"


def _uuid(node: str, gpu: int) -> str:
    """The same GPU keeps its identity over layouts and restarts: it hangs on the node's name alone."""
    return f"gpu-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{gpu}.{node}')}"
