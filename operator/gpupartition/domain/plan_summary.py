"""What is said of a plan: one sentence, its capacity before and after, and what a pipeline may want to stop for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpupartition.domain.capacity import profile_of
from gpupartition.domain.plan import CHANGING, Fate, NodePlan, Plan
from gpupartition.domain.pool import Pool
from gpupartition.domain.wording import few


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """How many devices of one profile are published now, and after all waves."""

    profile: str
    before: int
    after: int


def capacity(plan: Plan) -> list[Moved]:
    """Devices of the policy's nodes, by profile."""
    return moved(devices(pool.now for pool in plan.pools), devices(pool.then for pool in plan.pools))


def moved(before: Mapping[str, int], after: Mapping[str, int]) -> list[Moved]:
    """The same of any two counts."""
    profiles = sorted(before.keys() | after.keys())
    return [Moved(profile=p, before=before.get(p, 0), after=after.get(p, 0)) for p in profiles]


def devices(pools: Iterable[Pool]) -> Counter[str]:
    """How many devices of each profile there are in these pools."""
    # Thousands of nodes share a few pools: each is counted once.
    pools = list(pools)
    times = Counter(id(pool) for pool in pools)
    total: Counter[str] = Counter()
    for pool in {id(p): p for p in pools}.values():
        for profile, number in Counter(profile_of(d) for d in pool.devices).items():
            total[profile] += number * times[id(pool)]
    return total


def sentence(plan: Plan) -> str:
    """`3 of 12 nodes would change (2 Repartition, 1 Restart), in 2 waves; 1 is blocked by team-a/job-7`."""
    if plan.refused:
        return f"nothing would happen: {plan.refused}"
    changing = [n for n in plan.nodes if n.fate in CHANGING]
    if not plan.nodes:
        return "no node matches spec.nodeSelector"
    classes = Counter(n.change for n in changing if n.change != "None")
    parts = [f"{plan.changing} of {len(plan.nodes)} nodes would change"]
    if classes:
        parts[0] += f" ({', '.join(f'{classes[c]} {c}' for c in ('Repartition', 'Live', 'Restart') if classes[c])})"
    waves = len({n.wave for n in plan.nodes if n.wave})
    if waves:
        parts[0] += f", in {waves} wave{'s' if waves > 1 else ''}"
        parts[0] += f", beginning {plan.opens}" if plan.opens else ""
    elif changing:
        parts[0] += ", and none would begin"
    parts += [text(nodes) for fates, text in _REMARKS if (nodes := [n for n in plan.nodes if fates(n)])]
    return "; ".join([*parts, plan.hint] if plan.hint else parts)


def _blocked(node: NodePlan) -> bool:
    return bool(node.blockers)


def _is(*fates: Fate) -> Callable[[NodePlan], bool]:
    return lambda node: node.fate in fates


def _are(nodes: Sequence[NodePlan]) -> str:
    return "1 is" if len(nodes) == 1 else f"{len(nodes)} are"


def _by_whom(nodes: Sequence[NodePlan]) -> str:
    holders = sorted({b.pod or b.claim for n in nodes for b in n.blockers})
    return f"{_are(nodes)} blocked by {few(holders)}"


def _evicts(nodes: Sequence[NodePlan]) -> str:
    pods = sorted({pod for n in nodes for pod in n.evicted})
    return f"{len(pods)} pod{'s' if len(pods) > 1 else ''} would be evicted: {few(pods)}"


def _why(word: str) -> Callable[[Sequence[NodePlan]], str]:
    return lambda nodes: f"{_are(nodes)} {word}: {nodes[0].node}: {nodes[0].why}"


_REMARKS: Final[Sequence[tuple[Callable[[NodePlan], bool], Callable[[Sequence[NodePlan]], str]]]] = (
    (lambda node: bool(node.evicted), _evicts),
    (_blocked, _by_whom),
    (_is(Fate.NOT_READY), lambda nodes: f"{_are(nodes)} not Ready"),
    (_is(Fate.FAILED), _why("failed")),
    (_is(Fate.SKIPPED), _why("skipped")),
    (_is(Fate.REFUSED), _why("refused")),
    (_is(Fate.CONTESTED), lambda nodes: f"{_are(nodes)} claimed by another policy: {nodes[0].node}"),
    (_is(Fate.WAITS), lambda nodes: f"{_are(nodes)} left waiting: {nodes[0].why}"),
)

FINDINGS: Final[Mapping[str, Callable[[Plan], bool]]] = {
    "blocked": lambda plan: any(map(_blocked, plan.nodes)),
    "infeasible": lambda plan: (
        bool(plan.refused) or any(n.fate in {Fate.REFUSED, Fate.SKIPPED, Fate.CONTESTED} for n in plan.nodes)
    ),
    "failed": lambda plan: any(n.fate is Fate.FAILED for n in plan.nodes),
    "evict": lambda plan: any(n.evicted for n in plan.nodes),
}


def findings(plan: Plan) -> tuple[str, ...]:
    """What is there of what a pipeline can be told to stop for."""
    return tuple(name for name, found in FINDINGS.items() if found(plan))
