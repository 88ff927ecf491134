"""What a measurement comes to: numbers, some of them with a bound that they must not exceed."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number. `bound` None: it is only told. `how` says in a few words what was measured; `rounds` are the single measurements."""

    name: str
    value: float
    unit: str = ""
    bound: float | None = None
    how: str = ""
    rounds: list[Any] = field(default_factory=list)

    @property
    def within(self) -> bool:
        """Whether it keeps its bound."""
        return self.bound is None or self.value <= self.bound

    def json(self) -> dict[str, Any]:
        """As it is printed for programs."""
        return {each.name: getattr(self, each.name) for each in fields(self)} | {"within": self.within}


def measured(name: str) -> list[Figure]:
    """What the module `bench_<name>` measures, in this process."""
    figures: list[Figure] = importlib.import_module(f"tests.bench.bench_{name}").measure()
    return figures
