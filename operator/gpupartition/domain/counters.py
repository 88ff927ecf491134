"""One GPU as devices that draw on one counter set: in which pieces it is offered, in which order, and under which names.

Order is part of a layout, because the scheduler takes the first device that fits: the smallest first, and among the placements of a profile
the one that strands least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from gpupartition.domain.gpus import Gpu, Partition
from gpupartition.domain.pool import Amounts

FULL: Final = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One device of a GPU. `name` is unique on its GPU; `profile` is what several of the same kind have in common."""

    name: str
    profile: str
    capacity: Amounts
    costs: Amounts


def whole(gpu: Gpu) -> Piece:
    """The GPU in one piece. It draws on all counters too, so that it can stay allocated while the GPU's layout changes around it."""
    return Piece(name=FULL, profile=FULL, capacity={"memory": gpu.memory}, costs=gpu.counters)


def equal_parts(gpu: Gpu, parts: int) -> list[Piece]:
    """The GPU in equal parts; what does not divide is left over."""
    share = {name: amount // parts for name, amount in gpu.counters.items()}
    return [
        Piece(name=f"{number}of{parts}", profile=f"1of{parts}", capacity={"memory": gpu.memory // parts}, costs=share)
        for number in range(1, parts + 1)
    ]


def most_parts(gpu: Gpu) -> int:
    """Into how many equal parts the GPU can be cut so that each still takes something from every counter."""
    return min([gpu.memory, *gpu.counters.values()])


def choices(gpu: Gpu, partitions: Sequence[Partition]) -> list[Piece]:
    """Every placement of these profiles, in the order of search."""
    placed = [
        _Placed(partition=partition, number=number, costs=costs, share=_share(gpu, costs))
        for partition in partitions
        for number, costs in enumerate(partition.placements)
    ]
    largest = {p.name: max(_share(gpu, costs) for costs in p.placements) for p in partitions}
    place = {p.name: number for number, p in enumerate(partitions)}

    def order(piece: _Placed) -> tuple[Fraction, int, Fraction, int]:
        name = piece.partition.name
        return largest[name], place[name], _strands(gpu, piece, placed), piece.number

    return [
        Piece(
            name=f"{slug(piece.partition.name)}-{piece.number}",
            profile=piece.partition.name,
            capacity=piece.partition.capacity,
            costs=piece.costs,
        )
        for piece in sorted(placed, key=order)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    partition: Partition
    number: int
    costs: Amounts
    share: Fraction


def _share(gpu: Gpu, costs: Amounts) -> Fraction:
    """How much of the GPU it takes, over all its counters: between 0 and 1."""
    return sum((Fraction(cost, gpu.counters[name]) for name, cost in costs.items()), Fraction()) / len(gpu.counters)


def _strands(gpu: Gpu, piece: _Placed, others: Sequence[_Placed]) -> Fraction:
    """How much of what else the GPU offers is lost while this piece is in use."""
    return sum((other.share for other in others if other is not piece and not _fit(gpu, piece, other)), Fraction())


def _fit(gpu: Gpu, one: _Placed, other: _Placed) -> bool:
    return all(cost + other.costs.get(name, 0) <= gpu.counters[name] for name, cost in one.costs.items())


_ESCAPES: Final = {".": "", "+": "plus", "-": "minus"}


def slug(profile: str) -> str:
    """A profile's name with what a DNS label cannot hold as `-…-`: "1g.10gb+me" -> "1g--10gb-plus-me". Different names stay different.

    Injective because an escape begins and ends with a dash, which stands nowhere else: so it can be read back.
    """
    kept = "abcdefghijklmnopqrstuvwxyz0123456789"
    return "".join(c if c in kept else f"-{_ESCAPES.get(c, f'x{ord(c):x}')}-" for c in profile)
