"""How sentences tell of many things, and of fields."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

MOST: Final = 3
SEVERAL: Final = 5
"""For a policy's conditions, which are all that many people see of its nodes."""


def few(words: Sequence[str], most: int = MOST, *, between: str = ", ") -> str:
    """`a, b, c and 2 more`."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return between.join(words[:most]) + more


def path_of(where: Iterable[int | str]) -> str:
    """A field by its place: `layouts[0].equal`; "" for the whole."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where).removeprefix(".")
