"""Kubernetes quantities, by its own grammar and range (apimachinery `resource.Quantity`): int64, fractions rounded up as `Value()` does."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

INT64_MAX: Final = 2**63 - 1  # what the API counts with

_GRAMMAR: Final = re.compile(r"([+-]?)([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,3})?", re.ASCII)
_BINARY: Final = {f"{letter}i": Fraction(1024) ** power for power, letter in enumerate("KMGTPE", start=1)}
_DECIMAL: Final = {
    "": Fraction(1), "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000),
    **{letter: Fraction(1000) ** power for power, letter in enumerate("kMGTPE", start=1)},
}  # fmt: skip


def exact(text: str) -> Fraction:
    """`"1500m"` -> 3/2. Raises ValueError, naming the text, for what the API server would refuse."""
    match = _GRAMMAR.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a Kubernetes quantity; write for example 40Gi, 1500M or 100")
    sign, digits, suffix = match.group(1), match.group(2), match.group(3) or ""
    scale = _BINARY.get(suffix) or _DECIMAL.get(suffix)
    amount = Fraction(digits) * (scale if scale is not None else Fraction(10) ** int(suffix[1:]))
    return -amount if sign == "-" else amount


@lru_cache(maxsize=4096)  # a fleet says the same few amounts hundreds of thousands of times
def parse(text: str) -> int:
    """`"80Gi"` -> 85899345920, fractions away from zero. Raises ValueError for what the API server would refuse or cannot hold."""
    amount = exact(text)
    value = -(-abs(amount.numerator) // amount.denominator)
    if value > INT64_MAX:
        raise ValueError(f"{text!r} does not fit into 64 bits; the largest quantity is {INT64_MAX}")
    return -value if amount < 0 else value


def capped(text: str) -> int:
    """The same of what others publish: API servers keep amounts that no device has, and such a one is the largest that there can be.

    Raises ValueError for what is no quantity.
    """
    try:
        return parse(text)
    except ValueError:
        if _GRAMMAR.fullmatch(text) is None:
            raise
        return -INT64_MAX if text.startswith("-") else INT64_MAX


def render(value: int) -> str:
    """The shortest exact spelling: binary suffix where it divides, as memory is written; otherwise plain digits. 85899345920 -> "80Gi"."""
    for suffix, scale in reversed(_BINARY.items()):
        if value and value % scale.numerator == 0:
            return f"{value // scale.numerator}{suffix}"
    return str(value)
