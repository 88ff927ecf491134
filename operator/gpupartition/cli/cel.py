"""As much of CEL as the rules of api/rules.py are written in, so that they hold for files as they do in the API server.

An expression is read once, into a function of `self`. What is not read here is refused when it is read, never taken for true; a test
reads every rule that there is, and the examples of the API are refused and accepted by both alike.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final

from gpupartition.domain.quantity import exact

Scope = Mapping[str, Any]
Expression = Callable[[Scope], Any]

_TOKEN: Final = re.compile(r"\s*([0-9]+|'[^'\\]*'|[A-Za-z_]\w*|&&|\|\||[=!<>]=|[-+!<>?:.,()\[\]])")


@lru_cache(maxsize=256)
def function(text: str) -> Callable[[Any], Any]:
    """The expression as a function of `self`. Raises ValueError for what is not CEL, or not read here."""
    tokens = _tokens(text)
    expression = tokens.choice()
    if tokens.next:
        raise tokens.unread()
    return lambda value: expression({"self": value})


def matches(text: str, pattern: str) -> bool:
    """Whether the pattern is found in the text; `$` is the end of it, also for a text that ends with a line break."""
    return re.search(re.sub(r"\$$", r"\\Z", pattern), text) is not None


def _is_quantity(text: str) -> bool:
    try:
        exact(text)
    except ValueError:
        return False
    return True


def _called(text: str) -> bool:
    """Whether it is a qualified name: `name` or `prefix/name`, the prefix being a DNS subdomain."""
    prefix, slash, name = text.rpartition("/")
    return _LABEL_VALUE(name) and name != "" and (not slash or (len(prefix) <= 253 and matches(prefix, _SUBDOMAIN)))


def _form(pattern: str) -> Callable[[str], bool]:
    return lambda text: len(text) <= 63 and matches(text, pattern)


_DNS_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"^{_DNS_LABEL}(\.{_DNS_LABEL})*$"
_LABEL_VALUE: Final = _form("^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")

_NAMES: Final[Scope] = {"true": True, "false": False, "int": int, "format": None}
_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "size": len,
    "type": type,
    "isQuantity": _is_quantity,
    "quantity": exact,
}
_METHODS: Final[Mapping[str, Callable[..., Any]]] = {
    "size": len,
    "startsWith": str.startswith,
    "matches": matches,
    "isGreaterThan": operator.gt,
    "compareTo": lambda a, b: (a > b) - (a < b),
    "qualifiedName": lambda _: _called,
    "labelValue": lambda _: _LABEL_VALUE,
    "dns1123Label": lambda _: _form(f"^{_DNS_LABEL}$"),
    "validate": lambda form, text: () if form(text) else ("it has another form",),
    "hasValue": bool,
}
_MACROS: Final[Mapping[str, Callable[[Callable[[Any], bool], Sequence[Any]], Any]]] = {
    "all": lambda holds, items: all(map(holds, items)),
    "exists": lambda holds, items: any(map(holds, items)),
    "exists_one": lambda holds, items: sum(map(holds, items)) == 1,
    "filter": lambda holds, items: list(filter(holds, items)),
}


def _both(of: Callable[[Any, Any], Any]) -> Callable[[Expression, Expression], Expression]:
    return lambda a, b: lambda scope: of(a(scope), b(scope))


# Operators of two sides, from those that bind least.
_LEVELS: Final[Sequence[Mapping[str, Callable[[Expression, Expression], Expression]]]] = (
    {"||": lambda a, b: lambda scope: a(scope) or b(scope)},
    {"&&": lambda a, b: lambda scope: a(scope) and b(scope)},
    {
        "==": _both(operator.eq),
        "!=": _both(operator.ne),
        "<": _both(operator.lt),
        "<=": _both(operator.le),
        ">": _both(operator.gt),
        ">=": _both(operator.ge),
        "in": _both(lambda item, items: item in items),
    },
    {"+": _both(operator.add), "-": _both(operator.sub)},
)


def _tokens(text: str) -> _Reader:
    found, at = [], 0
    while text[at:].strip():
        token = _TOKEN.match(text, at)
        if token is None:
            raise ValueError(f"no CEL that is read here, at {text[at:]!r} of {text!r}")
        found.append(token[1])
        at = token.end()
    return _Reader(text, found)


@dataclass(slots=True)
class _Reader:
    """What is left to be read; each method reads one thing and returns what it comes to."""

    text: str
    left: list[str]

    @property
    def next(self) -> str:
        return self.left[0] if self.left else ""

    def unread(self) -> ValueError:
        return ValueError(f"no CEL that is read here, at {' '.join(self.left)!r} of {self.text!r}")

    def take(self, *wanted: str) -> str:
        """Take the next token, which has to be one of these, if any are named."""
        if not self.left or (wanted and self.next not in wanted):
            raise self.unread()
        return self.left.pop(0)

    def choice(self) -> Expression:
        condition = self.level(0)
        if self.next != "?":
            return condition
        self.take("?")
        yes = self.choice()
        self.take(":")
        no = self.choice()
        return lambda scope: yes(scope) if condition(scope) else no(scope)

    def level(self, depth: int) -> Expression:
        if depth == len(_LEVELS):
            return self.negation()
        left = self.level(depth + 1)
        while join := _LEVELS[depth].get(self.next):
            self.take()
            left = join(left, self.level(depth + 1))
        return left

    def negation(self) -> Expression:
        if self.next != "!":
            return self.member()
        self.take()
        value = self.negation()
        return lambda scope: not value(scope)

    def member(self) -> Expression:
        value = self.primary()
        while self.next in {".", "["}:
            if self.take() == "[":
                index = self.choice()
                self.take("]")
                value = _both(operator.getitem)(value, index)
            else:
                value = self.selected(value, self.take())
        return value

    def selected(self, value: Expression, name: str) -> Expression:
        """A field, or what a method or a macro makes of the value."""
        if self.next != "(":
            return lambda scope: value(scope)[name]
        if name in _MACROS:
            self.take("(")
            each = self.take()
            self.take(",")
            holds = self.choice()
            self.take(")")
            macro = _MACROS[name]
            return lambda scope: macro(lambda item: holds({**scope, each: item}), value(scope))
        return self.called(_METHODS, name, value)

    def called(self, table: Mapping[str, Callable[..., Any]], name: str, *first: Expression) -> Expression:
        if name not in table:
            raise ValueError(f"no CEL that is read here: {name} in {self.text!r}")
        return partial(_call, table[name], (*first, *self.listed("(", ")")))

    def primary(self) -> Expression:
        if self.next == "[":
            items = self.listed("[", "]")
            return lambda scope: [item(scope) for item in items]
        word = self.take()
        if word == "(":
            value = self.choice()
            self.take(")")
            return value
        if word[0] == "'" or word.isdigit():
            literal = word[1:-1] if word[0] == "'" else int(word)
            return lambda _: literal
        if not word.isidentifier():
            self.left.insert(0, word)
            raise self.unread()
        if word == "has":
            (field,) = self.listed("(", ")")
            return partial(_has, field)
        if self.next == "(":
            return self.called(_FUNCTIONS, word)
        return lambda scope: scope[word] if word in scope else _NAMES[word]

    def listed(self, begin: str, end: str) -> tuple[Expression, ...]:
        return tuple(self._listed(begin, end))

    def _listed(self, begin: str, end: str) -> Iterator[Expression]:
        self.take(begin)
        while self.next != end:
            yield self.choice()
            if self.next != end:
                self.take(",")
        self.take(end)


def _call(of: Callable[..., Any], arguments: Sequence[Expression], scope: Scope) -> Any:
    return of(*(argument(scope) for argument in arguments))


def _has(field: Expression, scope: Scope) -> bool:
    try:
        field(scope)
    except KeyError:
        return False
    return True
