"""YAML and JSON that people and other programs wrote, read as kubectl reads it: in bounded time and memory, or not at all.

The parser's events are put together here, without recursion, and not by PyYAML: what its loaders make of some texts is an exception of
another kind, or never comes to an end. Keys are texts, as in JSON, and so are dates and times of the day. A key that is there twice is refused,
where kubectl takes the last: nobody knows which of the two was meant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Any, Final

import yaml

LONGEST: Final = 8 * 2**20
"""Characters of a text: a cluster's worth of manifests; the worst of such is read in some 20 s."""
LARGEST: Final = 4 * 2**20
"""Characters of a document as JSON, with all that its aliases stand for: API servers take 3 MiB."""
DEEPEST: Final = 100
"""Maps and lists in one another: schemas in CRDs, the deepest that is seen in such files, come to 40."""
MOST_DIGITS: Final = 64  # of a whole number, which with more is none, however it is written

SHOWN: Final = 80  # characters: a text is known by how it begins

_FORBIDDEN: Final = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_HALF: Final = re.compile("[\ud800-\udfff]")
_LOADER: Final = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_MERGE: Final = object()  # the key <<
_NO_KEY: Final = object()


class Illegible(ValueError):  # noqa: N818  (reads as what it is)
    """The text cannot be read. `line`: where, from 1 on; `why`: what is wrong there, and what to do."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line}: {why}")
        self.line = line
        self.why = why


def documents(text: str) -> Iterator[tuple[int, Any]]:
    """Each document and the line where it begins. Raises Illegible at the first thing that cannot be read."""
    if len(text) > LONGEST:
        raise Illegible(1, f"longer than {LONGEST // 2**20} MiB; keep of it what is needed here")
    text = text.removeprefix("\ufeff")
    if found := _FORBIDDEN.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise Illegible(line, f"the character U+{ord(found[0]):04X}, which no text has; remove it")
    if text.lstrip().startswith(("{", "[")):
        try:
            yield from _of_json(text)
        except (ValueError, RecursionError):
            pass  # YAML in braces, or a mistake, which is told below with its line
        else:
            return
    yield from _of_yaml(text)


def short(text: str) -> str:
    """As much of it as a message can quote."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


# ------------------------------------------------------------------------------------------------------------------------ JSON


def _of_json(text: str) -> list[tuple[int, Any]]:
    """One document after the other. Raises ValueError and RecursionError."""
    found: list[tuple[int, Any]] = []
    end = len(text) - len(text.lstrip())
    while end < len(text):
        line = text.count("\n", 0, end) + 1
        document, end = _JSON.raw_decode(text, end)
        _check(document)
        found.append((line, document))
        end += len(text[end:]) - len(text[end:].lstrip())
    return found


def _check(document: Any) -> None:
    """Raise ValueError for what is too large, too deep, or has half of a character in it."""
    if len(json.dumps(document, ensure_ascii=False).encode()) > LARGEST:
        raise ValueError("too large")
    level = [document]
    for _ in range(DEEPEST + 1):
        level = [each for value in level if isinstance(value, dict | list) for each in _in(value)]
    if level:
        raise ValueError("too deep")


def _in(value: dict[str, Any] | list[Any]) -> Iterator[Any]:
    return iter(value.values() if isinstance(value, dict) else value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key is there twice")
    return made


def _whole(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError("too many digits")
    return int(text)


def _fraction(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError("not finite")
    return number


_JSON: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_whole, parse_float=_fraction, parse_constant=_fraction
)


# ------------------------------------------------------------------------------------------------------------------------ YAML


def _of_yaml(text: str) -> Iterator[tuple[int, Any]]:
    document = _Document(1)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            line = event.start_mark.line + 1 if event.start_mark else 1
            if isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
                document.add(event, line)
            elif isinstance(event, yaml.DocumentStartEvent):
                document = _Document(line)
            elif isinstance(event, yaml.DocumentEndEvent):
                yield document.line, document.root
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        said = (getattr(error, "context", None), getattr(error, "problem", None) or getattr(error, "reason", None))
        why = ": ".join(" ".join(str(part).split()) for part in said if part)
        raise Illegible(mark.line + 1 if mark else document.line, f"not YAML: {why}") from error


class _Open:
    """A map or a list whose end has not come."""

    __slots__ = ("anchor", "began", "key", "made", "merged")

    def __init__(self, made: dict[str, Any] | list[Any], anchor: str | None, began: int) -> None:
        self.made = made
        self.anchor = anchor
        self.began = began  # the size of the document so far
        self.key: Any = _NO_KEY
        self.merged: list[Mapping[str, Any]] = []


class _Document:
    """One document, event by event. Its size counts what an alias stands for each time: to walk through it takes as long."""

    def __init__(self, line: int) -> None:
        self.line = line
        self.root: Any = None
        self._size = 0
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Any, int] | None] = {}  # with its size; None: it is still open

    def add(self, event: Any, line: int) -> None:
        """Take what comes next. Raises Illegible."""
        match event:
            case yaml.ScalarEvent():
                value, size = _scalar(event, line), len(event.value) + 3  # quotes and a comma
                self._grow(size, line)
                if event.anchor:
                    self._anchors[event.anchor] = value, size
                self._put(value, line)
            case yaml.AliasEvent():
                value, size = self._named(event.anchor, line)
                self._grow(size, line)
                self._put(value, line)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                if event.tag not in _COLLECTIONS:
                    raise Illegible(line, _unknown(event.tag))
                self._grow(3, line)
                if len(self._open) == DEEPEST:
                    raise Illegible(line, f"more than {DEEPEST} maps and lists in one another; nothing here is so deep")
                made: dict[str, Any] | list[Any] = {} if isinstance(event, yaml.MappingStartEvent) else []
                if event.anchor:
                    self._anchors[event.anchor] = None
                self._open.append(_Open(made, event.anchor, self._size))
            case _:  # the end of one
                self._close(line)

    def _named(self, anchor: Any, line: int) -> tuple[Any, int]:
        try:
            found = self._anchors[anchor]
        except KeyError:
            raise Illegible(line, f"there is no anchor &{anchor} before; write one, or what it stands for") from None
        if found is None:
            raise Illegible(line, f"&{anchor} contains itself; write what is meant in full")
        return found

    def _grow(self, by: int, line: int) -> None:
        self._size += by
        if self._size > LARGEST:
            raise Illegible(
                line,
                f"up to here the document comes to more than {LARGEST // 2**20} MiB, with what its aliases stand for: more than any API "
                "server takes; write less, or several",
            )

    def _close(self, line: int) -> None:
        closed = self._open.pop()
        if isinstance(closed.made, dict):
            for merged in closed.merged:
                for name, value in merged.items():
                    closed.made.setdefault(name, value)
        if closed.anchor:
            self._anchors[closed.anchor] = closed.made, self._size - closed.began
        self._put(closed.made, line)

    def _put(self, value: Any, line: int) -> None:
        if not self._open:
            self.root = None if value is _MERGE else value
            return
        top = self._open[-1]
        if isinstance(top.made, list):
            top.made.append("<<" if value is _MERGE else value)
        elif top.key is _NO_KEY:
            top.key = value if value is _MERGE else _key(value, line)
        elif top.key is _MERGE:
            top.merged += _maps(value, line)
            top.key = _NO_KEY
        elif top.key in top.made:
            raise Illegible(line, f"the key {short(top.key)} is there already; keep one of them")
        else:
            top.made[top.key] = "<<" if value is _MERGE else value
            top.key = _NO_KEY


