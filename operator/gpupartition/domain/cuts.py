"""One GPU cut as a layout says: the pieces in which it is offered, or why it cannot be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gpupartition.api.v1alpha1 import Layout, LayoutType
from gpupartition.domain import counters
from gpupartition.domain.amd_modes import WHOLE, AmdModel, Mode, known_mode
from gpupartition.domain.counters import Piece, Placed
from gpupartition.domain.gpus import Gpu, Partition
from gpupartition.domain.mig import GpuModel
from gpupartition.domain.mig_layouts import place, told
from gpupartition.domain.mig_wanted import wanted
from gpupartition.domain.problem import Problem, Refused

MAX_PIECES: Final = 256  # devices of one GPU; hardware knows some 30, and the order of search compares each with each


def cut(gpu: Gpu, layout: Layout, at: str) -> list[Piece]:
    """The devices of the GPU, in the order in which the scheduler shall try them. `at` is the path of the layout. Raises Refused."""
    return _CUTS[layout.type](gpu, layout, at)


def _whole(gpu: Gpu, layout: Layout, at: str) -> list[Piece]:  # noqa: ARG001
    return [counters.whole(gpu)]


def _equal(gpu: Gpu, layout: Layout, at: str) -> list[Piece]:
    asked, most = layout.equal, counters.most_parts(gpu)
    if asked is None:
        raise _without_member(layout)
    if asked.parts > most:
        raise Refused(
            Problem(
                reason="TooManyParts",
                at=f"{at}.equal.parts",
                why=f"a counter of {_told(gpu)} is {most}, and {asked.parts} parts would take nothing from it",
                fix=f"use at most {most} parts" if most > 1 else "use type Whole",
            )
        )
    return _with_whole(gpu, counters.equal_parts(gpu, asked.parts), offered=asked.offer_whole)


def _choices(gpu: Gpu, layout: Layout, at: str) -> list[Piece]:
    asked = layout.choices
    if asked is None:
        raise _without_member(layout)
    found = _partitions(gpu, asked.profiles, [f"{at}.choices.profiles[{n}]" for n in range(len(asked.profiles))])
    placed = counters.everywhere(found)
    if len(placed) > MAX_PIECES:
        raise Refused(
            Problem(
                reason="TooManyDevices",
                at=f"{at}.choices.profiles",
                why=f"{len(placed)} placements on one GPU are more than {MAX_PIECES}",
                fix="offer fewer profiles",
            )
        )
    return _with_whole(gpu, counters.in_order(gpu, placed), offered=asked.offer_whole)


def _profiles(gpu: Gpu, layout: Layout, at: str) -> list[Piece]:
    asked = layout.profiles
    if asked is None:
        raise _without_member(layout)
    if isinstance(gpu.model, GpuModel):
        counts = wanted(gpu.model, asked, _told(gpu), at).counts
        placed = [
            Placed(partition=gpu.partitions[each.profile], number=each.start) for each in place(gpu.model, counts) or ()
        ]
        return counters.in_order(gpu, placed) if placed else [counters.whole(gpu)]
    found = _partitions(gpu, [p.name for p in asked], [f"{at}.profiles[{n}].name" for n in range(len(asked))])
    counts = {partition.name: p.count for partition, p in zip(found, asked, strict=True)}
    if (somewhere := counters.place(gpu, counts)) is None:
        raise Refused(
            Problem(
                reason="LayoutDoesNotFit",
                at=f"{at}.profiles",
                why=f"on {_told(gpu)} there is no room for {told(counts)} at once, as its counters and their placements say",
                fix="ask for fewer of them, or offer them as Choices",
            )
        )
    return counters.in_order(gpu, somewhere)


def _mode(gpu: Gpu, layout: Layout, at: str) -> list[Piece]:
    if layout.mode is None:
        raise _without_member(layout)
    if not isinstance(gpu.model, AmdModel):
        raise Refused(
            Problem(
                reason="UnknownProduct",
                at=f"{at}.mode",
                why=f"{_told(gpu)} is not known to have modes",
                fix="use another type of layout for it; or write its product as AMD's driver does, such as AMD_Instinct_MI300X_OAM, without "
                "counters and profiles of your own",
            )
        )
    mode = Mode(layout.mode.compute, layout.mode.memory)
    known = known_mode(gpu.model.name, mode, [gpu.model], f"{at}.mode on {_told(gpu)}")
    if known.mode == WHOLE:
        return [counters.whole(gpu)]
    return counters.in_order(gpu, counters.everywhere([gpu.partitions[mode.name]]))


def _keep(gpu: Gpu, layout: Layout, at: str) -> list[Piece]:  # noqa: ARG001
    raise Refused(
        Problem(
            reason="LayoutTypeUnsupported",
            at=f"{at}.type",
            why="this driver's slices are the operator's own, so that there is no cut of somebody else's to keep",
            fix="say how the GPU is to be offered: Whole, Equal, Choices, Profiles or Mode",
        )
    )


_CUTS: Final[Mapping[LayoutType, Callable[[Gpu, Layout, str], list[Piece]]]] = {
    LayoutType.WHOLE: _whole,
    LayoutType.EQUAL: _equal,
    LayoutType.CHOICES: _choices,
    LayoutType.PROFILES: _profiles,
    LayoutType.MODE: _mode,
    LayoutType.KEEP: _keep,
}


def _with_whole(gpu: Gpu, pieces: list[Piece], *, offered: bool) -> list[Piece]:
    return [*pieces, counters.whole(gpu)] if offered else pieces


def _partitions(gpu: Gpu, names: Sequence[str], paths: Sequence[str]) -> list[Partition]:
    """The GPU's partitions of these names, each once. `paths` say where each name stands. Raises Refused with all that are not known."""
    found = [_partition(gpu, name) for name in names]
    problems = [_unknown(gpu, n, at) for n, at, has in zip(names, paths, found, strict=True) if has is None]
    if problems:
        raise Refused(*problems)
    return list({each.name: each for each in found if each is not None}.values())


def _partition(gpu: Gpu, name: str) -> Partition | None:
    """The one of this name, or as another release of NVIDIA's driver calls it; AMD's modes also as people write them, CPX/NPS4."""
    match gpu.model:
        case GpuModel():
            known = gpu.model.profile(name)
            return gpu.partitions[known.name] if known is not None else None
        case AmdModel():
            return gpu.partitions.get(name.lower().replace("/", "_"))
        case None:
            return gpu.partitions.get(name)


def _unknown(gpu: Gpu, name: str, at: str) -> Problem:
    known = ", ".join(sorted(gpu.partitions))
    here = f"the inventory has no profile {name} for {gpu.product} (GPU {gpu.index})"
    return Problem(
        reason="UnknownProfile",
        at=at,
        why=here if gpu.model is None else f"{gpu.model.name} has no profile {name}: {_told(gpu)}",
        fix=f"use one of {known}" if known else "add profiles to the driver's spec.publish.inventory.gpus",
    )


def _told(gpu: Gpu) -> str:
    return f"GPU {gpu.index} ({gpu.product})"


def _without_member(layout: Layout) -> AssertionError:
    return AssertionError(f"type {layout.type} without its member: {layout}")
