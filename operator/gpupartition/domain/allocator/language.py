"""The CEL of selectors: what Kubernetes has besides the library's language.

What the library's grammar does not have is said in what it has before it is evaluated: an optional `.?name` or `[?key]` as a call, `has` as
another, and `cel.bind` as the bound expression in the place of its name.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from celpy import Runner
from celpy.celtypes import BoolType, DoubleType, IntType, ListType, MapType, StringType, UintType
from celpy.evaluation import CELEvalError

from gpupartition.domain.allocator.semver import Semver
from gpupartition.domain.cel import QUANTITIES, program


@lru_cache(maxsize=1024)
def compiled(expression: str) -> Runner:
    """The expression, to be evaluated with `device` and `optional`. Raises ValueError for what is no CEL."""
    return program(_without_optionals(expression), _FUNCTIONS, _prepare)


def _prepare(tree: Any) -> None:
    _without_bindings(tree)
    _without_detours(tree)
    _without_has(tree)


# Maps that are asked by name.


class Domains(MapType):
    """A map of maps, by domain. What has nothing of a domain has an empty map of it."""

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) if key in self else MapType()


class Open(MapType):
    """A map of which only some is known. Nobody can say what else is in it, nor that something is not."""

    def __init__(self, inside: Callable[[], MapType] | None = None) -> None:
        super().__init__()
        self._inside = inside

    def __getitem__(self, key: Any) -> Any:
        if key in self:
            return super().__getitem__(key)
        return not_known() if self._inside is None else self.setdefault(key, self._inside())

    def __iter__(self) -> Iterator[Any]:
        raise not_known()

    def __len__(self) -> int:
        raise not_known()


def not_known() -> CELEvalError:
    """The error of asking for what is not known yet."""
    return CELEvalError("it is not known yet", LookupError, None)


# Other words for what the grammar does not have.

_TOKEN: Final = re.compile(
    r"""[rR]?(?:'''(?:.|\n)*?'''|\"{3}(?:.|\n)*?\"{3}|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')"""  # a text, whatever is in it
    r"""|\.\?\s*(?P<name>[_a-zA-Z]\w*)|(?P<open>(?<=[\w\])"'])\[\?)|(?P<other>[\[\]])""",
)


def _without_optionals(expression: str) -> str:
    """`a.?b` as `a.optionally("b")`, and `a[?b]` as `a.optionally(b)`."""
    closing: list[str] = []

    def said(token: re.Match[str]) -> str:
        if token["name"]:
            return f'.optionally("{token["name"]}")'
        if token["open"]:
            closing.append(")")
            return ".optionally("
        if token["other"] == "[":
            closing.append("]")
        return closing.pop() if token["other"] == "]" and closing else token[0]

    return _TOKEN.sub(said, expression)


def _without_bindings(tree: Any) -> None:
    """`cel.bind(name, bound, expression)` as the expression with the bound one in the place of each name, and `optMap` as a `map`."""
    for child in _trees(tree):
        _without_bindings(child)
    match tree.data, tree.children:
        case "member_dot_arg", [cel, "bind", arguments] if _name(cel) == "cel":
            match arguments.children:
                case [name, bound, expression] if _name(name):
                    _put_in(expression, _name(name), bound)
                    tree.data, tree.children = "expr", [expression]
        case "member_dot_arg", [optional, ("optMap" | "optFlatMap") as called, arguments]:
            call, named = type(tree), type(called)
            values = call("member_dot_arg", [optional, named("IDENT", "values")])
            mapped = call("member_dot_arg", [values, named("IDENT", "map"), arguments])
            tree.children = [mapped, named("IDENT", _MAPPED[called])]


_MAPPED: Final = {"optMap": "optMapped", "optFlatMap": "optFlatMapped"}


def _put_in(tree: Any, name: str, bound: Any) -> None:
    if tree.data == "ident" and tree.children == [name]:
        tree.data, tree.children = "paren_expr", [bound]
        return
    for child in _trees(tree):
        _put_in(child, name, bound)


def _without_has(tree: Any) -> None:
    """`has(a.b)` as the call `a.present("b")`: the library takes any error for a no."""
    for child in _trees(tree):
        _without_has(child)
    match tree.data, tree.children:
        case "ident_arg", ["has", arguments]:
            (field,) = arguments.children
            if field.data == "member_dot":
                inside, name = field.children
                text = type(tree)("literal", [type(name)("STRING_LIT", f'"{name}"')])
                call = type(tree)(
                    "member_dot_arg", [inside, type(name)("IDENT", "present"), type(tree)("exprlist", [text])]
                )
                tree.data, tree.children = "paren_expr", [call]


_LEVELS: Final = {
    "expr",
    "conditionalor",
    "conditionaland",
    "relation",
    "addition",
    "multiplication",
    "unary",
    "member",
}


def _without_detours(tree: Any) -> None:
    """The grammar has a level for each precedence, and nearly all have nothing to say: without them, evaluating takes 60 % of the time."""
    for index, child in enumerate(tree.children):
        while not isinstance(child, str) and child.data in _LEVELS and len(child.children) == 1:
            child = child.children[0]  # noqa: PLW2901
        tree.children[index] = child
    for child in _trees(tree):
        _without_detours(child)


