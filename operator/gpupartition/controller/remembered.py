"""What was made of objects of the copies, for as long as these are the very same: a copy replaces what has changed, and never writes to it.

A look at a policy goes through all of its nodes, of which hardly any has changed since the last one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from operator import is_
from typing import Final, Generic, TypeVar

K = TypeVar("K")
T = TypeVar("T")

SPARE: Final = 1_000  # nodes that may have gone before everything is made anew
FEW: Final = 16  # policies or drivers, of which many nodes ask in the same moment


def _always(_: object) -> bool:
    return True


class Remembered(Generic[T]):
    """The last answer for each node, and of which objects it was made."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[object, ...], T]] = {}
        self._common: dict[str, object] = {}

    def common(self, owner: str, facts: object, *, nodes: int) -> object:
        """What answers for all nodes of an owner depend on, as one object: the same one as long as the facts are equal.

        `nodes`: how many there are; those that went are forgotten some day.
        """
        if len(self._known) > nodes + SPARE:
            self._known.clear()
        if self._common.setdefault(owner, facts) != facts:
            self._common[owner] = facts
        return self._common[owner]

    def of(
        self, node: str, objects: tuple[object, ...], make: Callable[[], T], *, lasts: Callable[[T], bool] = _always
    ) -> T:
        """The answer, made anew unless the last one was made of these very objects, and `lasts`."""
        known = self._known.get(node)
        if known is not None and len(known[0]) == len(objects) and all(map(is_, known[0], objects)):
            return known[1]
        made = make()
        if lasts(made):
            self._known[node] = objects, made
        return made


class Recent(Generic[K, T]):
    """What is made of an object, for the few that were asked of last: each as long as it is the very same one."""

    def __init__(self, make: Callable[[K], T]) -> None:
        self._make = make
        self._known: deque[tuple[K, T]] = deque(maxlen=FEW)

    def __call__(self, of: K) -> T:
        """The answer. What `make` raises is raised each time."""
        for known, answer in self._known:
            if known is of:
                return answer
        made = self._make(of)
        self._known.appendleft((of, made))
        return made
