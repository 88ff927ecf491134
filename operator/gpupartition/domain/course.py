"""How many devices of each profile there are to be had while a roll-out goes on: what a wave takes away, and what it brings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpupartition.domain.capacity import profile_of
from gpupartition.domain.plan import Fate, Plan
from gpupartition.domain.pool import Pool

MOST: Final = 60  # steps that are told one by one; of more, several are told as one


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Devices open to claims, by profile, at each of the moments: now, then during and after each step."""

    moments: tuple[str, ...]
    open: Mapping[str, tuple[int, ...]]


def course(plan: Plan) -> Course:
    """Play the waves as the plan has them. While a node is in its wave, none of its devices is open to anybody."""
    counts: dict[int, Counter[str]] = {}

    def of(pool: Pool) -> Counter[str]:  # thousands of nodes share a few pools
        if id(pool) not in counts:
            counts[id(pool)] = Counter(profile_of(device) for device in pool.devices)
        return counts[id(pool)]

    pools = {each.node: each for each in plan.pools}
    total = _sum(of(each.now) for each in plan.pools)
    moments, seen = ["now"], [Counter(total)]
    for name, steps in _in_few(_steps(plan)):
        least: Counter[str] | None = None
        for nodes in steps:
            mine = [pools[node] for node in nodes if node in pools]
            during = total - _sum(of(each.now) for each in mine)
            least = during if least is None else Counter({p: min(least[p], during[p]) for p in least | during})
            total = during + _sum(of(each.then) for each in mine)
        moments += [f"during {name}", f"after {name}"]
        seen += [least or Counter(), Counter(total)]
    profiles = sorted({profile for each in seen for profile in each})
    return Course(moments=tuple(moments), open={p: tuple(each[p] for each in seen) for p in profiles})


def _steps(plan: Plan) -> list[tuple[str, Sequence[str]]]:
    """The nodes that are under way, then each wave."""
    moving = [n.node for n in plan.nodes if n.fate is Fate.UNDER_WAY]
    numbers = dict.fromkeys(n.wave for n in plan.nodes if n.wave)
    waves = [(f"wave {number}", nodes) for number, nodes in zip(numbers, plan.waves, strict=True)]
    return [*([("what is under way", moving)] if moving else []), *waves]


def _in_few(steps: Sequence[tuple[str, Sequence[str]]]) -> list[tuple[str, list[Sequence[str]]]]:
    """No more than MOST, each of some steps that follow each other."""
    size = max(1, -(-len(steps) // MOST))
    told = [steps[n : n + size] for n in range(0, len(steps), size)]
    return [
        (some[0][0] if len(some) == 1 else f"{some[0][0]} to {some[-1][0]}", [nodes for _, nodes in some])
        for some in told
    ]


def _sum(counts: Iterable[Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return total
