"""GPUs that can be cut, as their driver shows them to programs on the node: what they are, what may be done to them, and what it refuses.

Nothing is known in here of Kubernetes, files or time. An operation takes a GPU and gives the one that comes of it, or raises what the
driver's library would say. Who uses a GPU is told by whoever asks: the names of instances, or WHOLE.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from gpupartition.domain.mig import PROFILE_NAME, GpuModel, Profile, find, same_shape
from gpupartition.domain.mig_layouts import place
from gpupartition.tables import mig

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

SPEC: Final = re.compile(r"(?P<count>\d+)\s*x\s*(?P<product>.+)")
PROFILE: Final = re.compile(PROFILE_NAME)
WHOLE: Final = "whole"
"""As a user: a process that has the GPU open outside all of its instances."""
MODE_NEEDS_RESET: Final = frozenset({"Ampere"})
"""Where a change of MIG mode waits for a reset, and the mode is kept in the GPU over a reboot; later ones change at once, and forget."""
SMALL: Final = 16 * 1024
"""MiB of a GPU of which nothing says how much it has."""


class BadGpusError(ValueError):
    """What a node is said to have cannot be read; the message says what to write."""


class NvmlError(Exception):
    """An answer of the driver's library, in its words."""

    @classmethod
    def in_use(cls) -> NvmlError:  # noqa: D102
        return cls("In use by another client")

    @classmethod
    def insufficient(cls) -> NvmlError:  # noqa: D102
        return cls("Insufficient Resources")

    @classmethod
    def lost(cls) -> NvmlError:  # noqa: D102
        return cls("GPU is lost")


