"""A map of GPUs, drawn from published ResourceSlices and allocated claims: each GPU a bar, each partition a part of it.

    node-1  ███│░░░ ░░░│░░░ ███████

The first GPU has one of its halves in use, the second none, the third is used as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from rich.text import Text

from gpupartition.domain.holders import holders
from gpupartition.domain.pool import Device, Pool


class Use(Enum):
    """What a device is to claims: had by none, by one, or open to several of which at least one has it."""

    FREE = "free"
    USED = "used"
    SHARED = "shared"


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
}
SEAM: Final = Ink("│", "|", "bright_black")
SMALLEST: Final = 3  # characters of a bar: less is a dot, not a bar
LARGEST: Final = 9  # characters: eight of them, with a name before them, fit into 90 columns
GAP: Final = "  "


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as it is now: its parts in their published order, or one part when it is whole or used as a whole."""

    index: int
    parts: tuple[Use, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMap:
    """One node's GPUs. `problem` says why the scheduler would not use the pool; `lost` names devices that claims have and no slice shows."""

    node: str
    gpus: tuple[Gpu, ...] = ()
    lost: tuple[str, ...] = ()
    problem: str = ""


def read(node: str, driver: str, slices: Iterable[Mapping[str, Any]], claims: Iterable[Mapping[str, Any]]) -> NodeMap:
    """Map one node's pool of a driver, from all ResourceSlices and ResourceClaims of the cluster."""
    pool = Pool.read(s for s in slices if (s["spec"]["driver"], s["spec"]["pool"]["name"]) == (driver, node))
    held = {holder.device for holder in holders(claims, node=node, driver=driver, pool=node)}
    by_gpu: dict[int, list[Device]] = {}
    for device in pool.devices:
        by_gpu.setdefault(_index(device), []).append(device)
    return NodeMap(
        node=node,
        gpus=tuple(Gpu(index=i, parts=_parts(devices, pool, held)) for i, devices in sorted(by_gpu.items())),
        lost=tuple(sorted(held - {d.name for d in pool.devices})),
        problem=pool.problem,
    )


def draw(maps: Sequence[NodeMap], *, width: int, plain: bool = False) -> Text:
    """Draw the nodes below each other in at most `width` columns; bars that do not fit go on below. `plain`: in ASCII."""
    name = max((len(m.node) for m in maps), default=0)
    most = max((len(m.gpus) for m in maps), default=1)
    parts = max((len(g.parts) for m in maps for g in m.gpus), default=1)
    room = max(width - name - len(GAP), SMALLEST)
    bar = max(SMALLEST, 2 * parts - 1, min(LARGEST, (room + 1) // max(most, 1) - 1))
    bar -= (bar + 1) % parts  # so that seams leave equal parts
    per_line = max(1, (room + 1) // (bar + 1))
    lines = [line for m in maps for line in _node(m, name=name, bar=bar, per_line=per_line, plain=plain)]
    if most <= per_line:
        numbers = " ".join(f"{i:^{bar}}" for i in range(most)).rstrip()
        lines.insert(0, Text(f"{'GPU':<{name}}{GAP}{numbers}", style="bright_black"))
    return Text("\n").join(lines)


def legend(maps: Iterable[NodeMap], *, plain: bool = False) -> Text:
    """Say what the bars mean; of sharing only where something is shared."""
    seen = {use for m in maps for gpu in m.gpus for use in gpu.parts}
    told = [use for use in Use if use is not Use.SHARED or use in seen]
    entries = [Text.assemble((_glyph(INK[use], plain) * 3, INK[use].style), f" {use.value}") for use in told]
    one, seam = (_glyph(INK[Use.FREE], plain), INK[Use.FREE].style), (_glyph(SEAM, plain), SEAM.style)
    return Text("   ").join([*entries, Text.assemble(one, seam, one, " in parts")])


def _node(node: NodeMap, *, name: int, bar: int, per_line: int, plain: bool) -> list[Text]:
    bars = [_bar(gpu, bar, plain) for gpu in node.gpus]
    lines = [Text(" ").join(bars[i : i + per_line]) for i in range(0, len(bars), per_line)]
    trouble = [node.problem] if node.problem else []
    trouble += [f"in use but not published: {', '.join(node.lost)}"] if node.lost else []
    lines += [Text(line, style="red") for line in trouble or ([] if lines else ["publishes nothing"])]
    return [Text(f"{node.node if i == 0 else '':<{name}}{GAP}").append_text(line) for i, line in enumerate(lines)]


def _bar(gpu: Gpu, width: int, plain: bool) -> Text:
    """Parts of equal width with seams between them; what is left over goes to the first ones."""
    count = len(gpu.parts)
    share, extra = divmod(width - (count - 1), count)
    seam = Text(_glyph(SEAM, plain), style=SEAM.style)
    return seam.join(
        Text(_glyph(INK[use], plain) * (share + (i < extra)), style=INK[use].style) for i, use in enumerate(gpu.parts)
    )


def _parts(devices: Sequence[Device], pool: Pool, held: set[str]) -> tuple[Use, ...]:
    whole = [d for d in devices if _is_whole(d, pool)]
    parts = [d for d in devices if d not in whole]
    shown = whole if not parts or any(d.name in held for d in whole) else parts
    return tuple(_use(d, held) for d in shown)


def _is_whole(device: Device, pool: Pool) -> bool:
    """Takes all that its GPU has; a device without counters has no siblings that it could share a GPU with."""
    return all(dict(cost) == dict(pool.counters.get(name, {})) for name, cost in device.costs.items())


def _use(device: Device, held: set[str]) -> Use:
    if device.name not in held:
        return Use.FREE
    return Use.SHARED if device.shared else Use.USED


def _index(device: Device) -> int:
    return int(device.attributes.get("index", {}).get("int", 0))


def _glyph(ink: Ink, plain: bool) -> str:
    return ink.ascii if plain else ink.glyph
