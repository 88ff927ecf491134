"""`gpupartition map [NODE]`: how GPUs are cut and used, drawn to scale. Reads the cluster and writes nothing."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from gpupartition.cli.forms import NAMES, forms
from gpupartition.cli.options import (
    STDOUT,
    Unusable,
    add_cluster,
    add_output,
    add_picture,
    add_selector,
    describe,
    save,
)
from gpupartition.cli.paint import Line, Span, grid, line
from gpupartition.cli.targets import no_node

if TYPE_CHECKING:
    from gpupartition.cli.cluster import Answer
    from gpupartition.domain.gpumap import Gpu, NodeMap, Part
    from gpupartition.kube import Client, Object

ABOUT: Final = """
Draws each GPU as a bar, and each partition as a part of it, to scale: free, used, shared by several claims, or tainted. MIG partitions are
drawn in the memory slices where they lie. With the name of a node, each part is listed too, with who has it. It only reads.
"""
EXAMPLES: Final = """
examples:
  %(prog)s                     all nodes that publish GPUs
  %(prog)s -l zone=a           those with a label
  %(prog)s node-2              one of them, with every device
  %(prog)s node-2 -o json      for programs
  %(prog)s --svg gpus.svg      for a browser or a document

exit codes: 0 drawn; 1 the cluster could not be read, or there is no such node (the message says so); 2 wrong usage
"""

WIDEST: Final = 160  # columns: bars that are longer say no more
LONG: Final = 40  # characters of the bar of a GPU that has a line to itself


def add_to(parser: argparse.ArgumentParser) -> None:
    """Give the command its options."""
    describe(parser, ABOUT, EXAMPLES)
    parser.add_argument("node", nargs="?", default="", metavar="NODE", help="a node, in full (default: all, in short)")
    add_selector(parser, "nodes")
    add_picture(parser, "svg")
    add_output(parser, NAMES)
    add_cluster(parser)


async def run(options: argparse.Namespace) -> int:
    """Look, print, and return the exit code."""
    from gpupartition.cli.cluster import answer

    async def ask(client: Client) -> Answer:
        found = await look(client, options.node, options.selector)
        if options.svg:
            from gpupartition.cli.svg import picture

            drawn = picture(found)
            if options.svg == STDOUT:
                return drawn.rstrip("\n"), ()
            save(options.svg, drawn)
        return (FORMS_IN_FULL if options.node else FORMS)[options.output](found), ()

    return await answer(options, "map", ask)


async def look(client: Client, node: str = "", selector: str = "") -> list[NodeMap]:
    """Every pool of GPUs, by driver and node, or those of one node. Raises Unusable where there is no such node, and ApiError."""
    from gpupartition.backends.recognised import publishes_gpus
    from gpupartition.cli.cluster import published_on, taint_rules
    from gpupartition.cli.drawing import memory_slices
    from gpupartition.domain.gpumap import read
    from gpupartition.kube import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES

    only = await client.find(NODES, node) if node else None
    if node and only is None:
        raise no_node(node)
    shared = "spec.nodeName="  # what is published for several nodes
    of_nodes = [f"spec.nodeName={node}", shared] if node else [""]
    listed, claims, rules, nodes = await asyncio.gather(
        asyncio.gather(*(client.list(RESOURCE_SLICES, field_selector=mine) for mine in of_nodes)),
        client.list(RESOURCE_CLAIMS),
        taint_rules(client),
        _cordoned(client, only),
    )
    closed = {each["metadata"]["name"] for each in nodes}
    chosen: set[str] | None = {node} if node else None
    if selector:
        selected = {each["metadata"]["name"] for each in (await client.list(NODES, label_selector=selector)).items}
        if not selected:
            raise Unusable(f"no node has labels {selector}; kubectl get nodes --show-labels shows what they have")
        chosen = selected if chosen is None else selected & chosen
    pools: dict[tuple[str, str, str], list[Object]] = {}
    slices = [each for some in listed for each in some.items if publishes_gpus(each["spec"]["driver"])]
    on: dict[tuple[str, str], set[str]] = {}
    for spec in (each["spec"] for each in slices):
        on.setdefault((spec["driver"], spec["pool"]["name"]), set()).update(published_on(spec))
    for each in slices:
        driver, pool = each["spec"]["driver"], each["spec"]["pool"]["name"]
        for name in on[driver, pool] if chosen is None else on[driver, pool] & chosen:
            pools.setdefault((driver, name, pool), []).append(each)
    taken: dict[tuple[str, str], list[Object]] = {}
    for claim in claims.items:
        allocated = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
        for key in {(result["driver"], result["pool"]) for result in allocated}:
            taken.setdefault(key, []).append(claim)
    return [
        read(
            name,
            driver,
            bodies,
            taken.get((driver, pool), ()),
            pool=pool,
            rules=rules,
            cordoned=name in closed,
            memory_slices=memory_slices,
        )
        for (driver, name, pool), bodies in sorted(pools.items())
    ]


async def _cordoned(client: Client, only: Object | None) -> list[Object]:
    """The nodes that are cordoned; of one alone nobody else has to be asked."""
    from gpupartition.kube import NODES

    if only is not None:
        return [only] if only.get("spec", {}).get("unschedulable") else []
    return (await client.list(NODES, field_selector="spec.unschedulable=true")).items


# ------------------------------------------------------------------------------------------------------------------------ forms


def pictured(found: Sequence[NodeMap], _: datetime) -> Iterator[Line]:
    """For people: each driver's nodes below each other."""
    from gpupartition.cli.drawing import draw, legend
    from gpupartition.domain.gpumap import Use

    plain, width = _plain(), min(shutil.get_terminal_size((110, 24)).columns, WIDEST)
    for driver, maps in groupby(found, key=lambda each: each.driver):
        yield line(Span(driver, "bold"))
        drawn = list(maps)
        yield from draw(drawn, width=width, plain=plain)
        free = {part.device: part.profile for each in drawn for part in each.over if part.use is Use.FREE}
        over = Counter(free.values())
        if over:
            could = ", ".join(f"{number} of {profile}" for profile, number in sorted(over.items()))
            yield line(Span(f"over several nodes could be had: {could}", "dim"))
        yield ()
    yield legend(found, plain=plain) if found else line(Span("no node publishes GPUs", "dim"))


