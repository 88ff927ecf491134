"""Versions as Kubernetes' CEL library `semver` has them: Semantic Versioning 2.0.0, https://semver.org."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering
from typing import Final

_NUMBER: Final = r"0|[1-9][0-9]*"
_PART: Final = rf"{_NUMBER}|[0-9]*[A-Za-z-][0-9A-Za-z-]*"
_GRAMMAR: Final = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})(?:-((?:{_PART})(?:\.(?:{_PART}))*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)


@total_ordering
@dataclass(frozen=True, slots=True)
class Semver:
    """One version, in its order of precedence: of builds it knows nothing."""

    major: int
    minor: int
    patch: int
    pre: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str, *, lenient: bool = False) -> Semver:
        """`"1.2.3-rc.1"`; lenient also `"v1.02"`. Raises ValueError for anything else."""
        found = _GRAMMAR.fullmatch(_normal(text) if lenient else text)
        if found is None:
            raise ValueError(f"{text!r} is no semantic version; write for example 1.2.3")
        return cls(int(found[1]), int(found[2]), int(found[3]), tuple(found[4].split(".")) if found[4] else ())

    def __lt__(self, other: Semver) -> bool:
        if not isinstance(other, Semver):
            return NotImplemented
        return self._precedence() < other._precedence()

    def _precedence(self) -> tuple[object, ...]:
        parts = tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in self.pre)
        return self.major, self.minor, self.patch, not parts, parts


def _normal(text: str) -> str:
    """Without a `v`, without zeros in front, and with three numbers."""
    core, rest = re.fullmatch(r"([^+-]*)(.*)", text.removeprefix("v"), re.DOTALL).groups()  # type: ignore[union-attr]
    numbers = [number.lstrip("0") or "0" if number.isdigit() else number for number in core.split(".")]
    return ".".join((*numbers, "0", "0")[: max(3, len(numbers))]) + rest
