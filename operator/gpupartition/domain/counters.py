"""One GPU as devices that draw on one counter set: in which pieces it is offered, in which order, and under which names.

Order is part of a layout, because the scheduler takes the first device that fits: the smallest first, and among the placements of a profile
the one that strands least.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import lcm
from typing import Any, Final

from gpupartition.domain.gpus import Gpu, Partition
from gpupartition.domain.pool import Amounts

FULL: Final = "full"
MAX_TRIES: Final = 20_000
"""States that a search for places looks at: a second's work, where hardware needs some hundred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One device of a GPU. `name` is unique on its GPU; `profile` is what several of the same kind have in common."""

    name: str
    profile: str
    capacity: Amounts
    costs: Amounts
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A partition at one of its placements."""

    partition: Partition
    number: int

    @property
    def costs(self) -> Amounts:
        """What it takes there."""
        return self.partition.placements[self.number]


def whole(gpu: Gpu) -> Piece:
    """The GPU in one piece. It draws on all counters too, so that it can stay allocated while the GPU's layout changes around it."""
    return _piece(Placed(partition=gpu.whole, number=0), gpu.whole.name)


def equal_parts(gpu: Gpu, parts: int) -> list[Piece]:
    """The GPU in equal parts; what does not divide is left over."""
    share = {name: amount // parts for name, amount in gpu.divided.items()}
    return [
        Piece(name=f"{number}of{parts}", profile=f"1of{parts}", capacity={"memory": gpu.memory // parts}, costs=share)
        for number in range(1, parts + 1)
    ]


def most_parts(gpu: Gpu) -> int:
    """Into how many equal parts the GPU can be cut so that each still takes something from every counter that is divided."""
    return min([gpu.memory, *gpu.divided.values()])


def everywhere(partitions: Iterable[Partition]) -> list[Placed]:
    """Every placement of these profiles."""
    return [Placed(partition=each, number=number) for each in partitions for number in each.placements]


def in_order(gpu: Gpu, placed: Sequence[Placed]) -> list[Piece]:
    """These devices in the order of search."""
    unit = lcm(*filter(None, gpu.counters.values()))
    weight = {name: unit // amount for name, amount in gpu.counters.items() if amount}

    def share(costs: Amounts) -> int:
        """How much of the GPU that is, over all its counters, in some unit."""
        return sum(cost * weight[name] for name, cost in costs.items() if cost)

    shares = [share(each.costs) for each in placed]
    names = list(dict.fromkeys(each.partition.name for each in placed))
    largest = {each.partition.name: max(map(share, each.partition.placements.values())) for each in placed}

    def strands(one: Placed) -> int:
        """How much of what else is offered is lost while this piece is in use."""
        lost = zip(placed, shares, strict=True)
        return sum(size for other, size in lost if other is not one and not _fit(gpu, one.costs, other.costs))

    def order(one: Placed) -> tuple[int, int, int, int]:
        name = one.partition.name
        return largest[name], names.index(name), strands(one), one.number

    return [
        _piece(each, f"{each.partition.label or slug(each.partition.name)}-{each.number}")
        for each in sorted(placed, key=order)
    ]


def place(gpu: Gpu, counts: Mapping[str, int]) -> list[Placed] | None:
    """A placement for each of so many partitions, by name, so that the counters suffice; None when none was found.

    In whichever order they are asked for, they are placed in the inventory's: it is the same layout. It looks at all ways, but for
    inventories that no hardware has: there it gives up.
    """
    todo = [partition for name, partition in gpu.partitions.items() for _ in range(counts.get(name, 0))]
    left, found = dict(gpu.counters), list[Placed]()
    dead: set[tuple[int, int, tuple[int, ...]]] = set()

    def search(k: int, begin: int) -> bool:
        """Whether there is room from the k-th partition on, where its first `begin` placements were tried for an equal one before it."""
        state = k, begin, tuple(left.values())
        if k == len(todo):
            return True
        if state in dead or len(dead) >= MAX_TRIES:
            return False
        for place, (number, costs) in islice(enumerate(todo[k].placements.items()), begin, None):
            if all(left[name] >= cost for name, cost in costs.items()):
                for name, cost in costs.items():
                    left[name] -= cost
                found.append(Placed(partition=todo[k], number=number))
                if search(k + 1, place + 1 if todo[k + 1 : k + 2] == todo[k : k + 1] else 0):
                    return True
                found.pop()
                for name, cost in costs.items():
                    left[name] += cost
        dead.add(state)
        return False

    return found if search(0, 0) else None


def _piece(placed: Placed, name: str) -> Piece:
    partition = placed.partition
    return Piece(
        name=name,
        profile=partition.name,
        capacity=partition.capacity,
        costs=placed.costs,
        attributes=partition.attributes,
    )


def _fit(gpu: Gpu, one: Amounts, other: Amounts) -> bool:
    return all(cost + other.get(name, 0) <= gpu.counters[name] for name, cost in one.items())


_ESCAPES: Final = {".": "", "+": "plus", "-": "minus"}


def slug(profile: str) -> str:
    """A profile's name with what a DNS label cannot hold as `-…-`: "1g.10gb+me" -> "1g--10gb-plus-me". Different names stay different.

    Injective because an escape begins and ends with a dash, which stands nowhere else: so it can be read back.
    """
    kept = "abcdefghijklmnopqrstuvwxyz0123456789"
    return "".join(c if c in kept else f"-{_ESCAPES.get(c, f'x{ord(c):x}')}-" for c in profile)
