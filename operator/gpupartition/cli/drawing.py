"""Draws GPUs: each a bar, each partition a part of it, to scale.

    node-1  ███│░░░ ░░░│░░░ ███████

The first GPU has one of its halves in use, the second none, the third is used as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import Final

from gpupartition.cli.paint import Line, Span
from gpupartition.domain.gpumap import Gpu, NodeMap, Use


@dataclass(frozen=True, slots=True)
class Ink:
    """What a part in a certain use looks like."""

    glyph: str
    ascii: str
    style: str


INK: Final[Mapping[Use, Ink]] = {
    Use.FREE: Ink("░", ".", "green"),
    Use.USED: Ink("█", "#", "cyan"),
    Use.SHARED: Ink("▓", "%", "magenta"),
    Use.RETIRING: Ink("▚", "/", "red"),
    Use.TAINTED: Ink("▒", "x", "yellow"),
    Use.UNCUT: Ink("·", "-", "dim"),
}
SEAM: Final = Ink("│", "|", "dim")
SMALLEST: Final = 3  # characters of a bar: less is a dot, not a bar
LARGEST: Final = 9  # characters: eight of them, with a name before them, fit into 90 columns
GAP: Final = "  "
_ALWAYS: Final = (Use.FREE, Use.USED)


def draw(maps: Sequence[NodeMap], *, width: int, plain: bool = False) -> list[Line]:
    """Draw the nodes below each other in at most `width` columns; bars that do not fit go on below. `plain`: in ASCII."""
    name = max((len(m.node) for m in maps), default=0)
    most = max((len(m.gpus) for m in maps), default=1)
    parts = max((len(g.parts) for m in maps for g in m.gpus), default=1)
    room = max(width - name - len(GAP), SMALLEST)
    length = max(SMALLEST, 2 * parts - 1, min(LARGEST, (room + 1) // max(most, 1) - 1))
    length -= (length + 1) % parts  # so that seams leave equal parts
    per_line = max(1, (room + 1) // (length + 1))
    lines = [each for m in maps for each in _node(m, name=name, length=length, per_line=per_line, plain=plain)]
    if most <= per_line:
        numbers = " ".join(f"{i:^{length}}" for i in range(most)).rstrip()
        lines.insert(0, (Span(f"{'GPU':<{name}}{GAP}{numbers}", "dim"),))
    return lines


def legend(maps: Iterable[NodeMap], *, plain: bool = False) -> Line:
    """Say what the bars mean; of what is rare only where it is."""
    seen = {part.use for m in maps for gpu in m.gpus for part in gpu.parts}
    told = [use for use in Use if use in _ALWAYS or use in seen]
    entries = [(Span(glyph(INK[use], plain=plain) * 3, INK[use].style), Span(f" {use.value}   ")) for use in told]
    one, seam = (Span(glyph(ink, plain=plain), ink.style) for ink in (INK[Use.FREE], SEAM))
    return (*(span for entry in entries for span in entry), one, seam, one, Span(" in parts"))


def bar(gpu: Gpu, length: int, *, plain: bool = False) -> Line:
    """One GPU: parts as long as they are large, at least one character each, with seams between them."""
    seam = Span(glyph(SEAM, plain=plain), SEAM.style)
    lengths = shares([part.size for part in gpu.parts], length - (len(gpu.parts) - 1))
    spans: list[Span] = []
    for part, long in zip(gpu.parts, lengths, strict=True):
        ink = INK[part.use]
        spans += [seam] if spans else []
        spans.append(Span(glyph(ink, plain=plain) * long, ink.style))
    return tuple(spans)


def exact_length(gpu: Gpu, most: int) -> int:
    """The longest bar of at most so many characters in which parts of equal size are equally long; `most` where there is none."""
    sizes, seams = [part.size for part in gpu.parts], len(gpu.parts) - 1
    unit = sum(sizes) // gcd(*sizes)
    return most - (most - seams) % unit if unit <= most - seams else most


def shares(sizes: Sequence[int], total: int) -> list[int]:
    """Split a whole number by sizes, as exactly as whole numbers can; each gets at least 1, and of equals the first get more."""
    total = max(total, len(sizes))
    free, whole = total - len(sizes), sum(sizes)
    # Everybody has 1; the rest goes to those that lack most of what they should have.
    exact = [max(size * total / whole - 1, 0) for size in sizes]
    scale = free / sum(exact) if sum(exact) else 0
    got = [int(e * scale + 1e-9) for e in exact]
    for n in sorted(range(len(sizes)), key=lambda n: (got[n] - exact[n] * scale, n))[: free - sum(got)]:
        got[n] += 1
    return [1 + more for more in got]


def glyph(ink: Ink, *, plain: bool) -> str:
    """The character; `plain`: of ASCII."""
    return ink.ascii if plain else ink.glyph


def _node(node: NodeMap, *, name: int, length: int, per_line: int, plain: bool) -> Iterator[Line]:
    bars = [bar(gpu, length, plain=plain) for gpu in node.gpus]
    lines = [_joined(bars[i : i + per_line]) for i in range(0, len(bars), per_line)]
    trouble = troubles(node)
    lines += [(Span(text, "red"),) for text in trouble or ([] if lines else ["publishes nothing"])]
    for number, each in enumerate(lines):
        yield (Span(f"{node.node if number == 0 else '':<{name}}{GAP}"), *each)


def troubles(node: NodeMap) -> list[str]:
    """What is wrong with what a node publishes, or why nobody new gets it."""
    lost = [f"in use but not published: {', '.join(node.lost)}"] if node.lost else []
    cordoned = ["cordoned: no new pod comes here"] if node.cordoned else []
    return ([node.problem] if node.problem else []) + lost + cordoned


def _joined(bars: Sequence[Line]) -> Line:
    return tuple(span for number, each in enumerate(bars) for span in ((Span(" "),) if number else ()) + each)


@lru_cache
def memory_slices(product: str) -> int:
    """Into how many the memory of a product is cut, as the tables know it."""
    from gpupartition.domain.gpumap import MEMORY_SLICES
    from gpupartition.domain.mig import find
    from gpupartition.tables import mig

    model = find(product, mig.builtin())
    return model.memory_slices if model is not None else MEMORY_SLICES