def _maps(value: Any, line: int) -> list[Mapping[str, Any]]:
    """What is merged into a map; of two the first wins."""
    found = value if isinstance(value, list) else [value]
    if not all(isinstance(each, dict) for each in found):
        raise Illegible(line, "<< takes a map, or a list of maps; write one")
    return found


def _key(value: Any, line: int) -> str:
    """A key as JSON has it."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return str(int(value)) if value.is_integer() else repr(value)
        case _:
            raise Illegible(line, "null, a map or a list is no key; write a text")


# --------------------------------------------------------------------------------------------------------------------- scalars


def _number(text: str) -> Any:
    digits = text.replace("_", "").lower()
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits; write one that fits into 64 bits, or a text, in quotes")
    sign, digits = (-1, digits[1:]) if digits[0] == "-" else (1, digits.removeprefix("+"))
    prefix = digits[:2] if digits[:2] in _BASES else ""
    octal = not prefix and re.fullmatch("0[0-7]+", digits)
    try:
        return sign * int(digits.removeprefix(prefix), 8 if octal else _BASES[prefix])
    except ValueError:  # a base, and no digit
        return text


def _float(text: str) -> Any:
    digits = text.replace("_", "").lower()
    if digits.lstrip("+-") in {".inf", ".nan"}:
        return float(digits.replace(".", ""))
    number = float(digits)
    return number if isfinite(number) else text


_BASES: Final = {"": 10, "0b": 2, "0o": 8, "0x": 16}
_MEANT: Final[
    Mapping[str, tuple[re.Pattern[str], Callable[[str], Any]]]
] = {  # by tag; plain texts are what they look like
    "null": (re.compile("|~|null|Null|NULL"), lambda _: None),
    "bool": (
        re.compile("y|Y|yes|Yes|YES|true|True|TRUE|on|On|ON|n|N|no|No|NO|false|False|FALSE|off|Off|OFF"),
        lambda text: text[0] in "yYtT" or text in {"on", "On", "ON"},
    ),
    "int": (re.compile("[-+]?(0b[01_]+|0o[0-7_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*)"), _number),
    "float": (
        re.compile(
            r"[-+]?(\.[0-9][0-9_]*|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
        ),
        _float,
    ),
    "merge": (re.compile("<<"), lambda _: _MERGE),
}
_PLAINLY: Final = frozenset("ABCDEGHIJKLMPQRSUVWXZabcdeghijklmpqrsuvwxz/_*")
"""What begins so looks like a text, as most do."""
_COLLECTIONS: Final = (None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


def _scalar(event: yaml.ScalarEvent, line: int) -> Any:
    text, tag = event.value, event.tag
    if not text.isascii() and _HALF.search(text):
        raise Illegible(line, "half of a character (a surrogate); write the character itself")
    if (tag is None and not event.implicit[0]) or tag in {"!", "tag:yaml.org,2002:str"}:
        return text
    if tag is None:
        if text[:1] in _PLAINLY:
            return text
        meant = next((each for each in _MEANT.values() if each[0].fullmatch(text)), None)
    else:
        meant = _MEANT.get(tag.removeprefix("tag:yaml.org,2002:"))
        if meant is None or not meant[0].fullmatch(text):
            raise Illegible(line, _unknown(tag))
    try:
        return text if meant is None else meant[1](text)
    except ValueError as error:
        raise Illegible(line, str(error)) from None


def _unknown(tag: str) -> str:
    written = tag.replace("tag:yaml.org,2002:", "!!")
    return f"the tag {short(written)} says nothing here; leave it out, and write the value as JSON has it"
