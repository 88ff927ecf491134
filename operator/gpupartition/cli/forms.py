"""The forms in which a command can give what it found: a table for people, JSON and YAML for programs, names for other commands."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from gpupartition.cli.paint import Line, colourful, on_one_line, rendered

T = TypeVar("T")

NAMES: Final = ("table", "json", "yaml", "name")


def forms(
    *,
    picture: Callable[[T, datetime], Iterable[Line]],
    data: Callable[[T], Mapping[str, Any]],
    names: Callable[[T], Iterable[str]],
) -> Mapping[str, Callable[[T], str]]:
    """All forms, from what is drawn (with the time at which it is), what is known, and what the objects are called."""
    return {
        "table": lambda found: painted(picture(found, datetime.now(UTC))),
        "json": lambda found: json.dumps(data(found), indent=2),
        "yaml": lambda found: _yaml(data(found)),
        "name": lambda found: "\n".join(map(on_one_line, names(found))),
    }


def objects(
    of: Callable[[T], Iterable[Mapping[str, Any]]], *, text: Callable[[T], str] | None = None
) -> Mapping[str, Callable[[T], str]]:
    """The forms of objects that kubectl applies: documents (`text`: with more to say in them), one List, or names."""
    return {
        "json": lambda found: json.dumps({"apiVersion": "v1", "kind": "List", "items": list(of(found))}, indent=2),
        "yaml": text or (lambda found: document(*of(found)).rstrip("\n")),
        "name": lambda found: "\n".join(map(_name, of(found))),
    }


def document(*bodies: Mapping[str, Any]) -> str:
    """Objects as YAML, in the order in which they are given; what is long is not folded, so that an expression stays in one line."""
    import yaml

    return str(yaml.safe_dump_all(bodies, sort_keys=False, width=1_000_000))


def _name(body: Mapping[str, Any]) -> str:
    group = body["apiVersion"].rpartition("/")[0]
    return f"{body['kind'].lower()}{group and '.'}{group}/{body['metadata']['name']}"


def painted(lines: Iterable[Line]) -> str:
    """As stdout can show it."""
    return rendered(lines, colour=colourful(sys.stdout, os.environ))


def moment(at: datetime | None) -> str | None:
    """A time as the API writes it."""
    return at.isoformat().replace("+00:00", "Z") if at else None


def _yaml(data: Mapping[str, Any]) -> str:
    import yaml

    return str(yaml.safe_dump(data, sort_keys=False)).rstrip()
