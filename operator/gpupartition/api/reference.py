"""Write the tables of fields in docs/reference.md from the CRDs: `python -m gpupartition.api.reference [file]`.

Only what stands between the two marks of a kind is written; the rest of the page is for people.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpupartition.api.crd import KINDS, Kind, Schema, crd

if TYPE_CHECKING:
    from collections.abc import Iterator

_BOUNDS: Final = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minProperties": "at least {} entries",
    "maxProperties": "at most {} entries",
    "maxLength": "at most {} characters",
}


def table(kind: Kind) -> str:
    """Return the fields of a kind as a table in Markdown."""
    properties = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    head = "| field | type | what it is |\n|---|---|---|\n"
    return head + "".join(
        row for name in ("spec", "status") for row in _rows(properties[name], name, required=name == "spec")
    )


def _rows(field: Schema, at: str, *, required: bool) -> Iterator[str]:
    notes = [_type(field), *(["required"] if required else []), *_limits(field)]
    yield f"| `{at}` | {', '.join(notes)} | {field.get('description', '').replace('|', chr(92) + '|')} |\n"
    inner, suffix = field, ""
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if key in field:
            inner, suffix = field[key], mark
    for name, member in inner.get("properties", {}).items():
        yield from _rows(member, f"{at}{suffix}.{name}", required=name in inner.get("required", []))


def _type(field: Schema) -> str:
    if "enum" in field:
        return " \\| ".join(f"`{value}`" for value in field["enum"])
    if "items" in field:
        return f"list of {_type(field['items'])}"
    if "additionalProperties" in field:
        return f"map of {_type(field['additionalProperties'])}"
    if field.get("format") == "date-time":
        return "time"
    return str(field.get("type", "integer or percentage"))


def _limits(field: Schema) -> Iterator[str]:
    for bound, text in _BOUNDS.items():
        if bound in field:
            yield text.format(field[bound])
    if field.get("default", {}) != {}:
        default = field["default"]
        yield f"default `{default if isinstance(default, str) else json.dumps(default)}`"


def rewritten(page: str) -> str:
    """Return the page with each kind's table as it is now. Raises KeyError for a kind that has no place on it."""
    for kind in KINDS:
        start, end = f"<!-- fields of {kind.kind} -->\n", "<!-- end -->"
        place = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
        if not place.search(page):
            msg = f"the page has no line {start.strip()!r} with an {end!r} after it: add both where the table belongs"
            raise KeyError(msg)
        text = start + table(kind) + end
        page = place.sub(lambda _, text=text: text, page)  # type: ignore[misc]
    return page


def main(file: str = "docs/reference.md") -> None:
    """Bring the page up to date."""
    path = Path(file)
    path.write_text(rewritten(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