def in_full(found: Sequence[NodeMap], _: datetime) -> Iterator[Line]:
    """For people: each GPU of a node, with its devices and who has them."""
    from gpupartition.cli.drawing import bar, exact_length, legend, troubles

    plain = _plain()
    for each in found:
        yield line(Span(each.node, "bold"), f" ({each.driver})", *(Span(f"  {text}", "red") for text in troubles(each)))
        bars = [bar(gpu, exact_length(gpu, LONG), plain=plain) for gpu in each.gpus]
        for gpu, drawn in zip(each.gpus, bars, strict=True):
            yield (Span(f"  GPU {gpu.index:<3}", "dim"), *drawn, Span(f"  {gpu.product}"))
        yield ()
        rows = [_row(str(gpu.index), part) for gpu in each.gpus for part in gpu.parts if part.device]
        rows += [_row("all", part) for part in each.over]
        yield from grid(("GPU", "DEVICE", "PROFILE", "MEMORY", "SLICES", "USE", "BY"), rows, indent="  ")
        yield ()
    yield legend(found, plain=plain) if found else line(Span("the node publishes no GPUs", "dim"))


def _row(gpu: str, part: Part) -> tuple[str | Span, ...]:
    from gpupartition.cli.drawing import INK

    memory = f"{part.memory / 2**30:.4g}Gi" if part.memory else ""
    use = Span(part.use.value, INK[part.use].style)
    return gpu, part.device, part.profile, memory, _places(part), use, ", ".join(part.held_by)


def _places(part: Part) -> str:
    return f"{part.slots[0]}-{part.slots[-1]}" if len(part.slots) > 1 else "".join(map(str, part.slots))


def _plain() -> bool:
    return not (sys.stdout.encoding or "").lower().startswith("utf")


def as_data(found: Sequence[NodeMap]) -> dict[str, Any]:
    """Everything, in names that stay."""
    return {
        "pools": [
            {
                "node": each.node,
                "driver": each.driver,
                "problem": each.problem,
                "lost": list(each.lost),
                "cordoned": each.cordoned,
                "gpus": [_gpu(gpu) for gpu in each.gpus],
                "over": [
                    {"device": part.device, "use": part.use.value, "profile": part.profile, "memory": part.memory}
                    for part in each.over
                ],
            }
            for each in found
        ]
    }


def _gpu(gpu: Gpu) -> dict[str, Any]:
    parts = [
        {
            "device": part.device,
            "use": part.use.value,
            "share": round(part.size / sum(p.size for p in gpu.parts), 4),
            "profile": part.profile,
            "memory": part.memory,
            "memorySlices": list(part.slots),
            "heldBy": list(part.held_by),
        }
        for part in gpu.parts
    ]
    return {"gpu": gpu.index, "product": gpu.product, "parts": parts}


def names(found: Sequence[NodeMap]) -> list[str]:
    """The nodes, as kubectl takes them."""
    return [f"node/{name}" for name in sorted({each.node for each in found})]


FORMS: Final = forms(picture=pictured, data=as_data, names=names)
FORMS_IN_FULL: Final = forms(picture=in_full, data=as_data, names=names)
