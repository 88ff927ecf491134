"""How many things are told in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MOST: Final = 3


def few(words: Sequence[str], most: int = MOST) -> str:
    """`a, b, c and 2 more`."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more
