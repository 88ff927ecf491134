"""Drivers and policies as people write them, read from files before any server has seen them."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, TextIO

import yaml

from gpupartition.cli.offline import KINDS, refused
from gpupartition.cli.options import Unusable
from gpupartition.names import API_VERSION, GROUP

Object = dict[str, Any]

STDIN: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One object and where it was found: `policy.yaml, document 2`."""

    at: str
    body: Object

    @property
    def kind(self) -> str:
        """Its kind."""
        return str(self.body["kind"])

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.body["metadata"]["name"])


def read(paths: Sequence[str], stdin: TextIO = sys.stdin) -> list[Document]:
    """All drivers and policies in these files (`-`: stdin). Raises Unusable with every mistake in them; other kinds are counted on stderr."""
    mistakes: list[str] = []
    found: list[Document] = []
    others: Counter[str] = Counter()
    for path in paths:
        named = "stdin" if path == STDIN else path
        try:
            text = stdin.read() if path == STDIN else Path(path).read_text(encoding="utf-8")
            parsed = list(yaml.load_all(text, _Loader))
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else "not UTF-8 text"
            mistakes.append(f"{named}: {why}; name a file with a GpuPartitionPolicy, or - for stdin")
            continue
        except yaml.YAMLError as error:
            mistakes.append(f"{named}: not YAML: {' '.join(str(error).split())}")
            continue
        for number, body in enumerate(_flat(parsed), 1):
            if _is_other(body):
                others[body["kind"]] += 1
                continue
            document, wrong = _document(body, named if len(parsed) == 1 else f"{named}, document {number}")
            mistakes += wrong
            found += [document] if document else []
    seen: dict[tuple[str, str], str] = {}
    for document in found:
        key = document.kind, document.name
        if key in seen:
            mistakes.append(
                f"{document.at}: {document.kind} {document.name} is in {seen[key]} already; keep one of them"
            )
        seen[key] = document.at
    if mistakes:
        raise Unusable(*mistakes)
    passed_over = ", ".join(f"{count} {kind}" for kind, count in sorted(others.items()))
    if not found:
        raise Unusable(
            f"{', '.join('stdin' if p == STDIN else p for p in paths)}: no GpuPartitionPolicy and no GpuPartitionDriver in there"
            + (passed_over and f", but {passed_over}")
        )
    if passed_over:
        print(f"passed over, as nothing is planned for it: {passed_over}", file=sys.stderr)  # noqa: T201
    return found


class _Loader(yaml.SafeLoader):
    """YAML as kubectl reads it, to whom 22:00 and 2026-11-30 are texts, and no number of minutes and no date."""


_SIXTIETHS: Final = "tag:yaml.org,2002:str", re.compile(r"^[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?$")
_Loader.yaml_implicit_resolvers = {
    first: [_SIXTIETHS, *((tag, form) for tag, form in forms if tag != "tag:yaml.org,2002:timestamp")]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _flat(bodies: Iterable[Any]) -> Iterator[Any]:
    """Without empty documents; what `kubectl get -o yaml` writes is a List."""
    for body in bodies:
        if isinstance(body, dict) and body.get("kind") == "List" and isinstance(body.get("items"), list):
            yield from _flat(body["items"])
        elif body is not None:
            yield body


def _is_other(body: Any) -> bool:
    """Whether it is an object that plans are not about, such as those that stand beside a policy in what kustomize prints."""
    if not isinstance(body, dict) or not isinstance(body.get("kind"), str):
        return False
    kind, group = body["kind"], str(body.get("apiVersion")).split("/")[0]
    return kind == "GpuPartitionNodeState" or (kind not in KINDS and group != GROUP)


def _document(body: Any, at: str) -> tuple[Document | None, list[str]]:
    if not isinstance(body, dict) or not isinstance(body.get("kind"), str):
        return None, [f"{at}: no Kubernetes object: it has no kind; write kind: GpuPartitionPolicy"]
    kind, version = body["kind"], body.get("apiVersion")
    if kind not in KINDS:
        return None, [f"{at}: kind {kind} is none of {', '.join(sorted(KINDS))}"]
    if version != API_VERSION:
        return None, [f"{at}: apiVersion {version} of {kind} is not known; write {API_VERSION}"]
    try:
        sent = _sent(body)
    except (TypeError, ValueError) as error:
        return None, [f"{at}: {kind} says what no JSON can say: {error}"]
    meta = sent.get("metadata")
    head = " ".join([f"{at}: {kind}", *([str(meta["name"])] if isinstance(meta, dict) and "name" in meta else ())])
    wrong = [": ".join(filter(None, (head, path, says))) for path, says in refused(sent)]
    return (None, wrong) if wrong else (Document(at=at, body=sent), [])


def _sent(body: Object) -> Object:
    """The object as it comes to the API server, to which a null in a map says no more than nothing does. Raises TypeError and ValueError."""
    read: Object = json.loads(
        json.dumps(body, default=str),
        object_hook=lambda members: {name: value for name, value in members.items() if value is not None},
        parse_int=_number,
        parse_float=_number,
    )
    return read


def _number(text: str) -> int | float:
    """2.0 is 2, and what is too large for 64 bits is no whole number."""
    number = Decimal(text)
    return int(number) if number == number.to_integral_value() and abs(number) < 2**63 else float(number)