@dataclass(frozen=True, slots=True, order=True)
class Instance:
    """A partition in its place: `profile` in the spelling of the table, `start` in memory slices."""

    start: int
    profile: str

    def __str__(self) -> str:
        """Write it as 3g.40gb@4."""
        return f"{self.profile}@{self.start}"

    @classmethod
    def read(cls, text: str) -> Instance:  # noqa: D102
        profile, _, start = text.partition("@")
        return cls(int(start), profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU of a product. `pending` is the mode that the next reset brings; a `lost` one answers nobody until the machine is rebooted."""

    product: str
    mig: bool = False
    pending: bool = False
    instances: tuple[Instance, ...] = ()
    lost: bool = False

    @property
    def model(self) -> GpuModel | None:
        """Into what it can be cut; None for a GPU that cannot be cut."""
        return find(self.product, mig.builtin())

    @property
    def counts(self) -> dict[str, int]:
        """Instances by profile."""
        names = [instance.profile for instance in self.instances]
        return {name: names.count(name) for name in names}

    @property
    def resets_for_mode(self) -> bool:  # noqa: D102
        return self.model is not None and self.model.architecture in MODE_NEEDS_RESET

    def profile(self, instance: Instance) -> Profile:
        """What the table says of an instance's profile."""
        found = self.model.profile(instance.profile) if self.model else None
        if found is None:
            raise BadGpusError(f"{self.product} has no profile {instance.profile}")
        return found

    def identity(self, node: str, index: int) -> str:
        """Its UUID: the same over layouts and reboots."""
        return f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{index}.{node}')}"


# ------------------------------------------------------------------------------------------------------------------------ operations


def clear(gpu: Gpu, users: Collection[str]) -> tuple[Gpu, NvmlError | None]:
    """Destroy the instances one after another, smallest profile first, and stop at one that is in use: those before it are gone."""
    if gpu.lost:
        return gpu, NvmlError.lost()
    if gpu.instances and WHOLE in users:
        return gpu, NvmlError.in_use()
    left = list(gpu.instances)
    for instance in sorted(gpu.instances, key=lambda each: (gpu.profile(each).slices, each)):
        if str(instance) in users:
            return replace(gpu, instances=tuple(left)), NvmlError.in_use()
        left.remove(instance)
    return replace(gpu, instances=()), None


def create(gpu: Gpu, counts: Mapping[str, int]) -> Gpu:
    """Make instances on an empty GPU in MIG mode. Raises NvmlError."""
    if gpu.lost:
        raise NvmlError.lost()
    if not gpu.mig or gpu.model is None:
        raise NvmlError("Not Supported")
    placed = place(gpu.model, counts)
    if gpu.instances or placed is None:
        raise NvmlError.insufficient()
    return replace(gpu, instances=tuple(Instance(each.start, each.profile) for each in placed))


def set_mode(gpu: Gpu, mig_enabled: bool, users: Collection[str]) -> Gpu:
    """Ask for a mode: it is there at once, or pending until the GPU is reset. Raises NvmlError."""
    if gpu.lost:
        raise NvmlError.lost()
    if gpu.model is None:
        raise NvmlError("Not Supported")
    if gpu.instances and not mig_enabled:
        raise NvmlError.in_use()
    waits = gpu.mig != mig_enabled and (gpu.resets_for_mode or bool(users))
    return replace(gpu, mig=gpu.mig if waits else mig_enabled, pending=mig_enabled)


def reset(gpu: Gpu, users: Collection[str]) -> Gpu:
    """Reset: the pending mode is there, the instances are not. Raises NvmlError when somebody uses it."""
    if gpu.lost:
        raise NvmlError.lost()
    if users:
        raise NvmlError.in_use()
    return replace(gpu, mig=gpu.pending, instances=())


def reboot(gpu: Gpu) -> Gpu:
    """What the machine finds when it comes up: no instances anywhere, and a MIG mode only where the GPU itself remembers it."""
    mode = gpu.pending and gpu.resets_for_mode
    return replace(gpu, mig=mode, pending=mode, instances=(), lost=False)


# -------------------------------------------------------------------------------------------------------------------- as it is told


def read_spec(text: str) -> tuple[Gpu, ...]:
    """The GPUs of a fresh node: "8x NVIDIA H100 80GB HBM3", several kinds separated by commas. Raises BadGpusError."""
    gpus: list[Gpu] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        found = SPEC.fullmatch(part)
        if not found:
            raise BadGpusError(f"{part!r} are no GPUs: write COUNTx PRODUCT, such as 8x NVIDIA H100 80GB HBM3")
        gpus += [Gpu(product=found["product"].strip())] * int(found["count"])
    return tuple(gpus)


def write_state(gpus: Iterable[Gpu], boot: str, spec: str) -> str:
    """Tell the state of all GPUs in one line."""
    told = [
        {"mig": gpu.mig, "pending": gpu.pending, "instances": [str(each) for each in gpu.instances], "lost": gpu.lost}
        for gpu in gpus
    ]
    return json.dumps({"spec": spec, "boot": boot, "gpus": told})


def read_state(text: str, boot: str, spec: str) -> tuple[Gpu, ...]:
    """The GPUs of a node of which a state was told: fresh ones when others were put in, rebooted when the machine was. Raises BadGpusError."""
    fresh = read_spec(spec)
    try:
        state: Any = json.loads(text) if text else {}
        if state.get("spec") != spec:
            return fresh
        gpus = tuple(
            replace(
                gpu,
                mig=told["mig"],
                pending=told.get("pending", told["mig"]),
                lost=told.get("lost", False),
                instances=tuple(sorted(map(Instance.read, told["instances"]))),
            )
            for gpu, told in zip(fresh, state["gpus"], strict=True)
        )
        for gpu in gpus:
            for instance in gpu.instances:
                gpu.profile(instance)
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise BadGpusError(f"{text!r} is no state of {spec!r}: {problem}") from problem
    return gpus if state["boot"] == boot else tuple(map(reboot, gpus))


def memory_mib(gpu: Gpu) -> int:
    """What a whole GPU has, in MiB: as much as its largest profile, as far as that is known."""
    model = gpu.model
    known = [p.memory for p in model.profiles if p.size == model.memory_slices and p.memory] if model else []
    said = re.search(r"(\d+)\s?GB", gpu.product)
    return max(known) if known else int(said.group(1)) * 1024 if said else SMALL


def spelled(profile: str, *, other: bool) -> str:
    """A profile as the driver calls it: an `other` release reports a little less memory, and rounds 7g.80gb to 7g.79gb."""
    less = re.sub(r"(\d+)gb", lambda found: f"{int(found.group(1)) - 1}gb", profile, count=1)
    return less if other and same_shape(profile, less) else profile
