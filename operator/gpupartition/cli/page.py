"""A plan as one page for a browser: nothing that it would have to fetch, no script, readable in light and in dark, and safe to open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from gpupartition.cli import prospects
from gpupartition.cli.drawing import memory_slices
from gpupartition.cli.forms import moment
from gpupartition.cli.paint import Line
from gpupartition.cli.show import Shown
from gpupartition.cli.svg import COLOURS, HIGH, LINE, PARTS, Paint, bars, chart, key, lines, safe, within
from gpupartition.domain.course import course
from gpupartition.domain.gpumap import Gpu, Use, of_pool
from gpupartition.domain.plan import Fate, NodePlan, Plan
from gpupartition.domain.plan_summary import capacity, sentence
from gpupartition.domain.pool import Pool
from gpupartition.domain.remedies import remedy
from gpupartition.domain.wording import few

MOST: Final = 40  # pictures, waves and blockers of a policy: more say no more to whoever looks
NAMED: Final = 12  # nodes of a wave or a picture

STYLE: Final = """
html { color-scheme: light dark; background: var(--paper); color: var(--ink); } body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto;
  max-width: 1040px; padding: 0 1rem; } h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; border-top: 1px solid var(--line);
  padding-top: 1.5rem; } h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; } p.dim, .dim { color: var(--dim); } svg { max-width: 100%; height: auto;
  display: block; } .wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 13px; } th { text-align: left;
  color: var(--dim); font-weight: 500; } th, td { padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n, th.n { text-align: right; } ol.waves { padding: 0; list-style: none; } ol.waves li { margin: .25rem 0; } ol.waves b {
  display: inline-block; min-width: 5.5rem; } pre { overflow-x: auto; font-size: 13px; } .bad { color: var(--lost); }
"""
OPEN: Final = """Open to claims while the waves go over the nodes: a node in its wave has none that are.
Devices that share a GPU are counted each."""
# Whoever opens it may have got it from anywhere: the browser itself keeps it from fetching and from running anything.
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def page(shown: Shown, now: datetime) -> str:
    """The whole document."""
    title = f"Plan for {', '.join(plan.policy for plan in shown.plans)}"
    fit = list(prospects.drawn(shown.prospect))
    parts = [
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{safe(title)}</title>',
        f"<style>{COLOURS}{PARTS}{STYLE}</style></head><body><h1>{safe(title)}</h1>",
        f'<p class="dim">As the cluster was at {moment(now.replace(microsecond=0))}, and as if each step succeeded. Nothing was written.</p>',
        *(part for plan in shown.plans for part in _policy(plan)),
        *([f"<h2>What will fit</h2><pre>{_text(fit)}</pre>"] if fit else ()),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _policy(plan: Plan) -> Iterator[str]:
    yield f"<section><h2>{safe(plan.policy)} <span class='dim'>driver {safe(plan.driver)}</span></h2><p>{safe(sentence(plan))}</p>"
    yield from _pictures(plan)
    yield from _capacity(plan)
    yield from _waves(plan)
    yield from _blockers(plan)
    yield from _nodes(plan)
    yield "</section>"


# --------------------------------------------------------------------------------------------------------------- before and after


@dataclass(slots=True)
class _Change:
    """Nodes that look the same before, and the same after."""

    before: tuple[Gpu, ...]
    after: tuple[Gpu, ...]
    row: NodePlan
    nodes: list[str] = field(default_factory=list)


def _pictures(plan: Plan) -> Iterator[str]:
    changes = _changes(plan)
    if not changes:
        return
    yield "<h3>Before, and once nothing is in the way</h3>"
    for change in changes[:MOST]:
        yield f'<p class="dim">{safe(few(change.nodes, most=NAMED))}</p>'
        down = LINE * lines(change.before)
        high = down + LINE * lines(change.after) + 4
        drawn = [
            f'<text class="dim" x="0" y="{HIGH - 4}">before</text>',
            bars(change.before, 0, left=70, paint=_marked(change.row.lost, "lost")),
            f'<text class="dim" x="0" y="{down + HIGH - 4}">after</text>',
            bars(change.after, down, left=70, paint=_marked(change.row.gained, "gained")),
        ]
        about = f"GPUs of {few(change.nodes, most=NAMED)} before and after"
        yield f'<div class="wide">{within("".join(drawn), high=high, label=about)}</div>'
    if len(changes) > MOST:
        yield f'<p class="dim">and {len(changes) - MOST} more that differ</p>'
    yield within(
        key([("kept", "stays"), ("lost", "goes"), ("gained", "comes"), ("uncut", "not cut")], 4), high=24, label="key"
    )


def _changes(plan: Plan) -> list[_Change]:
    """Nodes whose devices change, those that are alike together."""
    pools = {each.node: each for each in plan.pools}
    drawn: dict[object, tuple[Gpu, ...]] = {}

    def gpus(node: str, pool: Pool) -> tuple[Gpu, ...]:
        alike = tuple((d.name, d.kind, *d.capacity.values()) for d in pool.devices)  # thousands of nodes have the same
        if alike not in drawn:
            drawn[alike] = of_pool(node, plan.driver, pool, memory_slices=memory_slices).gpus
        return drawn[alike]

    found: dict[tuple[int, int], _Change] = {}
    for row in plan.nodes:
        pool = pools.get(row.node)
        if pool is None or not (row.gained or row.lost):
            continue
        before, after = gpus(row.node, pool.now), gpus(row.node, pool.once_free)
        change = found.setdefault((id(before), id(after)), _Change(before, after, row))
        change.nodes.append(row.node)
    return list(found.values())


def _marked(names: Iterable[str], style: str) -> Paint:
    marked = frozenset(names)
    return lambda part: "uncut" if part.use is Use.UNCUT else style if part.device in marked else "kept"


# ------------------------------------------------------------------------------------------------------------ capacity and waves


def _capacity(plan: Plan) -> Iterator[str]:
    moved = capacity(plan)
    if not moved:
        return
    yield "<h3>Devices by profile</h3>"
    going = course(plan)
    if len(going.moments) > 1:
        yield f'<p class="dim">{OPEN}</p><div class="wide">'
        yield from chart(going.open, going.moments, label="devices by profile")
        yield "</div>"
    least = {profile: min(values) for profile, values in going.open.items()}
    rows = [(m.profile, str(m.before), str(least.get(m.profile, 0)), str(m.after)) for m in moved]
    yield _table(("Profile", "Now", "At least meanwhile", "After"), rows, numbers=3)


def _waves(plan: Plan) -> Iterator[str]:
    if not plan.waves:
        return
    opens = f", beginning {plan.opens}" if plan.opens else ""
    yield f"<h3>Waves{safe(opens)}</h3><ol class='waves'>"
    numbers = dict.fromkeys(n.wave for n in plan.nodes if n.wave)
    for number, nodes in list(zip(numbers, plan.waves, strict=True))[:MOST]:
        yield f"<li><b>Wave {number}</b> {safe(few(nodes, most=NAMED))}</li>"
    yield "</ol>"
    if len(plan.waves) > MOST:
        yield f'<p class="dim">and {len(plan.waves) - MOST} more waves</p>'


# -------------------------------------------------------------------------------------------------------------------------- tables


def _blockers(plan: Plan) -> Iterator[str]:
    found = [blocker for node in plan.nodes for blocker in node.blockers]
    if not found:
        return
    yield "<h3>Who is in the way</h3>"
    rows = [(b.node, b.pod or b.claim, b.device, b.reason, b.pdb, remedy(b.reason)) for b in found[:MOST]]
    yield _table(("Node", "Pod, or claim", "Device", "Holds it", "Budget", "What would free it"), rows)
    if len(found) > MOST:
        yield f'<p class="dim">and {len(found) - MOST} more</p>'


def _nodes(plan: Plan) -> Iterator[str]:
    rows = [
        (
            str(n.wave or "-"),
            n.node,
            str(n.fate),
            n.change,
            f"+{len(n.gained)} -{len(n.lost)}" if n.gained or n.lost else "",
            ", ".join(n.evicted),
            n.why,
        )
        for n in plan.nodes
        if n.fate is not Fate.UP_TO_DATE
    ]
    done = sum(n.fate is Fate.UP_TO_DATE for n in plan.nodes)
    yield "<h3>Nodes</h3>"
    if rows:
        yield _table(("Wave", "Node", "State", "Change", "Devices", "Evicts", "Why"), rows)
    if done:
        yield f'<p class="dim">{done} more have what is wanted</p>'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int = 0) -> str:
    """A table; of its last columns so many are numbers. Those that are empty are left out."""
    cells = [list(row) for row in rows]
    used = [n for n in range(len(head)) if any(row[n] for row in cells)]
    aligned = {n: " class='n'" if n >= len(head) - numbers else "" for n in used}
    top = "".join(f"<th{aligned[n]}>{safe(head[n])}</th>" for n in used)
    body = "".join(f"<tr>{''.join(f'<td{aligned[n]}>{safe(row[n])}</td>' for n in used)}</tr>" for row in cells)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _text(drawn: Iterable[Line]) -> str:
    """What is drawn for terminals, as a text."""
    return "\n".join("".join(safe(span.text) for span in each).rstrip() for each in drawn).strip("\n")