def _trees(tree: Any) -> list[Any]:
    return [child for child in tree.children if not isinstance(child, str)]


def _name(tree: Any) -> str:
    """Of an expression that is a name and nothing else; otherwise the empty text."""
    while tree.data != "ident":
        if len(tree.children) != 1 or isinstance(tree.children[0], str):
            return ""
        tree = tree.children[0]
    return str(tree.children[0])


class _Optional(MapType):
    """A value or none. A field of it is optional too."""

    def __init__(self, *values: Any) -> None:
        super().__init__()
        self.values_of_it = values

    def __getitem__(self, key: Any) -> _Optional:
        return _Optional(*(value for inner in self.values_of_it for value in _optionally(inner, key).values_of_it))


def _optionally(container: Any, key: Any) -> Any:
    if isinstance(container, _Optional):
        return container[key]
    try:
        found = container[key]
    except (KeyError, IndexError):
        return _Optional()
    return found if isinstance(found, CELEvalError) else _Optional(found)


def _is_in(item: Any, container: Any) -> Any:
    """Whether it is one of the members of a list, or of the keys of a map."""
    for value in (item, container):
        if isinstance(value, CELEvalError):
            return value
    if isinstance(container, Open):
        return BoolType(True) if item in container else not_known()
    return BoolType(any(_equal(item, each) for each in container))


def _value(optional: _Optional) -> Any:
    return (
        optional.values_of_it[0]
        if optional.values_of_it
        else CELEvalError("optional.none() has no value", ValueError, None)
    )


_NUMBERS: Final = (IntType, UintType, DoubleType)


def _plain(value: Any) -> Any:
    """A number as Python compares it with any other."""
    return float(value) if isinstance(value, DoubleType) else int(value)


def _equal(a: Any, b: Any) -> bool:
    """Attributes have no types beforehand: what is of another type is another value, and numbers are compared as numbers."""
    if isinstance(a, _Optional) and isinstance(b, _Optional):
        return _equal(ListType(a.values_of_it), ListType(b.values_of_it))
    if isinstance(a, _NUMBERS) and isinstance(b, _NUMBERS):
        return bool(_plain(a) == _plain(b))
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    return _kind(a) is _kind(b) and bool(a == b)


def _kind(value: Any) -> type:
    return str if isinstance(value, str) else type(value)


def _error_or(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
    def compared(a: Any, b: Any) -> Any:
        for value in (a, b):
            if isinstance(value, CELEvalError):
                return value
        return BoolType(compare(a, b))

    return compared


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
    def ordered(a: Any, b: Any) -> bool:
        if isinstance(a, _NUMBERS) and isinstance(b, _NUMBERS):
            return compare(_plain(a), _plain(b))
        if _kind(a) is not _kind(b) or isinstance(a, Semver):
            raise TypeError(f"{a!r} and {b!r} have no order")
        return compare(a, b)

    return _error_or(ordered)


def _is_semver(text: str, lenient: bool = False) -> BoolType:
    try:
        Semver.parse(text, lenient=bool(lenient))
    except ValueError:
        return BoolType(False)
    return BoolType(True)


_FUNCTIONS: Final[Mapping[str, Any]] = {
    **QUANTITIES,
    "_==_": _error_or(_equal),
    "_!=_": _error_or(lambda a, b: not _equal(a, b)),
    "_in_": _is_in,
    "present": lambda container, key: _is_in(key, container),
    "_<_": _ordered(operator.lt),
    "_<=_": _ordered(operator.le),
    "_>_": _ordered(operator.gt),
    "_>=_": _ordered(operator.ge),
    "semver": lambda text, lenient=False: Semver.parse(text, lenient=bool(lenient)),
    "isSemver": _is_semver,
    "major": lambda version: IntType(version.major),
    "minor": lambda version: IntType(version.minor),
    "patch": lambda version: IntType(version.patch),
    "optionally": _optionally,
    "of": lambda _, value: _Optional(value),
    "none": lambda _: _Optional(),
    "hasValue": lambda optional: BoolType(bool(optional.values_of_it)),
    "value": _value,
    "orValue": lambda optional, other: optional.values_of_it[0] if optional.values_of_it else other,
    "values": lambda optional: ListType(optional.values_of_it),
    "optMapped": lambda values: _Optional(*values),
    "optFlatMapped": lambda values: values[0] if values else _Optional(),
    "or": lambda optional, other: optional if optional.values_of_it else other,
    "lowerAscii": lambda text: StringType(re.sub("[A-Z]+", lambda found: found[0].lower(), text)),
    "upperAscii": lambda text: StringType(re.sub("[a-z]+", lambda found: found[0].upper(), text)),
    "trim": lambda text: StringType(text.strip()),
    "split": lambda text, by: ListType(map(StringType, text.split(by) if by else list(text))),
    "replace": lambda text, old, new: StringType(text.replace(old, new)),
    "substring": lambda text, start, end=None: StringType(text[start:end]),
    "join": lambda texts, by="": StringType(by.join(texts)),
}
