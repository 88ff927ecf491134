"""Pictures of GPUs for browsers and documents: one SVG, readable in light and in dark, without a script, and safe to open."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from gpupartition.cli.drawing import troubles
from gpupartition.cli.paint import on_one_line
from gpupartition.domain.gpumap import Gpu, NodeMap, Part, Use

CLASSES: Final[Mapping[Use, str]] = {
    Use.FREE: "free",
    Use.USED: "used",
    Use.SHARED: "shared",
    Use.RETIRING: "retiring",
    Use.TAINTED: "tainted",
    Use.UNCUT: "uncut",
}
COLOURS: Final = """
:root { --paper: #ffffff; --ink: #1c2024; --dim: #5b6570; --line: #c9d0d6;
  --free: #b7e0c1; --used: #3f7fc4; --shared: #9a63c9; --retiring: #d9777f; --tainted: #f0c36a;
  --lost: #e5897f; --gained: #58ad74; --kept: #b9c2ca; }
@media (prefers-color-scheme: dark) { :root { --paper: #16191c; --ink: #e4e7ea; --dim: #98a2ac; --line: #3a4148;
  --free: #2f6b43; --used: #5c9be0; --shared: #a97bd6; --retiring: #b0525c; --tainted: #a8812f;
  --lost: #b5544b; --gained: #4fae72; --kept: #57616a; } }
"""
FILLED: Final = ("free", "used", "shared", "retiring", "tainted", "lost", "gained", "kept")
PARTS: Final = f"""
text {{ font: 12px system-ui, sans-serif; fill: var(--ink); }} .head {{ font-weight: 600; }}
text.dim {{ fill: var(--dim); }} text.bad {{ fill: var(--lost); }} rect {{ stroke: var(--paper); stroke-width: 1; }}
{" ".join(f".{name} {{ fill: var(--{name}); }}" for name in FILLED)}
.uncut {{ fill: none; stroke: var(--line); stroke-dasharray: 2 2; }}
"""
WIDTH, BAR, HIGH, GAP, LINE = 1000, 100, 18, 6, 26
"""Of the picture, a GPU (its height), between GPUs, from one line to the next."""
PER_LINE: Final = 8
LONGEST: Final = 24  # characters of a name that has room beside its bars; the whole stands in its tooltip
LONGEST_TROUBLE: Final = 160  # characters of what is wrong with a node: as much as has room below its bars

# What no XML may contain, in whatever form; on_one_line has taken what controls terminals.
_NO_XML: Final = dict.fromkeys([*range(0xD800, 0xE000), 0xFFFE, 0xFFFF], "\N{REPLACEMENT CHARACTER}")

Paint = Callable[[Part], str]
"""The class of a part: what it is drawn as."""


def safe(text: object) -> str:
    """A text that others wrote, between tags or in an attribute."""
    return html.escape(on_one_line(str(text)).translate(_NO_XML))


def by_use(part: Part) -> str:
    """Parts as they are used."""
    return CLASSES[part.use]


def bar(gpu: Gpu, x: float, y: float, *, width: float = BAR, high: float = HIGH, paint: Paint = by_use) -> str:
    """One GPU, its parts to scale, each with a tooltip."""
    whole = sum(part.size for part in gpu.parts) or 1
    drawn, at = [], x
    for part in gpu.parts:
        long = width * part.size / whole
        place = f'x="{at:.1f}" y="{y:.1f}" width="{long:.1f}" height="{high:.1f}"'
        drawn.append(f'<rect class="{paint(part)}" {place}><title>{safe(said(gpu, part))}</title></rect>')
        at += long
    return "".join(drawn)


def said(gpu: Gpu, part: Part) -> str:
    """What a part is, in words."""
    about = [part.device, part.profile, part.use.value, f"by {', '.join(part.held_by)}" if part.held_by else ""]
    return f"GPU {gpu.index}: " + ", ".join(each for each in about if each)


def bars(gpus: Sequence[Gpu], y: float, *, left: float, paint: Paint = by_use) -> str:
    """GPUs beside each other, and below where there are more than fit into a line."""
    places = ((left + (n % PER_LINE) * (BAR + GAP), y + n // PER_LINE * LINE) for n in range(len(gpus)))
    return "".join(bar(gpu, x, at, paint=paint) for gpu, (x, at) in zip(gpus, places, strict=True))


def lines(gpus: Sequence[Gpu]) -> int:
    """How many lines they take."""
    return max(1, -(-len(gpus) // PER_LINE))


def picture(maps: Sequence[NodeMap]) -> str:
    """The document: each driver's nodes below each other, and what the colours mean."""
    left = WIDTH - PER_LINE * (BAR + GAP)
    body, y = [], 10.0
    for driver, nodes in groupby(maps, key=lambda each: each.driver):
        y += LINE
        body.append(f'<text class="head" x="8" y="{y - 8:.0f}">{safe(driver)}</text>')
        for node in nodes:
            body.append(_node(node, y, left))
            y += LINE * (lines(node.gpus) + bool(node.gpus and troubles(node)))
    if not maps:
        y += LINE
        body.append(f'<text class="dim" x="8" y="{y - 8:.0f}">no node publishes GPUs</text>')
    body.append(_legend(maps, y + 12))
    return document("".join(body), high=y + 44, label=f"GPUs of {len(maps)} nodes, how they are cut and used")


def document(body: str, *, high: float, label: str) -> str:
    """An SVG that stands by itself."""
    style = f"<style>{COLOURS}{PARTS}</style>"
    paper = '<rect style="fill: var(--paper); stroke: none" width="100%" height="100%"/>'
    return f"{within(style + paper + body, high=high, label=label)}\n"


def within(body: str, *, high: float, label: str) -> str:
    """An SVG of a page that has COLOURS and PARTS already."""
    size = f'viewBox="0 0 {WIDTH} {high:.0f}" width="{WIDTH}" height="{high:.0f}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{safe(label)}">{body}</svg>'


def _node(node: NodeMap, y: float, left: float) -> str:
    name = node.node if len(node.node) <= LONGEST else f"{node.node[: LONGEST - 1]}…"
    text = f'<text x="8" y="{y + HIGH - 5:.0f}">{safe(name)}<title>{safe(node.node)}</title></text>'
    wrong = "; ".join(troubles(node)) or ("" if node.gpus else "publishes nothing")
    below = y + (LINE * lines(node.gpus) if node.gpus else 0)
    said = wrong if len(wrong) <= LONGEST_TROUBLE else f"{wrong[: LONGEST_TROUBLE - 1]}…"
    under = (
        f'<text class="bad" x="{left:.0f}" y="{below + HIGH - 5:.0f}">{safe(said)}<title>{safe(wrong)}</title></text>'
    )
    return text + bars(node.gpus, y, left=left) + (under if wrong else "")


def _legend(maps: Sequence[NodeMap], y: float) -> str:
    seen = {part.use for each in maps for gpu in each.gpus for part in gpu.parts}
    return key([(CLASSES[use], use.value) for use in Use if use in seen], y)


def key(entries: Sequence[tuple[str, str]], y: float) -> str:
    """What classes mean."""
    return "".join(_entry(at, style, words, y) for at, (style, words) in enumerate(entries))


def _entry(at: int, style: str, words: str, y: float) -> str:
    x = 8 + at * 120
    return (
        f'<rect class="{style}" x="{x}" y="{y:.0f}" width="24" height="14"/>'
        f'<text class="dim" x="{x + 30}" y="{y + 11:.0f}">{safe(words)}</text>'
    )


def chart(rows: Mapping[str, Sequence[int]], ticks: Sequence[str], *, label: str) -> Iterator[str]:
    """Step charts below each other, one for each row: how many there are at each tick."""
    left, right, tall = 130, WIDTH - 60, 44
    step = (right - left) / max(1, len(ticks))
    for name, values in rows.items():
        top = max(*values, 1)
        points = " ".join(
            f"{left + (n + side) * step:.1f},{6 + tall - tall * value / top:.1f}"
            for n, value in enumerate(values)
            for side in (0, 1)
        )
        line = f'<polyline points="{points}" fill="none" style="stroke: var(--used); stroke-width: 2"/>'
        ends = (
            f'<text class="dim" x="{right + 6}" y="{6 + tall - tall * values[-1] / top + 4:.0f}">{values[-1]}</text>'
            f'<text class="dim" x="{left - 6}" y="{6 + tall - tall * values[0] / top + 4:.0f}" text-anchor="end">{values[0]}</text>'
        )
        base = f'<line x1="{left}" x2="{right}" y1="{6 + tall}" y2="{6 + tall}" style="stroke: var(--line)"/>'
        spots = "".join(
            f'<rect x="{left + n * step:.1f}" y="0" width="{step:.1f}" height="{tall + 8}" style="fill: transparent; stroke: none">'
            f"<title>{safe(f'{tick}: {value} of {name}')}</title></rect>"
            for n, (tick, value) in enumerate(zip(ticks, values, strict=True))
        )
        text = f'<text x="0" y="{tall - 8}">{safe(name[:12])}<title>{safe(name)}</title></text>'
        yield within(text + base + line + ends + spots, high=tall + 12, label=f"{label}: {name}")
