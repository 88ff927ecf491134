"""The ways to fill a MIG GPU, found by trying everything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from gpupartition.domain.mig import GpuModel, Profile
from gpupartition.domain.mig_layouts import Placement

Sums = Mapping[str, int]


def counters(profile: Profile, start: int) -> Sums:
    """What the partition takes, as a driver publishes it: memory slices and engines; and of the limits that the driver keeps by itself."""
    lies = {f"memory-slice-{n}": 1 for n in range(start, start + profile.size)}
    return {**lies, **dict(profile.engines), "compute": profile.slices, profile.name: 1}


@cache
def legal(model: GpuModel) -> frozenset[tuple[Placement, ...]]:
    """All sets of partitions that the counters of the whole GPU can bear, found by trying all."""
    places = sorted(Placement(start, p.name) for p in model.profiles for start in p.starts)
    costs = {Placement(start, p.name): counters(p, start) for p in model.profiles for start in p.starts}
    engines = {name for p in model.profiles for name, _ in p.engines}
    whole: dict[str, int] = {f"memory-slice-{n}": 1 for n in range(model.memory_slices)}
    whole |= {name: max(dict(p.engines).get(name, 0) for p in model.profiles) for name in engines}
    whole |= {"compute": max(p.slices for p in model.profiles)} | {p.name: p.most for p in model.profiles}

    def tried(taken: tuple[Placement, ...], left: Sums, begin: int) -> Iterator[tuple[Placement, ...]]:
        yield taken
        for number in range(begin, len(places)):
            cost = costs[places[number]]
            if all(left[name] >= amount for name, amount in cost.items()):
                rest = {name: amount - cost.get(name, 0) for name, amount in left.items()}
                yield from tried((*taken, places[number]), rest, number + 1)

    return frozenset(tried((), whole, 0))


def full(model: GpuModel) -> frozenset[tuple[Placement, ...]]:
    """Those to which no partition can be added."""
    parts = {tuple(p for p in layout if p != one) for layout in legal(model) for one in layout}
    return legal(model) - parts
