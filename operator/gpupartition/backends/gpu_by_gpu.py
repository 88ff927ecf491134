"""A policy's layouts on the GPUs of a node: each GPU is cut by the first one that matches it, and all that cannot be is told at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from gpupartition.api.v1alpha1 import Layout, LayoutType, SharingMode
from gpupartition.domain.problem import Problem, Refused
from gpupartition.domain.products import Product, means, nothing_cut

C = TypeVar("C")


def unsupported(layouts: Sequence[Layout], types: Sequence[LayoutType], why: str, sharing: str) -> Iterator[Problem]:
    """The refusals of layouts of other types than these, and of such that several claims are to share."""
    first, *others = types
    for place, layout in enumerate(layouts):
        if layout.type not in types:
            yield Problem(
                reason="LayoutTypeUnsupported",
                at=f"spec.layouts[{place}].type",
                why=f"{why} as {layout.type}",
                fix=f"use {first} (or {', or '.join(others)}), or a driver of type Publish",
            )
        if layout.sharing.mode is not SharingMode.EXCLUSIVE:
            yield Problem(
                reason="SharingUnsupported",
                at=f"spec.layouts[{place}].sharing.mode",
                why=sharing,
                fix="leave sharing out",
            )


def cut_each(
    layouts: Sequence[Layout], products: Mapping[int, Product], cut: Callable[[int, Layout, str], C]
) -> tuple[Mapping[int, C | None], Sequence[Problem]]:
    """The cut of each GPU, by its number (None: it is left as it is), and what cannot be; equal GPUs are told of once.

    `cut` makes one, of a GPU's number, its layout, and the path of that; it raises Refused.
    """
    cuts: dict[int, C | None] = {}
    refused: dict[tuple[Product, int], Collection[Problem]] = {}
    for number, product in products.items():
        cuts[number] = None
        place = next((n for n, layout in enumerate(layouts) if means(layout.match, product, number)), None)
        if place is None or layouts[place].type is LayoutType.KEEP or (product, place) in refused:
            continue
        try:
            cuts[number] = cut(number, layouts[place], f"spec.layouts[{place}]")
        except Refused as problem:
            refused[product, place] = problem.problems
    problems = [problem for each in refused.values() for problem in each]
    if not problems and not any(cuts.values()):
        problems = [nothing_cut(layouts, list(products.values()))]
    return cuts, problems


def insist(problems: Collection[Problem]) -> None:
    """Raise Refused where there are any."""
    if problems:
        raise Refused(*problems)
