"""Which partitions a MIG GPU can have at once: found by an exact search over their places, before anything is moved.

What a partition takes of compute slices and engines does not depend on its place, so that sums decide about them; only memory slices need a
search. Profiles that may lie in the same places are one shape to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from gpupartition.domain.mig import GpuModel, Profile, stand_in

Counts = Mapping[str, int]  # partitions by the name of their profile


@dataclass(frozen=True, slots=True, order=True)
class Placement:
    """One partition in its place: from which memory slice on, counted from 0; `profile` is the name, in the model's spelling."""

    start: int
    profile: str


@dataclass(frozen=True, slots=True)
class _Shape:
    """Where a partition may lie; starts in the order of search: those that leave most to others first."""

    size: int
    starts: tuple[int, ...]


def place(model: GpuModel, counts: Counts) -> tuple[Placement, ...] | None:
    """A place for each partition, by start; None if there is no way to have all of them at once (why_not tells why).

    Among several ways it is one whose places are of little use to other profiles: the rest of the GPU stays as useful as can be.
    """
    asked = _asked(model, counts)
    if asked is None or next(_shortages(model, asked), None) is not None:
        return None
    groups: dict[_Shape, list[str]] = {}
    for profile, count in asked.items():
        groups.setdefault(_shapes(model)[profile.name], []).extend([profile.name] * count)
    shapes = sorted(groups, key=lambda s: (-s.size, len(s.starts), s.starts))
    found = _packed(model.memory_slices, tuple((shape, len(groups[shape])) for shape in shapes))
    if found is None:
        return None
    names = [name for shape in shapes for name in groups[shape]]
    return tuple(sorted(Placement(start, name) for start, name in zip(found, names, strict=True)))


def why_not(model: GpuModel, counts: Counts) -> str:
    """Why these partitions cannot be there at once: which profile, and what is used up. Empty when they can."""
    unknown = [name for name in counts if model.profile(name) is None]
    if unknown:
        return f"{model.name} has no profile {' and no profile '.join(unknown)}"
    asked = _asked(model, counts) or {}
    if place(model, counts) is not None:
        return ""
    return next(_shortages(model, asked), None) or _no_room(model, asked)


def told(counts: Counts) -> str:
    """Counts for people: "2 x 3g.40gb, 1 x 1g.10gb"."""
    return ", ".join(f"{count} x {name}" for name, count in counts.items() if count) or "nothing"


def nearest(model: GpuModel, counts: Counts, limit: int = 3) -> tuple[Counts, ...]:
    """What fits instead: the counts for which the fewest partitions are taken away, added or exchanged, then those that use most of the GPU.

    A profile of another GPU stands for the model's own with as many compute slices.
    """
    wanted: dict[str, int] = {}
    foreign = 0
    for name, count in counts.items():
        profile = stand_in(model, name)
        if profile is None:
            foreign += count
        else:
            wanted[profile.name] = wanted.get(profile.name, 0) + count
    asked = [wanted.get(p.name, 0) for p in model.profiles]

    def order(vector: tuple[int, ...]) -> tuple[int, int, int, tuple[int, ...]]:
        changes = [there - one for there, one in zip(vector, asked, strict=True)]
        added, removed = sum(c for c in changes if c > 0), foreign - sum(c for c in changes if c < 0)
        compute = sum(p.slices * n for p, n in zip(model.profiles, vector, strict=True))
        memory = sum(p.size * n for p, n in zip(model.profiles, vector, strict=True))
        return max(added, removed), -compute, -memory, tuple(-n for n in vector)

    names = [p.name for p in model.profiles]
    best = sorted(filter(any, _all_counts(model)), key=order)[:limit]
    return tuple({name: n for name, n in zip(names, vector, strict=True) if n} for vector in best)


def more_ways_than(model: GpuModel, limit: int) -> bool:
    """Whether there are more than so many counts that fit, which `nearest` looks through."""
    return next(islice(_counts_that_fit(model), limit, None), None) is not None


# ------------------------------------------------------------------------------------------------------------------------- search


def _asked(model: GpuModel, counts: Counts) -> dict[Profile, int] | None:
    """By the model's own profiles, in its order; None if one is not known."""
    found: dict[str, int] = {}
    for name, count in counts.items():
        profile = model.profile(name)
        if profile is None:
            return None
        found[profile.name] = found.get(profile.name, 0) + count
    return {p: found[p.name] for p in model.profiles if found.get(p.name)}


