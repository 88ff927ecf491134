"""Lines with styles: in colour on a terminal, plain where they go elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TextIO

GAP: Final = "   "
STYLES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "magenta": "35", "cyan": "36"}

# What others wrote into the cluster must not move the cursor, nor change the colours, of whoever looks at it.
_TURNING: Final = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""They turn the way in which text is read."""
_CONTROLS: Final = (
    {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
    | {code: f"\\u{code:04x}" for code in _TURNING}
    | dict.fromkeys((0x09, 0x0A, 0x2028, 0x2029), " ")
)


def on_one_line(text: str) -> str:
    """The text without a break or a control character, so that what follows a `#` stays a comment."""
    return text.translate(_CONTROLS)


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a line. `style`: one of STYLES, or none."""

    text: str
    style: str = ""


Line = tuple[Span, ...]
Cell = str | Span


def line(*pieces: Cell) -> Line:
    """Put a line together."""
    return tuple(map(_span, pieces))


def rendered(lines: Iterable[Line], *, colour: bool) -> str:
    """The text of the lines; without `colour` nothing but what is read."""
    return "\n".join("".join(_painted(span, colour=colour) for span in each).rstrip() for each in lines)


def colourful(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether somebody looks at it who sees colours, and has not asked for none (https://no-color.org)."""
    return stream.isatty() and environ.get("TERM", "dumb") != "dumb" and not environ.get("NO_COLOR")


def grid(head: Sequence[str], rows: Sequence[Sequence[Cell]], *, indent: str = "") -> Iterator[Line]:
    """Columns as wide as what is in them; those that are empty are left out."""
    cells = [[_span(cell) for cell in row] for row in rows]
    used = [n for n in range(len(head)) if any(row[n].text for row in cells)]
    widths = {n: max(len(head[n]), *(len(row[n].text) for row in cells)) for n in used}
    for row in ([Span(name, "dim") for name in head], *cells):
        padded = [(row[n], Span(" " * (widths[n] - len(row[n].text)) + GAP)) for n in used]
        yield (Span(indent), *(span for pair in padded for span in pair))


def age(passed: timedelta) -> str:
    """How long, in one unit, as kubectl says it: 95s, 12m, 5h, 3d."""
    seconds = max(0, int(passed.total_seconds()))
    for unit, size, below in (("s", 1, 120), ("m", 60, 120 * 60), ("h", 3600, 48 * 3600)):
        if seconds < below:
            return f"{seconds // size}{unit}"
    return f"{seconds // 86400}d"


def _span(cell: Cell) -> Span:
    return cell if isinstance(cell, Span) else Span(cell)


def _painted(span: Span, *, colour: bool) -> str:
    text = on_one_line(span.text)
    return f"\x1b[{STYLES[span.style]}m{text}\x1b[0m" if colour and span.style and text.strip() else text
