"""Drivers and policies as people write them, read from files before any server has seen them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

import yaml
from pydantic import ValidationError

from gpupartition.api import rules
from gpupartition.api.v1alpha1 import (
    Drain,
    DrainMode,
    DriverSpec,
    Layout,
    LayoutType,
    Match,
    Model,
    NodeSelector,
    OnTimeout,
    PodSelector,
    PolicySpec,
    Sharing,
    Window,
)
from gpupartition.names import API_VERSION

Object = dict[str, Any]

STDIN: Final = "-"
SPECS: Final[Mapping[str, type[Model]]] = {"GpuPartitionDriver": DriverSpec, "GpuPartitionPolicy": PolicySpec}


class Unusable(Exception):  # noqa: N818  (reads as what happened)
    """Documents cannot be planned with; one line for each mistake: where, what, what to do."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


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
    """All drivers and policies in these files (`-`: stdin). Raises Unusable with every mistake in them."""
    mistakes: list[str] = []
    found: list[Document] = []
    for path in paths:
        named = "stdin" if path == STDIN else path
        try:
            text = stdin.read() if path == STDIN else Path(path).read_text(encoding="utf-8")
            parsed = list(yaml.safe_load_all(text))
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else "not UTF-8 text"
            mistakes.append(f"{named}: {why}; name a file with a GpuPartitionPolicy, or - for stdin")
            continue
        except yaml.YAMLError as error:
            mistakes.append(f"{named}: not YAML: {' '.join(str(error).split())}")
            continue
        for number, body in enumerate(_flat(parsed), 1):
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
    if not found:
        raise Unusable(
            f"{', '.join('stdin' if p == STDIN else p for p in paths)}: no GpuPartitionPolicy and no GpuPartitionDriver in there"
        )
    return found


def _flat(bodies: Iterable[Any]) -> Iterator[Any]:
    """Without empty documents; what `kubectl get -o yaml` writes is a List."""
    for body in bodies:
        if isinstance(body, dict) and body.get("kind") == "List" and isinstance(body.get("items"), list):
            yield from _flat(body["items"])
        elif body is not None:
            yield body


def _document(body: Any, at: str) -> tuple[Document | None, list[str]]:
    if not isinstance(body, dict) or not isinstance(body.get("kind"), str):
        return None, [f"{at}: no Kubernetes object: it has no kind; write kind: GpuPartitionPolicy"]
    kind, version = body["kind"], body.get("apiVersion")
    if kind not in SPECS:
        return None, [f"{at}: kind {kind} is none of {', '.join(sorted(SPECS))}; leave it out"]
    if version != API_VERSION:
        return None, [f"{at}: apiVersion {version} of {kind} is not known; write {API_VERSION}"]
    meta = body.get("metadata")
    if not isinstance(meta, dict) or not isinstance(meta.get("name"), str) or not meta["name"]:
        return None, [f"{at}: metadata.name: is missing; name the {kind}"]
    document = Document(at=at, body=body)
    head = f"{at}: {kind} {meta['name']}"
    try:
        spec = SPECS[kind].model_validate(body.get("spec"))
    except ValidationError as error:
        return None, [f"{head}: {_path(e['loc'])}: {_said(e)}" for e in error.errors()]
    wrong = [f"{head}: {path}: {says}" for path, says in refused_by_the_api(spec)]
    return (None, wrong) if wrong else (document, [])


def _path(loc: Iterable[int | str]) -> str:
    return "spec" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)


def _said(error: Mapping[str, Any]) -> str:
    given = error.get("input")
    shown = f" (it is {given!r})" if isinstance(given, str | int | float | bool) else ""
    unknown = "; `kubectl explain` tells the fields that there are" if error["type"] == "extra_forbidden" else ""
    return f"{error['msg']}{shown}{unknown}"


# ------------------------------------------------------------------------------------------- what the API server refuses by CEL
#
# Only what would otherwise be planned as something else than what was written. The API server checks these and all others when the object
# is applied, as `kubectl apply --dry-run=server` shows.

_FORM: Final = re.compile(r"(type\(self\) == int \? self >= (?P<least>\d+) : )?self\.matches\('(?P<pattern>[^']+)'\)")

