"""What would happen: the roll-out played forward in a world in which each step succeeds.

Nothing is decided anew here. Nodes at rest say what they wait for (`rest`), `admit` chooses, and `advance` takes each chosen node all the
way; only the world is made up: the taint settles, holders that are waited for end, the driver publishes what is expected of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from itertools import count
from typing import Final

from gpupartition.api.v1alpha1 import Blocker, DrainMode, Grant, Phase, Purpose
from gpupartition.domain.admission import Admission, Rules, Standing, admit, order
from gpupartition.domain.backend import Observation
from gpupartition.domain.changes import blockers_of, change_class
from gpupartition.domain.destination import destination
from gpupartition.domain.eviction import spared
from gpupartition.domain.lifecycle import advance
from gpupartition.domain.pool import Pool
from gpupartition.domain.rest import rest
from gpupartition.domain.retiring import retired
from gpupartition.domain.steps import restart_recorded
from gpupartition.domain.world import AT_REST, Quiesce, State, World

LONGEST_WAY: Final = 32  # turns: three times the longest way through the table
LONG: Final = timedelta(days=365)  # whatever has to last has lasted long enough


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A node of a policy as it is: its record, its world as of now, and where it would stand with another record.

    `problem` says why nothing can be wanted for it; "" when something is.
    """

    name: str
    uid: str
    state: State
    world: World
    stand: Callable[[State], Standing]
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One policy with all its nodes.

    `others`: unavailable nodes of its driver's other policies; `contested`: nodes that another policy has; `refused`: why it is not accepted;
    `hint`: what it says that none of its nodes is about.
    """

    policy: str
    driver: str
    rules: Rules
    candidates: Sequence[Candidate]
    others: frozenset[str] = frozenset()
    contested: Sequence[str] = ()
    refused: str = ""
    hint: str = ""


class Fate(StrEnum):
    """What becomes of a node."""

    UP_TO_DATE = "UpToDate"  # it has what is wanted
    UNDER_WAY = "UnderWay"  # it is being changed already
    STARTS = "Starts"  # in its wave
    BLOCKED = "Blocked"  # not before its holders have ended
    WAITS = "Waits"  # its turn does not come: the limit, a pause, a budget
    NOT_READY = "NotReady"
    FAILED = "Failed"  # with this very target; somebody has to ask to try again
    SKIPPED = "Skipped"
    REFUSED = "Refused"  # it cannot have the layout
    CONTESTED = "Contested"  # another policy has it


CHANGING: Final = frozenset({Fate.UNDER_WAY, Fate.STARTS, Fate.BLOCKED, Fate.WAITS, Fate.NOT_READY, Fate.FAILED})
"""What is wanted for these differs from what they have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """One node: in which wave it begins (0: in none), how deep the change goes, its devices, who is in the way, and why.

    `gained` and `lost` are names of devices; one that stays under its name but becomes something else is in both. `evicted` are pods that would
    be evicted, as far as their disruption budgets allow it; `blockers` are those who are waited for.
    """

    node: str
    fate: Fate
    wave: int = 0
    change: str = "None"
    gained: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    evicted: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """What a node offers now and after all waves (`after`: with what is retired then), and once nothing is in its way any more."""

    node: str
    now: Pool
    then: Pool
    after: Pool
    once_free: Pool
    wanted: Pool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What would become of a policy's nodes: in the order in which they would begin, then all others by name.

    `stop` is what admission says when nobody can begin any more; `opens`: when the next window does ("": one is open, and the first wave begins
    at once); `pools` are those of its nodes.
    """

    policy: str
    driver: str
    nodes: tuple[NodePlan, ...]
    stop: Admission
    refused: str = ""
    opens: str = ""
    hint: str = ""
    pools: tuple[PoolPlan, ...] = field(default=(), repr=False)

    @property
    def changing(self) -> int:
        """How many nodes would change, now or when nothing is in their way any more."""
        return sum(n.fate in CHANGING for n in self.nodes)

    @property
    def waves(self) -> tuple[tuple[str, ...], ...]:
        """Nodes that begin together. Numbers count over all policies that are planned together, so a policy may have no part in some."""
        numbers = dict.fromkeys(n.wave for n in self.nodes if n.wave)
        return tuple(tuple(n.node for n in self.nodes if n.wave == number) for number in numbers)


def plan(lanes: Sequence[Lane], ledgers: Mapping[str, Sequence[Grant]]) -> list[Plan]:
    """Play all policies forward together, because those of one driver share its budget. `ledgers`: the grants of each driver."""
    granted = {lane.driver: list(ledgers.get(lane.driver, ())) for lane in lanes}
    courses = [_Played(lane, granted[lane.driver]) for lane in lanes]
    for wave in count(1):
        moved = False
        for course in courses:
            begun = course.begin(wave, granted[course.lane.driver])
            granted[course.lane.driver] += begun
            moved = moved or bool(begun)
        for course in courses:
            arrived = course.travel(granted[course.lane.driver])
            granted[course.lane.driver] = [g for g in granted[course.lane.driver] if g.node not in arrived]
            moved = moved or bool(arrived)
        if not moved:
            break
    return [course.plan(granted[course.lane.driver]) for course in courses]


class _Played:
    """A policy's roll-out while it is played."""

    def __init__(self, lane: Lane, ledger: Sequence[Grant]) -> None:
        self.lane = lane
        # Waves are told in their order, not at their hours: windows open, and pauses end.
        self._rules = replace(lane.rules, outside="", pause=timedelta(0))
        granted = {g.node for g in ledger}
        self._candidates = {c.name: c for c in lane.candidates}
        self._looked = {c.name: look(c) for c in lane.candidates}
        self._first = {n: self._candidates[n].stand(state) for n, state in self._looked.items()}
        self._last = dict(self._first)
        self._moving = {n for n, s in self._first.items() if s.in_flight or n in granted}
        queue = sorted((s for n, s in self._first.items() if s.free and n not in self._moving), key=order)
        self._queues = {new: [s for s in queue if s.initial is new] for new in (False, True)}
        self._taken = {False: 0, True: 0}  # of each queue
        self._arrived: dict[str, State] = {}
        self._waves: dict[str, int] = {}
        queued = {s.node for s in queue}
        blocked = [n for n, s in self._first.items() if s.blocked and not s.away and n not in self._moving]
        self._done = {n for n, s in self._first.items() if _done(s)}
        left_out = queued | self._done | set(blocked[1:])
        self._others = {n: s for n, s in self._first.items() if n not in left_out}

    def begin(self, wave: int, ledger: Sequence[Grant]) -> list[Grant]:
        """Grants for those that admission chooses now."""
        admission = Admission() if self.lane.refused else self._admit(ledger)
        chosen, grants = admission.nodes, admission.grants
        self._waves |= dict.fromkeys(chosen, wave)
        for name in chosen:
            self._taken[name in admission.initial] += 1
        self._moving |= set(chosen)
        return [self._grant(name, wave, grants[name]) for name in chosen]

    def _admit(self, ledger: Sequence[Grant]) -> Admission:
        """Ask admission about as many nodes as can matter to its choice, or thousands one by one would take hours.

        Those that are done only use up the limit. Of those that wait, in admission's own order, no more can be chosen than may be unavailable,
        and of new ones than may get their first layout at once. One blocked node stands for all that others leave alone: none can be chosen.
        """
        rules = replace(self._rules, limit=self._rules.limit - len(self._done))
        most = {False: rules.max_unavailable, True: rules.max_initializing}
        next_ones = [s for new, queue in self._queues.items() for s in queue[self._taken[new] :][: most[new] + 1]]
        return admit(nodes=[*self._others.values(), *next_ones], others=self.lane.others, ledger=ledger, rules=rules)

    def _grant(self, name: str, wave: int, purpose: Purpose) -> Grant:
        node, policy = self._candidates[name], self.lane.policy
        since = node.world.now
        return Grant(node=name, uid=node.uid, policy=policy, token=f"wave-{wave}", since=since, purpose=purpose)

    def travel(self, ledger: Sequence[Grant]) -> set[str]:
        """Take everybody who is on the way as far as it goes; those that have arrived."""
        moving, self._moving = self._moving, set()
        grants = {g.node: g for g in ledger if g.node in moving}
        arrived = set()
        for name in sorted(moving):
            node = self._candidates[name]
            state = self._arrived[name] = travel(self._looked[name], node.world, grants.get(name))
            standing = self._last[name] = node.stand(state)
            self._others.pop(name, None)
            if _done(standing):
                self._done.add(name)
            else:  # once is enough: it would come to the same again
                self._others[name] = replace(standing, startable=False)
            if not standing.in_flight:
                arrived.add(name)
        return arrived

    def plan(self, ledger: Sequence[Grant]) -> Plan:
        """What it has come to."""
        stop = admit(nodes=[*self._last.values()], others=self.lane.others, ledger=ledger, rules=self._rules)
        by_people = f"{stop.reason}: " if stop.reason in {"Paused", "Frozen"} else ""
        why = self.lane.refused or f"{by_people}{stop.message}" or stop.reason
        rows = [
            self._row(c, why)
            for c in self.lane.candidates
            if c.world.wanted or c.world.left_out or c.problem or c.name in self._arrived
        ]
        rows += [NodePlan(node=n, fate=Fate.CONTESTED, why="another policy has it") for n in self.lane.contested]
        place = {n: order(s) if n in self._waves else () for n, s in self._first.items()}
        fates = {row.node: row.fate for row in rows}
        return Plan(
            policy=self.lane.policy,
            driver=self.lane.driver,
            nodes=tuple(sorted(rows, key=lambda n: (not n.wave, n.wave, place.get(n.node, ()), n.node))),
            stop=Admission() if self.lane.refused else stop,
            refused=self.lane.refused,
            opens=self.lane.rules.outside,
            hint=self.lane.hint,
            pools=tuple(self._pool(c, fates.get(c.name)) for c in self.lane.candidates),
        )

    def _pool(self, node: Candidate, fate: Fate | None) -> PoolPlan:
        """What becomes of what it publishes."""
        now, wanted = node.world.observed.pool, node.world.wanted.pool if node.world.wanted is not None else None
        then = after = wanted if wanted is not None and node.name in self._done else now
        if then is wanted and (stay := retired(self._arrived.get(node.name, node.state))).devices:
            after = then.beside(stay)
        last = wanted if wanted is not None and fate in CHANGING else then
        return PoolPlan(node=node.name, now=now, then=then, after=after, once_free=last, wanted=wanted)

    def _row(self, node: Candidate, stop: str) -> NodePlan:
        fate, why = self._fate(node, stop)
        looked, now, wanted = self._looked[node.name], node.world.observed, node.world.wanted
        change = "None"
        if fate is Fate.UNDER_WAY:
            change = self._looked[node.name].change
        elif fate in CHANGING and wanted is not None:
            change = change_class(looked, node.world, wanted)
        then = wanted.pool if fate in CHANGING and wanted is not None else now.pool
        return NodePlan(
            node=node.name,
            fate=fate,
            wave=self._waves.get(node.name, 0),
            change=change,
            gained=tuple(sorted(then.vanishing(now.pool))),
            lost=tuple(sorted(now.pool.vanishing(then))),
            blockers=tuple(b for b in blockers_of(looked, node.world) if fate in CHANGING and b.reason != "Evicting"),
            evicted=_evicted(node.world) if fate in {Fate.STARTS, Fate.UNDER_WAY} else (),
            why=why,
        )

    def _fate(self, node: Candidate, stop: str) -> tuple[Fate, str]:
        first, looked = self._first[node.name], self._looked[node.name]
        rows: list[tuple[object, Fate, str]] = [
            (node.problem, Fate.REFUSED, node.problem),
            (first.in_flight and first.phase is not Phase.FAILED, Fate.UNDER_WAY, looked.message),
            (first.at_target, Fate.UP_TO_DATE, ""),
            (
                node.name in self._waves,
                Fate.STARTS,
                "is closed to new claims first, then waits for its holders" if node.world.holders else "",
            ),
            (first.halted, Fate.FAILED, looked.message),
            (looked.phase is Phase.SKIPPED, Fate.SKIPPED, f"{looked.reason}: {looked.message}"),
            (node.world.left_out, Fate.WAITS, node.world.left_out.why if node.world.left_out is not None else ""),
            (first.at_work, Fate.WAITS, f"waits until others are done: {first.at_work}"),
            (first.blocked, Fate.BLOCKED, "waits until its devices are free"),
            (not first.ready, Fate.NOT_READY, "the node is not Ready"),
        ]
        return next(((fate, why) for holds, fate, why in rows if holds), (Fate.WAITS, stop))