def _shortages(model: GpuModel, asked: Mapping[Profile, int]) -> Iterator[str]:
    """What there is too little of, wherever the partitions lie."""
    for profile, count in asked.items():
        if count > profile.most:
            yield f"{_told(asked, profile)} are too many: {model.name} has room for {profile.most}"
    for what, has in model.has.items():
        needed = sum(p.takes.get(what, 0) * n for p, n in asked.items())
        if needed > has:
            takers = (p for p in asked if p.takes.get(what, 0))
            yield f"{_told(asked, *takers)} take {needed} {what}, and {model.name} has {has}"
    needed = sum(p.size * n for p, n in asked.items())
    if needed > model.memory_slices:
        yield f"{_told(asked, *asked)} take {needed} memory slices, and {model.name} has {model.memory_slices}"


def _no_room(model: GpuModel, asked: Mapping[Profile, int]) -> str:
    """Enough of everything, but not in the right places: the first profile, from the largest on, that finds none beside those before it."""
    before: dict[str, int] = {}
    for profile in sorted(asked, key=lambda p: (-p.size, len(p.starts))):
        if place(model, {**before, profile.name: asked[profile]}) is None:
            starts = ", ".join(map(str, profile.starts))
            return (
                f"{_told(asked, profile)} find no place on {model.name} beside {told(before)}: "
                f"each takes {profile.size} memory slices from {starts} on"
            )
        before[profile.name] = asked[profile]
    raise AssertionError(f"{told(before)} fit on {model.name}")


def _told(asked: Mapping[Profile, int], *profiles: Profile) -> str:
    return told({p.name: asked[p] for p in profiles})


@lru_cache(maxsize=256)
def _shapes(model: GpuModel) -> Mapping[str, _Shape]:
    """The shape of each profile. A start is the later the more memory slices of other places it would make useless."""

    def strands(size: int, start: int) -> int:
        mask = _mask(start, size)
        return sum(p.size for p in model.profiles for s in p.starts if mask & _mask(s, p.size))

    return {
        p.name: _Shape(p.size, tuple(sorted(p.starts, key=lambda start: (strands(p.size, start), start))))
        for p in model.profiles
    }


@lru_cache(maxsize=4096)
def _packed(memory_slices: int, groups: tuple[tuple[_Shape, int], ...]) -> tuple[int, ...] | None:
    """A start for each of so many partitions of these shapes; None if there is no way."""
    todo = [shape for shape, count in groups for _ in range(count)]
    needed = [sum(shape.size for shape in todo[k:]) for k in range(len(todo))]
    dead: set[tuple[int, int, int]] = set()

    def search(k: int, begin: int, taken: int) -> tuple[int, ...] | None:
        """Places from the k-th partition on, where its first `begin` starts were tried for an equal one before it."""
        if k == len(todo):
            return ()
        if taken.bit_count() + needed[k] > memory_slices or (k, begin, taken) in dead:
            return None
        for number, start in enumerate(todo[k].starts[begin:], begin):
            mask = _mask(start, todo[k].size)
            if not taken & mask:
                equal = todo[k + 1 : k + 2] == todo[k : k + 1]
                rest = search(k + 1, number + 1 if equal else 0, taken | mask)
                if rest is not None:
                    return (start, *rest)
        dead.add((k, begin, taken))
        return None

    return search(0, 0, 0)


@lru_cache(maxsize=64)
def _all_counts(model: GpuModel) -> tuple[tuple[int, ...], ...]:
    return tuple(_counts_that_fit(model))


def _counts_that_fit(model: GpuModel) -> Iterator[tuple[int, ...]]:
    """Partitions for each profile, in the model's order. What fits does so without one of its partitions too, so that all grow from such."""
    names = [p.name for p in model.profiles]

    def grown(vector: tuple[int, ...], begin: int) -> Iterator[tuple[int, ...]]:
        yield vector
        for k in range(begin, len(names)):
            more = (*vector[:k], vector[k] + 1, *vector[k + 1 :])
            if place(model, dict(zip(names, more, strict=True))) is not None:
                yield from grown(more, k)

    return grown((0,) * len(names), 0)


def _mask(start: int, size: int) -> int:
    return ((1 << size) - 1) << start