_MEMBERS: Final[Sequence[tuple[type[Model], str, str, str]]] = (
    (Layout, LayoutType.EQUAL, "equal", "equal: {parts: 2}"),
    (Layout, LayoutType.CHOICES, "choices", "choices: {profiles: [...]}"),
    (Layout, LayoutType.PROFILES, "profiles", "profiles: [{name: 1g.10gb, count: 7}]"),
    (Layout, LayoutType.MODE, "mode", "mode: {compute: CPX, memory: NPS1}"),
    (DriverSpec, "ExampleDriver", "example_driver", "exampleDriver: {daemonSet: {...}, gpusPerNode: 8}"),
    (DriverSpec, "Publish", "publish", "publish: {driverName: ..., inventory: ...}"),
    (DriverSpec, "NvidiaMig", "nvidia_mig", "nvidiaMig: {migManager: {...}, config: ..., plugin: {...}}"),
    (DriverSpec, "AmdDcm", "amd_dcm", "amdDcm: {configManager: {...}, config: ..., plugin: {...}}"),
)


def refused_by_the_api(model: Model, at: str = "spec") -> Iterator[tuple[str, str]]:
    """Path and sentence of what an API server would refuse in this model and all below it."""
    yield from _wrong(model, at)
    for name, info in type(model).model_fields.items():
        value, path = getattr(model, name), f"{at}.{info.alias or name}"
        yield from ((path, f"{says} (it is {value!r})") for says in _unlike(info.json_schema_extra, value))
        for place, each in enumerate(value) if isinstance(value, list) else ():
            if isinstance(each, Model):
                yield from refused_by_the_api(each, f"{path}[{place}]")
        if isinstance(value, Model):
            yield from refused_by_the_api(value, path)


def _unlike(extra: object, value: object) -> Iterator[str]:
    """What the rules of a field say to a value, as far as they are a least number and a pattern."""
    declared = extra.get("x-kubernetes-validations", ()) if isinstance(extra, dict) else ()
    for rule in declared:
        form = _FORM.fullmatch(rule["rule"])
        if form is None or not isinstance(value, int | str):
            continue
        least, pattern = form["least"], form["pattern"]
        holds = value >= int(least or 0) if isinstance(value, int) else re.search(pattern, value)
        if not holds:
            yield rule["message"]


def _wrong(model: Model, at: str) -> Iterator[tuple[str, str]]:
    for of, kind, member, example in _MEMBERS:
        if isinstance(model, of) and (getattr(model, "type") == kind) != (getattr(model, member) is not None):  # noqa: B009
            alias = type(model).model_fields[member].alias
            wanted = getattr(model, "type") == kind  # noqa: B009
            yield (
                f"{at}.{alias}",
                f"type {kind} says how in here: write {example}" if wanted else f"belongs to type {kind}",
            )
    if isinstance(model, NodeSelector) and not (model.match_labels or model.match_expressions):
        yield at, rules.NODE_SELECTOR.says
    if isinstance(model, PodSelector) and not (model.match_labels or model.match_expressions):
        yield at, rules.POD_SELECTOR.says
    if isinstance(model, Drain) and model.mode is not DrainMode.EVICT:
        used = {
            "onTimeout": model.on_timeout is OnTimeout.FORCE_DELETE,
            "gracePeriodSeconds": model.grace_period_seconds,
        }
        used |= {"deleteEmptyDir": model.delete_empty_dir, "force": model.force}
        used |= {"waitForCompletion": model.wait_for_completion is not None}
        yield from ((f"{at}.{name}", rules.DRAIN[0].says) for name, there in used.items() if there)
    if isinstance(model, Match) and not (model.all or model.products or model.indexes):
        yield at, rules.MATCH[0].says
    if isinstance(model, Match) and model.all and (model.products or model.indexes):
        yield at, rules.MATCH[1].says
    if isinstance(model, Sharing) and model.capacity and model.mode != "Shared":
        yield f"{at}.capacity", rules.SHARING.says
    if isinstance(model, Window) and model.start == model.end:
        yield f"{at}.end", rules.WINDOW.says
    if isinstance(model, PolicySpec):
        if any(layout.match.all for layout in model.layouts[:-1]):
            yield f"{at}.layouts", rules.LAYOUTS.says
        names = [layout.name for layout in model.layouts]
        yield from (
            (f"{at}.layouts[{n}].name", f"{name} is there already") for n, name in enumerate(names) if name in names[:n]
        )
