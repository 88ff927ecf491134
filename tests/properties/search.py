"""Goes through all states of a small cluster, breadth first, so that what is found is told in as few steps as possible."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from tests.properties.invariants import broken, false_success, quiet
from tests.properties.moves import steps
from tests.properties.rollout import Rollout
from tests.properties.state import State, renamed


@dataclass(frozen=True)
class Found:
    """What the search came to: the invariants that a state breaks and how it is reached, or that all states were seen.

    `stuck`: from so many states rest cannot be reached even if everybody does his part.
    """

    states: int
    complete: bool
    violated: str = ""
    story: tuple[str, ...] = ()
    stuck: int = 0


def explore(rollout: Rollout, *, most: int, only: str = "") -> Found:
    """Look at no more than `most` states. `only`: go through other violations until this invariant is broken."""
    first = renamed(rollout.initial())
    index: dict[State, int] = {first: 0}
    states, parent, did = [first], array("l", [-1]), [""]
    source, sink = array("L"), array("L")

    def story(last: int, *more: str) -> tuple[str, ...]:
        told = list(more)
        while last > 0:
            told.append(did[last])
            last = parent[last]
        return tuple(reversed(told))

    k = 0
    while k < len(states) and len(states) < most:
        for step in steps(rollout, states[k]):
            after = renamed(step.state)
            new = after not in index
            found = {*step.broken.split(), *(broken(after).split() if new else ())}
            if new and false_success(after, rollout.path):
                found.add("5")
            if (only in found) if only else found:
                return Found(len(states), complete=False, violated=" ".join(sorted(found)), story=story(k, step.what))
            if new:
                index[after] = len(states)
                states.append(after)
                parent.append(k)
                did.append(step.what)
            if step.helps:
                source.append(k)
                sink.append(index[after])
        k += 1
    if k < len(states):
        return Found(len(states), complete=False)
    stuck = _stuck(states, source, sink)
    return Found(len(states), complete=True, stuck=len(stuck), story=story(stuck[0]) if stuck else ())


def _stuck(states: list[State], source: array[int], sink: array[int]) -> list[int]:
    """The states from which no quiet one can be reached by helpful steps."""
    back: list[list[int]] = [[] for _ in states]
    for a, b in zip(source, sink, strict=True):
        back[b].append(a)
    work = [k for k, state in enumerate(states) if quiet(state)]
    good = set(work)
    while work:
        for k in back[work.pop()]:
            if k not in good:
                good.add(k)
                work.append(k)
    return [k for k in range(len(states)) if k not in good]
