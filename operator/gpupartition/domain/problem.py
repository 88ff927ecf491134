"""Why something cannot be: what a refusal says, whoever makes it, and whose turn it is then."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Turn(StrEnum):
    """Who has to do something about a problem."""

    USER = "User"
    CLUSTER = "Cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why something cannot be: where, why, what to do. `reason` is the condition's reason, CamelCase.

    `of_node`: it keeps this one node out, and the others go on without it. `passing`: until others are done.
    """

    reason: str
    at: str
    why: str
    fix: str
    turn: Turn = Turn.USER
    of_node: bool = False
    passing: bool = False

    def __str__(self) -> str:
        return f"{self.at}: {self.why}; {self.fix}"


class Refused(Exception):  # noqa: N818  (reads as what happened)
    """The policy or the installation asks for something that cannot be."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("; ".join(str(p) for p in problems))
        self.problems = problems
