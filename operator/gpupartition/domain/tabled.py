"""GPUs that a table knows: what the partitions of one share, and what each takes, in the counters of the maker's own driver.

Counters alone decide which partitions can be there at once, for a scheduler knows nothing else. NVIDIA's are quantities: engines, memory, and
each memory slice, so that places cannot overlap. AMD's partitions are all of one mode at a time, which quantities do not say: a part of a mode
takes the whole of a counter of its own, of which each mode with more parts divides what there is among its parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from typing import Any, Final

from gpupartition.domain import mig
from gpupartition.domain.amd_modes import WHOLE, AmdModel, KnownMode, Mode, model_of
from gpupartition.domain.counters import FULL, slug
from gpupartition.domain.gpus import MIB, Gpu, Partition
from gpupartition.domain.mig import COMPUTE, GpuModel, Profile
from gpupartition.domain.pool import Amounts, Device, Pool

# kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin/partitions.go: each is a capacity too, under its name in camel case.
ENGINES: Final = ("multiprocessors", "copy-engines", "decoders", "encoders", "jpeg-engines", "ofa-engines")
MODE: Final = "partitionProfile"
"""ROCm/k8s-gpu-dra-driver: the mode that a GPU is in while the device is used, such as cpx_nps4."""


@dataclass(frozen=True, slots=True)
class Tables:
    """All products that are known."""

    mig: Sequence[GpuModel] = ()
    amd: Sequence[AmdModel] = ()


def tabled(product: str, memory: int, tables: Tables) -> Gpu | None:
    """A GPU of this product, or of a model that is called so; None where no table knows it. It has no more than `memory` bytes."""
    if (of_nvidia := mig.find(product, tables.mig)) is not None:
        return _mig(of_nvidia, product, memory)
    of_amd = model_of(product, tables.amd)
    return _amd(of_amd, product, memory) if of_amd is not None else None


# ------------------------------------------------------------------------------------------------------------------------- NVIDIA


def _mig(model: GpuModel, product: str, memory: int) -> Gpu:
    named = [p.memory for p in model.profiles if p.memory and p.size == model.memory_slices]
    total = min([memory, *(mib * MIB for mib in named)])
    slices = {_slice(n): 1 for n in range(model.memory_slices)}
    whole = _engines(model, model.has) | {"memory": total}
    counters = whole | slices | {_limit(p): p.most for p in model.profiles if _is_limited(model, p)}
    return Gpu(
        product=product,
        memory=total,
        counters=counters,
        whole=Partition(
            name=FULL, capacity=_capacity(whole), placements={0: counters}, attributes={"type": {"string": "gpu"}}
        ),
        partitions={p.name: _mig_partition(model, p, total) for p in model.profiles},
        attributes={"architecture": {"string": model.architecture}},
        model=model,
    )


def _mig_partition(model: GpuModel, profile: Profile, total: int) -> Partition:
    # Where it is not known, or is said to be less than a table has it: as much as its memory slices are of the GPU.
    share = total * profile.size // model.memory_slices
    memory = min(share, profile.memory * MIB) if profile.memory else share
    takes = _engines(model, profile.takes) | {"memory": memory}
    limit = {_limit(profile): 1} if _is_limited(model, profile) else {}
    return Partition(
        name=profile.name,
        capacity=_capacity(takes),
        placements={
            start: takes | {_slice(n): 1 for n in range(start, start + profile.size)} | limit
            for start in profile.starts
        },
        attributes={"type": {"string": "mig"}},
    )


def _engines(model: GpuModel, amounts: Mapping[str, int]) -> dict[str, int]:
    """All of them, as the driver writes zeros too; none where nobody knows how many the model has."""
    return {name: amounts.get(name, 0) for name in ENGINES} if model.has.keys() & set(ENGINES) else {}


def _capacity(amounts: Amounts) -> dict[str, int]:
    return {re.sub("-(.)", lambda found: found[1].upper(), name): amount for name, amount in amounts.items()}


def _slice(number: int) -> str:
    return f"memory-slice-{number}"


def _limit(profile: Profile) -> str:
    return f"most-{slug(profile.name)}"


def _is_limited(model: GpuModel, profile: Profile) -> bool:
    """Whether there can be fewer of them than engines and memory slices have room for, as far as those are known."""
    by_engines = [model.has[name] // amount for name, amount in profile.takes.items() if amount and name != COMPUTE]
    return profile.most < min([len(list(_side_by_side(profile))), *by_engines])


def _side_by_side(profile: Profile) -> Iterator[int]:
    free = 0
    for start in profile.starts:
        if start >= free:
            yield start
            free = start + profile.size


# ---------------------------------------------------------------------------------------------------------------------------- AMD


def _amd(model: AmdModel, product: str, memory: int) -> Gpu:
    cut = [known for known in model.modes if known.mode.settable and known.partitions > 1]
    cut.sort(key=lambda known: (known.partitions, known.mode))
    unit = lcm(*(known.partitions for known in cut))
    own = {known.mode: [f"{_label(known.mode)}-{n}" for n in range(known.partitions)] for known in cut[:-1]}
    counters = {"memory": memory} | {name: unit for names in own.values() for name in names}
    partitions = [_amd_partition(k, memory, unit, own, cut[:n]) for n, k in enumerate(cut)]
    return Gpu(
        product=product,
        memory=memory,
        counters=counters,
        whole=Partition(
            name=FULL, capacity={"memory": memory}, placements={0: counters}, attributes={"type": {"string": "amdgpu"}}
        ),
        partitions={each.name: each for each in partitions},
        attributes=_mode(WHOLE),
        model=model,
    )


def _amd_partition(
    known: KnownMode, memory: int, unit: int, own: Mapping[Mode, Sequence[str]], before: Sequence[KnownMode]
) -> Partition:
    share = {"memory": memory // known.partitions}
    divided = {name: unit // known.partitions for each in before for name in own[each.mode]}
    alone = [{name: unit} for name in own.get(known.mode, ())] or [{}] * known.partitions
    return Partition(
        name=known.mode.name,
        label=_label(known.mode),
        capacity=share,
        placements={number: share | divided | mine for number, mine in enumerate(alone)},
        attributes={"type": {"string": "amdgpu-partition"}} | _mode(known.mode),
    )


def _label(mode: Mode) -> str:
    return mode.name.replace("_", "-")


def _mode(mode: Mode) -> dict[str, Any]:
    return {MODE: {"string": mode.name}}


def memory_mode(device: Device) -> str | None:
    """The memory mode, such as NPS4, that all GPUs of its node have while an AMD device is used; None: it does not depend on one."""
    mode = Mode.read(device.text(MODE))
    return mode.memory if mode is not None else None


def memory_modes(*pools: Pool) -> frozenset[str]:
    """Those that devices of these pools are used in."""
    return frozenset(mode for pool in pools for device in pool.devices if (mode := memory_mode(device)))