def _evicted(world: World) -> tuple[str, ...]:
    """The pods that the node's drain ends, in the order of their names; those that only look on too."""
    leaving = [p.name for p in world.occupants if not spared(p, world.drain)] + [p.name for p in world.monitors]
    return tuple(sorted(leaving)) if world.drain.mode is DrainMode.EVICT else ()


def _done(node: Standing) -> bool:
    """Verified, and nobody counts it as unavailable."""
    return node.at_target and not node.in_flight and not node.away


def look(node: Candidate) -> State:
    """The record after the node has been looked at: adopted, or with what it waits for."""
    world, state = node.world, node.state
    if world.wanted is not None and not world.observed.pool.same_shape(world.wanted.pool):
        world = replace(world, differs=LONG)  # a difference that there is now will have lasted
    for _ in range(LONGEST_WAY):
        step = rest(state, world) if state.phase in AT_REST else None
        if step is None:
            return state
        state = step.state
    raise AssertionError(f"node {node.name} does not come to rest: {state}")


def travel(state: State, world: World, grant: Grant | None) -> State:
    """The record at the end of the way; Failed and without a way on, it stays where it is."""
    with_grant, hoped = replace(world, grant=grant, grant_stands=True), _as_hoped(world)
    for _ in range(LONGEST_WAY):
        at_rest = state.phase in AT_REST
        step = rest(state, with_grant) if at_rest else advance(state, _come_true(state, hoped))
        if step is None:
            closed = rest(state, replace(world, grant=None)) if at_rest and state.token else None
            return closed.state if closed else state
        state = step.state
    raise AssertionError(f"the way does not end: {state}")


def _as_hoped(world: World) -> World:
    """The world in which nobody is in the way any more."""
    return replace(
        world,
        node_ready=True,
        fresh="planned",
        quiesce=Quiesce(active=True, proven=True, watched=LONG),
        holders=(),
        occupants=(),
        monitors=(),
        idle=LONG,
        matched=LONG,
        config_touched=world.now,
        config_written=None,
    )


def _come_true(state: State, world: World) -> World:
    """That world once what this phase waits for has just come true."""
    if state.phase in {Phase.RELEASING, Phase.ABORTING}:
        return replace(world, quiesce=None)
    to = destination(state)
    if state.phase not in {Phase.APPLYING, Phase.VERIFYING, Phase.ROLLING_BACK} or to is None:
        return world
    seen = Observation(
        assignment=to.assignment,
        step=state.step,
        running=to.fingerprint,
        ready=True,
        pool=Pool.from_json(to.pool),
        plugin={"metadata": {"uid": "the next one"}} if restart_recorded(state) else world.observed.plugin,
        retired=retired(state),
    )
    return replace(world, observed=seen)
