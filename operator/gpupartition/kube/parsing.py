"""JSON as an API server sends it: read by the fastest parser that there is, and what that does not take by a patient one.

Whoever may create a ResourceClaim may nest the parameters of a driver as deep as an API server takes it, which is ten times as deep as Python
reads, and every list and every watch of claims would fail for good. Nothing that is read here is that deep: there the rest is cut off.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import orjson

DEEPEST: Final = 200  # maps and lists in one another; of what has a schema the deepest comes to 40
_MARK: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)


def parsed(raw: bytes) -> Any:
    """What the text says, with null for whatever is too deep in it to be read. Raises ValueError for what is no JSON."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return _patiently(raw.decode(errors="replace"))


def _patiently(text: str) -> Any:
    """Numbers beyond all bounds, bytes that are no text, depths."""
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
