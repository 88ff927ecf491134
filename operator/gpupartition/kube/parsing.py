"""JSON in which somebody has nested a value as deep as an API server takes it, which is ten times as deep as Python reads.

Whoever may create a ResourceClaim may do that, in the parameters of a driver, and every list and every watch of claims would fail for
good. Nothing that is read here is that deep: there the rest is cut off.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

DEEPEST: Final = 200  # maps and lists in one another; of what has a schema the deepest comes to 40
_MARK: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)


def parsed(text: str) -> Any:
    """What the text says, with null for whatever is too deep in it to be read. Raises ValueError for what is no JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        return json.loads(_shallow(text))


def _shallow(text: str) -> str:
    kept: list[str] = []
    depth = begin = 0
    for mark in _MARK.finditer(text):
        if mark[0] in "[{":
            depth += 1
            if depth == DEEPEST:
                kept += (text[begin : mark.start()], "null")
        elif mark[0] in "]}":
            if depth == DEEPEST:
                begin = mark.end()
            depth -= 1
    return "".join(kept) + text[begin:]
