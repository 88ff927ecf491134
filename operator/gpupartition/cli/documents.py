"""Drivers and policies as people write them, read from files before any server has seen them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from gpupartition.cli.offline import KINDS, refused
from gpupartition.cli.options import Unusable
from gpupartition.cli.paint import on_one_line
from gpupartition.domain.yaml_text import LONGEST, Illegible, documents, short
from gpupartition.names import API_VERSION, GROUP

if TYPE_CHECKING:
    from gpupartition.kube import Object

STDIN: Final = "-"
MOST: Final = 100  # mistakes of all files together, and kinds that are passed over: more nobody reads at once
SUFFIXES: Final = frozenset({".json", ".yaml", ".yml"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One object and where it was found: `policy.yaml, document 2 (line 14)`."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    """What is looked for in files: the version of each kind, what is wrong with an object of it, by path, and what is `done` with it."""

    versions: Mapping[str, str]
    refused: Callable[[Object], list[tuple[str, str]]]
    done: str
    nothing: str
    """What to say of files without any."""

    def are_other(self, body: Any) -> bool:
        """Whether it is an object that this is not about, such as those that stand beside a policy in what kustomize prints."""
        if not isinstance(body, dict) or not isinstance(body.get("kind"), str):
            return False
        kind, group = body["kind"], str(body.get("apiVersion")).split("/")[0]
        return kind == "GpuPartitionNodeState" or (kind not in self.versions and group != GROUP)


OURS: Final = Kinds(
    versions=dict.fromkeys(KINDS, API_VERSION),
    refused=refused,
    done="planned",
    nothing="no GpuPartitionPolicy and no GpuPartitionDriver in there",
)


def whole(kind: str, spec: Any) -> Object:
    """A spec of ours with all its defaults, as an API server keeps it. Raises ValidationError."""
    from gpupartition.api.v1alpha1 import DriverSpec, PolicySpec

    model = PolicySpec if kind == "GpuPartitionPolicy" else DriverSpec
    made: Object = model.model_validate(spec).model_dump(mode="json", by_alias=True, exclude_none=True)
    return made


def read(paths: Sequence[str], stdin: BinaryIO | None = None, *, kinds: Kinds = OURS) -> list[Document]:
    """All objects of these kinds in these files and folders (`-`: stdin); none where no file is named.

    Raises Unusable with the mistakes in them; other kinds are counted on stderr.
    """
    mistakes: list[str] = []
    found: list[Document] = []
    others: Counter[str] = Counter()
    for path in (file for given in paths for file in _files(given)):
        named = "stdin" if path == STDIN else path
        try:
            text = _text(path, stdin)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            mistakes.append(f"{named}: {why}; name a file with a GpuPartitionPolicy, or - for stdin")
            continue
        for at, body in _objects(text, named, mistakes):
            if kinds.are_other(body):
                others[body["kind"]] += 1
                continue
            document, wrong = _document(body, at, kinds)
            mistakes += wrong
            found += [document] if document else []
    seen: dict[tuple[str, str, str], str] = {}
    for document in found:
        key = document.kind, document.body["metadata"].get("namespace", ""), document.name
        if key in seen:
            mistakes.append(
                f"{document.at}: {document.kind} {document.name} is in {seen[key]} already; keep one of them"
            )
        seen[key] = document.at
    if mistakes:
        more = [f"and {len(mistakes) - MOST} mistakes more"] if len(mistakes) > MOST else []
        raise Unusable(*mistakes[:MOST], *more)
    passed_over = ", ".join(f"{count} {short(kind)}" for kind, count in sorted(others.items())[:MOST])
    if paths and not found:
        raise Unusable(
            f"{', '.join('stdin' if p == STDIN else p for p in paths)}: {kinds.nothing}"
            + (passed_over and f", but {passed_over}")
        )
    if passed_over:
        print(on_one_line(f"passed over, as nothing is {kinds.done} for it: {passed_over}"), file=sys.stderr)  # noqa: T201
    return found


def _files(path: str) -> list[str]:
    """The files that are meant: of a folder those that `kubectl apply -f` takes of it, which are none in folders of its own."""
    if path in {"", STDIN}:
        return [path]
    try:
        return sorted(str(each) for each in Path(path).iterdir() if each.suffix in SUFFIXES)
    except (OSError, ValueError):  # it is no folder; what it is instead is seen when it is read
        return [path]


def _text(path: str, stdin: BinaryIO | None) -> str:
    """What is in there. Raises OSError and ValueError."""
    if path == STDIN:
        stdin = stdin or getattr(sys.stdin, "buffer", None)
        if stdin is None:
            raise ValueError("it is closed")
        read = stdin.read(LONGEST + 1)
    else:
        with Path(path).open("rb") as file:
            read = file.read(LONGEST + 1)
    if len(read) > LONGEST:
        raise ValueError(f"more than {LONGEST // 2**20} MiB, most of which can be nothing that is planned")
    try:
        return read.decode()
    except UnicodeDecodeError as error:
        line = read.count(b"\n", 0, error.start) + 1
        raise ValueError(f"no UTF-8 text in line {line}") from error


def _objects(text: str, named: str, mistakes: list[str]) -> Iterator[tuple[str, Any]]:
    """What is in the text, and where: empty documents are left out, and what `kubectl get -o yaml` writes is a List."""
    try:
        parsed = [(line, body) for line, body in documents(text) if body is not None]
    except Illegible as illegible:
        mistakes.append(f"{named}, {illegible}")
        return
    for number, (line, body) in enumerate(parsed, 1):
        yield from _flat(body, named if len(parsed) == 1 else f"{named}, document {number} (line {line})")


def _flat(body: Any, at: str) -> Iterator[tuple[str, Any]]:
    if isinstance(body, dict) and body.get("kind") == "List" and isinstance(body.get("items"), list):
        for number, item in enumerate(body["items"], 1):
            yield from _flat(item, f"{at}, item {number}")
    else:
        yield at, body


def _document(body: Any, at: str, kinds: Kinds) -> tuple[Document | None, list[str]]:
    if not isinstance(body, dict) or not isinstance(body.get("kind"), str):
        return None, [f"{at}: no Kubernetes object: it has no kind; write kind: GpuPartitionPolicy"]
    kind, version = body["kind"], body.get("apiVersion")
    if kind not in kinds.versions:
        return None, [f"{at}: kind {short(kind)} is none of {', '.join(sorted(kinds.versions))}"]
    if version != kinds.versions[kind]:
        return None, [f"{at}: apiVersion {short(str(version))} of {kind} is not known; write {kinds.versions[kind]}"]
    sent = _sent(body)
    meta = sent.get("metadata")
    head = " ".join(
        [f"{at}: {kind}", *([short(str(meta["name"]))] if isinstance(meta, dict) and "name" in meta else ())]
    )
    wrong = [": ".join(filter(None, (head, path, says))) for path, says in kinds.refused(sent)]
    return (None, wrong) if wrong else (Document(at=at, body=sent), [])


def _sent(value: Any) -> Any:
    """As it comes to the API server, to which a null in a map says no more than nothing does; 2.0 is 2, and 2**63 no whole number."""
    match value:
        case dict():
            return {name: _sent(each) for name, each in value.items() if each is not None}
        case list():
            return [_sent(each) for each in value]
        case float() if value.is_integer() and abs(value) < 2**63:
            return int(value)
        case int() if abs(value) >= 2**63:
            return float(value)
        case _:
            return value
