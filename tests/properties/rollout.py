"""A cluster small enough to go through all of its states, in which the real decisions are made by workers that may be late.

Every worker reads, lets the real code decide, and then may be stopped for any time before its one write. The write carries its proof: when
the object that it was decided on has changed meanwhile it is refused, so a worker whose proof is void simply forgets it. Beside the workers
there are a scheduler that sees the taint late and allocates whenever its own view shows none, a driver that follows the label late or fails,
claims that end, nodes that go and come back under their name, and a user.

Time is one assumption: to have waited for the settle time is to know that the scheduler's view has caught up. Every limit may be over at any
moment. Numbers of invariants: 1 budget, 2 no change under a holder, 3 nothing without a grant, 4 the way back, 5 no false success, 6 the
quiesce, 7 whoever is evicted is who was decided about, 13 nothing is left behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tests.properties.cluster import (
    ACTIVE,
    AS_IT_IS,
    BASE,
    BROKEN,
    FRESH,
    GONE,
    INERT,
    LAYOUTS,
    SHAPES,
    View,
    decide,
    shape_of,
)
from tests.unit.worlds import T0

from gpupartition.api.v1alpha1 import Grant, NodeStateStatus, Phase
from gpupartition.domain.admission import Rules, Standing, admit
from gpupartition.domain.quiesce import Way
from gpupartition.domain.world import AT_REST

MUST_BE_QUIESCED: Final = frozenset({Phase.DRAINING, Phase.APPLYING, Phase.VERIFYING, Phase.ROLLING_BACK, Phase.FAILED})
CARELESS: Final = {
    "a record is written without its version": {"record"},
    "a node is written without its version": {"patch"},
    "a rule is activated without its version": {"activate"},
    "a rule is deleted by its name": {"delete"},
    "the ledger is written without its version": {"admit", "give back"},
    "a pod is evicted by its name": {"evict"},
}
NEW: Final = shape_of(NodeStateStatus())


class Record(NamedTuple):
    """A record; `shape` has everything but the ids. `ours`: it is about the Node that is there now."""

    shape: int
    token: int = 0
    step: int = 0
    ours: bool = True

    @property
    def phase(self) -> Phase:
        return SHAPES[self.shape].phase

    @property
    def at_rest(self) -> bool:
        return self.phase in AT_REST


class Node(NamedTuple):
    """A node with all that belongs to it.

    `taken`: the token in the ledger's entry, and `taken_for` whether that is for the Node that is there now. `seen`: the scheduler's view of
    the quiesce. `claim`: the layout of which a device is held. `touched`: this grant has changed the assignment. `rebooted`: since the record
    was written that says what it is; `lost`: and its driver has not published since, or somebody gave it up as it is. `recovery`: its grant is
    for verifying it again. `cordon`: the token for which the node is cordoned.
    """

    there: bool = True
    record: Record | None = None
    taken: int = 0
    taken_for: bool = False
    label: int = BASE
    step: int = 0
    rule: int = 0
    cordon: int = 0
    seen: bool = False
    pool: int = BASE
    claim: int | None = None
    touched: bool = False
    rebooted: bool = False
    lost: bool = False
    recovery: bool = False

    @property
    def alive(self) -> bool:
        """Whether the record is about a Node that exists."""
        return self.there and self.record is not None and self.record.ours

    @property
    def away(self) -> bool:
        """Unavailable through us."""
        return self.closed or (self.there and self.label != self.pool and not self.lost)

    @property
    def closed(self) -> bool:
        """Whether new claims are kept away."""
        return self.rule == ACTIVE or self.cordon != 0


class Write(NamedTuple):
    """What a late worker is going to write. `on`: the object whose change makes it void ("" when only its existence counts)."""

    node: int
    kind: str
    on: str
    record: Record | None = None
    label: int = BASE
    token: int = 0
    step: int = 0
    cordon: int = AS_IT_IS
    chosen: tuple[int, ...] = ()
    boots: bool = False


class State(NamedTuple):
    """Everything, as values."""

    nodes: tuple[Node, ...]
    late: tuple[Write, ...] = ()
    spec: int = 0
    policy: str = "alive"  # deleting, gone
    ready: bool = False
    failures: int = 0
    departures: int = 0
    reboots: int = 0


class Step(NamedTuple):
    """What happens, what comes of it, and which invariants that breaks by itself. `helps`: it will happen if only one waits."""

    what: str
    state: State
    broken: str = ""
    helps: bool = True


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """How much is gone through: nodes, workers, the targets that the user asks for, and what may go wrong how often; and one planted bug."""

    nodes: int = 1
    workers: int = 2
    path: tuple[int, ...] = (1,)
    failures: int = 0
    departures: int = 0
    reboots: int = 0
    deletion: bool = False
    abandons: bool = False  # somebody asked to let go of what cannot be brought back
    patient: bool = False  # no limit is ever over
    evicts: bool = False  # pods never end by themselves
    halts: bool = False  # a node that is not drained in time counts as failed
    quiesce: Way = "DeviceTaint"
    bug: str = ""

    def initial(self) -> State:
        """Nobody has done anything yet."""
        return State((Node(),) * self.nodes, failures=self.failures, departures=self.departures, reboots=self.reboots)

    def steps(self, state: State) -> Iterator[Step]:
        """Everything that may happen next."""
        for n in range(self.nodes):
            yield from self._surroundings(state, n)
        yield from self._user(state)
        for i, write in enumerate(state.late):
            rest = state._replace(late=state.late[:i] + state.late[i + 1 :])
            yield Step(f"a worker dies before {write.kind} n{write.node}", rest)
            yield self._done(rest, write)
        if len(state.late) < self.workers:
            yield from self._readings(state)

    # ------------------------------------------------------------------------------------------------------- all but the operator

    def _surroundings(self, state: State, n: int) -> Iterator[Step]:
        node = state.nodes[n]

        def happens(what: str, *objects: str, broken: str = "", helps: bool = True, **change: object) -> Step:
            return Step(f"n{n}: {what}", _void(_with(state, n, **change), *objects), broken, helps)

        if node.claim is not None:
            if not self.evicts:
                yield happens("a claim ends", claim=None)
        elif node.there and not node.seen and node.pool >= 0:
            yield happens("the scheduler allocates a claim", claim=node.pool, helps=False)
        if node.seen != node.closed:
            yield happens("the scheduler sees the quiesce as it is", seen=not node.seen)
        if node.there and node.label != node.pool:
            under = "2" if node.claim is not None and node.claim != node.label and not node.lost else ""
            yield happens(f"the driver publishes layout {node.label}", broken=under, pool=node.label, lost=False)
            if state.failures and node.pool != BROKEN:
                half = happens("the driver fails half-way", broken=under, pool=BROKEN, helps=False)
                yield half._replace(state=half.state._replace(failures=state.failures - 1))
        record = node.record
        if record is not None and not record.ours and (not record.token or self.bug == "no finalizer"):
            yield happens("the record is collected with its node", f"R{n}", record=None)
        if node.rule and record is None:
            yield happens(
                "a rule that is left over is swept up", f"D{n}", rule=0, broken="6" if node.rule == ACTIVE else ""
            )
        yield from self._machine(state, n)

    def _machine(self, state: State, n: int) -> Iterator[Step]:
        node, record = state.nodes[n], state.nodes[n].record
        if node.there and state.reboots:
            down = _void(_with(state, n, rebooted=True, lost=True, pool=GONE, claim=None), f"N{n}", f"C{n}")
            # Whoever has read the node before names the boot before.
            late = tuple(w._replace(boots=False) if w.node == n else w for w in down.late)
            down = down._replace(reboots=state.reboots - 1, late=late)
            yield Step(f"n{n}: the node is restarted", down, helps=False)
        if node.there and state.departures:
            left = record._replace(ours=False) if record else None
            gone = _with(
                state,
                n,
                there=False,
                label=BASE,
                step=0,
                cordon=0,
                pool=GONE,
                claim=None,
                record=left,
                taken_for=False,
                touched=False,
                rebooted=False,
                lost=False,
            )
            late = tuple(w._replace(token=0) if (w.node, w.kind) == (n, "new record") else w for w in gone.late)
            gone = gone._replace(late=late, departures=state.departures - 1, ready=False)
            yield Step(f"n{n}: the node is deleted", _void(gone, f"N{n}", f"C{n}", "P"), helps=False)
        if not node.there:
            # What a status says is one event behind then; that is not what invariant 5 is about.
            come = _with(state, n, there=True, pool=BASE)._replace(ready=False)
            yield Step(f"n{n}: a node comes under the same name", _void(come, "P"), helps=False)

    def _user(self, state: State) -> Iterator[Step]:
        if state.policy != "alive":
            return
        if state.spec + 1 < len(self.path):
            changed = state._replace(spec=state.spec + 1, ready=False)
            yield Step(f"the user wants layout {self.path[state.spec + 1]}", _void(changed, "P"), helps=False)
        if self.deletion:
            deleted = state._replace(policy="deleting", ready=False)
            yield Step("the user deletes the policy", _void(deleted, "P"), helps=False)

    # ---------------------------------------------------------------------------------------------------------------- the operator

    def _readings(self, state: State) -> Iterator[Step]:
        careless: set[str] = CARELESS.get(self.bug, set())
        for what, proven, false in self._decisions(state):
            write = proven._replace(on="") if proven.kind in careless else proven
            yield Step(what, state._replace(late=tuple(sorted((*state.late, write), key=_order))), false)

    def _decisions(self, state: State) -> Iterator[tuple[str, Write, str]]:
        wanted = self.path[state.spec] if state.policy == "alive" else None
        for n, node in enumerate(state.nodes):
            if node.record is not None:
                yield from self._node_turn(n, node, node.record, wanted)
            elif wanted is not None and node.there:
                yield f"n{n}: a worker finds no record", Write(n, "new record", "", token=1), ""
            swept = state.policy != "gone" or self.bug != "nobody sweeps up behind a policy"
            if node.record is None and node.taken and swept:
                yield f"n{n}: a worker finds an entry without a record", Write(n, "orphan", "", token=node.taken), ""
        empty = not any(n.taken for n in state.nodes)
        if state.policy == "alive":
            chosen, lost = self._admitted(state, wanted)
            if chosen:
                yield f"a worker may admit {chosen}", Write(-1, "admit", "L", chosen=chosen), ""
            if lost:
                yield f"a worker finds {lost} restarted", Write(-1, "recover", "L", chosen=lost), ""
            there = [n for n in state.nodes if n.there]
            done = all(n.alive and n.record and _at_target(n.record, wanted) for n in there)
            if done and not state.ready and (empty or self.bug == "ready while the ledger has entries"):
                yield "a worker finds all nodes up to date", Write(-1, "ready", "P"), ""
        if state.policy == "deleting" and empty and all(n.record is None for n in state.nodes):
            yield "a worker finds nothing left of the policy", Write(-1, "finish", "P"), ""

    def _node_turn(self, n: int, node: Node, record: Record, wanted: int | None) -> Iterator[tuple[str, Write, str]]:
        blind = self.bug == "a grant for the node before is not seen" and node.there and not node.taken_for
        grant = 0 if blind else node.taken
        views = {
            View(
                shape=record.shape,
                token=record.token,
                step=record.step,
                there=node.alive,
                label=node.label,
                node_step=node.step,
                rule=node.rule,
                cordon=node.cordon,
                way=self.quiesce,
                seen=node.seen,
                pool=node.pool,
                claim=node.claim,
                grant=grant,
                grant_stands=node.taken_for and record.ours,
                for_recovery=node.recovery,
                rebooted=node.rebooted,
                wanted=wanted,
                overdue=overdue,
                asked=asked,
                abandoned=self.abandons,
                bug=self.bug,
                evicts=self.evicts,
                halts=self.halts,
            )
            for overdue in ((False,) if record.at_rest or self.patient else (False, True))
            for asked in ((False, True) if record.phase is Phase.FAILED else (False,))
        }
        about = f"n{n}: a worker reads {record.phase}"
        for found in sorted({decide(v) for v in views}):
            if found.kind == "record":
                after = SHAPES[found.shape]
                target = after.target.fingerprint if after.target else ""
                superseded = (
                    wanted is not None and after.outcome is Phase.UP_TO_DATE and target != LAYOUTS[wanted].fingerprint
                )
                false = "5" if superseded and after.phase is Phase.RELEASING else ""
                new = Record(found.shape, found.token, found.step, record.ours)
                yield f"{about}, wants {after.phase}", Write(n, "record", f"R{n}", record=new, boots=found.boots), false
            elif found.kind:
                on = {"patch": f"N{n}", "create": "", "evict": f"C{n}"}.get(found.kind, f"D{n}")
                yield (
                    f"{about}, wants to {found.kind}",
                    Write(
                        n, found.kind, on, label=found.label, token=record.token, step=found.step, cordon=found.cordon
                    ),
                    "",
                )
        closing = record.phase in {Phase.RELEASING, Phase.ABORTING}
        resting = record.at_rest or (closing and self.bug == "the entry leaves before the node is at rest")
        if not resting or not all(decide(v).kind == "" for v in views if record.at_rest):
            return
        if node.taken and node.taken == record.token:
            yield f"{about}, gives its grant back", Write(n, "give back", "L", token=record.token), ""
        elif record.at_rest and not record.token and (wanted is None or not node.alive) and not grant:
            if node.alive and node.step:
                yield f"{about}, forgets the step", Write(n, "patch", f"N{n}", label=node.label), ""
            else:
                yield f"{about}, lets the node go", Write(n, "let go", f"R{n}"), ""

    def _admitted(self, state: State, wanted: int | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
        nodes, ledger = [], []
        for n, node in enumerate(state.nodes):
            if node.taken:
                ledger.append(Grant(node=str(n), uid="u", policy="p", token=f"t{node.taken}", since=T0))
            if node.record is None:
                continue
            on_target = _on_target(node.record, wanted)
            nodes.append(
                Standing(
                    node=str(n),
                    uid="u",
                    phase=node.record.phase,
                    at_target=node.alive and _at_target(node.record, wanted),
                    towards=on_target,
                    startable=node.alive and node.record.phase is not Phase.SKIPPED,
                    halted=on_target and node.record.phase in {Phase.ROLLED_BACK, Phase.FAILED},
                    ready=node.there,
                    ignored=not node.there,
                    lost=T0 if node.alive and node.rebooted and node.record.phase is Phase.UP_TO_DATE else None,
                    recovering=SHAPES[node.record.shape].recovering,
                )
            )
        rules = Rules(max_unavailable=1, driver_max_unavailable=1, limit=len(nodes), now=T0)
        admission = admit(nodes=nodes, others=(), ledger=ledger, rules=rules)
        return tuple(int(n) for n in admission.nodes), tuple(int(n) for n in admission.lost)

    def _done(self, state: State, write: Write) -> Step:  # noqa: C901, PLR0911, PLR0912  (one case for each kind of write)
        n, what = write.node, f"n{write.node}: written: {write.kind}" if write.node >= 0 else f"written: {write.kind}"
        node = state.nodes[n] if n >= 0 else Node()
        own = "" if write.token == node.taken else "3"
        match write.kind:
            case "record":
                assert write.record is not None
                if node.record is None:
                    return Step(f"{what}: there is none", state)
                record = write.record._replace(ours=node.record.ours)
                put = _with(
                    state,
                    n,
                    record=record,
                    rebooted=node.rebooted and not write.boots,
                    lost=node.lost or SHAPES[record.shape].reason == "Abandoned",
                )
                return Step(f"{what} {record.phase}", _void(put, f"R{n}"))
            case "patch":
                return self._patched(state, write, node, what, own)
            case "create":
                if node.rule:
                    return Step(f"{what}: there is one", state)
                made = ACTIVE if self.bug == "a rule is born active" else INERT
                return Step(what, _void(_with(state, n, rule=made), f"D{n}"), own if made == ACTIVE else "")
            case "activate":
                return Step(what, _void(_with(state, n, rule=ACTIVE), f"D{n}"), own) if node.rule else Step(what, state)
            case "delete":
                return Step(what, _void(_with(state, n, rule=0), f"D{n}"), own if node.rule == ACTIVE else "")
            case "evict":
                if node.claim is None:
                    return Step(f"{what}: there is nobody", state)
                another = "7" if node.claim != write.label else ""
                return Step(what, _void(_with(state, n, claim=None), f"C{n}"), another)
            case "new record" | "orphan":
                if node.record is not None:
                    return Step(f"{what}: there is one", state)
                orphan = write.kind == "orphan"
                ours = node.there and node.taken_for if orphan else bool(write.token)
                made_of = Record(NEW, token=write.token if orphan else 0, ours=ours)
                return Step(what, _void(_with(state, n, record=made_of), f"R{n}"))
            case "admit" | "recover":
                nodes = tuple(
                    m._replace(taken=FRESH, taken_for=m.alive, touched=False, recovery=write.kind == "recover")
                    if i in write.chosen
                    else m
                    for i, m in enumerate(state.nodes)
                )
                return Step(f"{what} {write.chosen}", _void(state._replace(nodes=nodes), "L"))
            case "give back":
                return Step(what, _void(_with(state, n, taken=0, taken_for=False, touched=False, recovery=False), "L"))
            case "let go":
                return Step(what, _void(_with(state, n, record=None), f"R{n}"))
            case "ready":
                return Step(what, _void(state._replace(ready=True), "P"))
            case "finish":
                return Step(what, _void(state._replace(policy="gone"), "P"))
        raise AssertionError(write)

    @staticmethod
    def _patched(state: State, write: Write, node: Node, what: str, own: str) -> Step:
        cordon = node.cordon if write.cordon == AS_IT_IS else write.cordon
        broken = own if write.step or cordon != node.cordon else ""
        touched = node.touched
        if write.label != node.label and not touched:
            previous = SHAPES[node.record.shape].previous if node.record else None
            known = previous is not None and previous.assignment == LAYOUTS[node.label].assignment
            broken, touched = broken or ("" if known else "4"), True
        change = _with(state, write.node, label=write.label, step=write.step, touched=touched, cordon=cordon)
        told = f"layout {write.label}" + (f", cordon {bool(cordon)}" if write.cordon != AS_IT_IS else "")
        return Step(f"{what}: {told}", _void(change, f"N{write.node}"), broken)


def broken(state: State) -> str:
    """The invariants that do not hold now."""
    found = set()
    if sum(n.away and not n.recovery for n in state.nodes) > 1:
        found.add("1")
    for node in state.nodes:
        record = node.record
        if node.away and not node.taken:
            found.add("3")
        if state.policy == "gone" and (node.closed or node.step):
            found.add("13")
        if node.closed and (record is None or record.at_rest):
            found.add("6")
        if node.alive and record is not None:
            if record.phase in MUST_BE_QUIESCED and not node.closed:
                found.add("6")
            shape = SHAPES[record.shape]
            there = (LAYOUTS[node.label].assignment, node.label == node.pool or node.lost)
            if record.phase is Phase.UP_TO_DATE and shape.target and there != (shape.target.assignment, True):
                found.add("5")
            if record.phase is Phase.ROLLED_BACK and shape.current and there != (shape.current.assignment, True):
                found.add("4")
    return " ".join(sorted(found))


def false_success(state: State, path: tuple[int, ...]) -> bool:
    """Whether the policy says Ready while a node is in flight or does not have what it wants now."""
    wanted = path[state.spec]
    # That a node was lost after it had been verified is told by the next event, like all that a status says of nodes.
    return state.ready and any(
        n.there
        and (n.label != wanted or (not n.recovery and (n.away or (n.record is not None and not n.record.at_rest))))
        for n in state.nodes
    )


def quiet(state: State) -> bool:
    """Nobody is in flight, and nothing of ours is left that should not be."""
    settled = all(
        not n.taken and not n.rule and not n.cordon and (n.record is None or (n.record.at_rest and not n.record.token))
        for n in state.nodes
    )
    closed = state.policy != "gone" or all(n.record is None and not n.step for n in state.nodes)
    return settled and closed and not state.late and state.policy != "deleting"


def _on_target(record: Record, wanted: int | None) -> bool:
    target = SHAPES[record.shape].target
    return wanted is not None and target is not None and target.fingerprint == LAYOUTS[wanted].fingerprint


def _at_target(record: Record, wanted: int | None) -> bool:
    return record.phase is Phase.UP_TO_DATE and record.ours and _on_target(record, wanted)


def _order(write: Write) -> tuple[Any, ...]:
    numbers = write.label, write.token, write.step, write.cordon
    return write.node, write.kind, numbers, write.record or (), write.chosen


def _with(state: State, n: int, **change: object) -> State:
    changed: Any = change
    node = state.nodes[n]._replace(**changed)
    return state._replace(nodes=(*state.nodes[:n], node, *state.nodes[n + 1 :]))


def _void(state: State, *objects: str) -> State:
    """These objects have changed: whoever was about to write them under what they were forgets it."""
    return state._replace(late=tuple(w for w in state.late if w.on not in objects)) if objects else state


def renamed(state: State) -> State:
    """Ids by first appearance: tokens and steps are only ever compared."""
    nodes = list(state.nodes)
    late = list(state.late)
    for n, node in enumerate(state.nodes):
        names = {0: 0, AS_IT_IS: AS_IT_IS}

        def name(old: int, names: dict[int, int] = names) -> int:
            return names.setdefault(old, len(names))

        record = node.record
        taken = name(node.taken)
        if record is not None:
            record = record._replace(token=name(record.token), step=name(record.step))
        nodes[n] = node._replace(taken=taken, record=record, step=name(node.step), cordon=name(node.cordon))
        for i, write in enumerate(late):
            if write.node == n and write.kind != "new record":
                changed = write._replace(token=name(write.token), step=name(write.step), cordon=name(write.cordon))
                if write.record is not None:
                    put = write.record
                    changed = changed._replace(record=put._replace(token=name(put.token), step=name(put.step)))
                late[i] = changed
    return state._replace(nodes=tuple(nodes), late=tuple(sorted(late, key=_order)))
