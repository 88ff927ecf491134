"""A cluster small enough to go through all of its states, in which the real decisions are made by workers that may be late.

Every worker reads, lets the real code decide, and then may be stopped for any time before its one write. The write carries its proof: when
the object that it was decided on has changed meanwhile it is refused, so a worker whose proof is void simply forgets it. Beside the workers
there are a scheduler that sees the taint late and allocates whenever its own view shows none, a driver that follows the label late or fails,
claims that end, nodes that go and come back under their name, people with hands, and a user.

Time is one assumption: to have waited for the settle time is to know that the scheduler's view has caught up. Every limit may be over at any
moment. Numbers of invariants: see invariants.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from tests.properties.cluster import (
    ACTIVE,
    AS_IT_IS,
    BASE,
    BROKEN,
    FRESH,
    GONE,
    INERT,
    LAYOUTS,
    NO_PODS,
    SHAPES,
    Decision,
    View,
    decide,
    shape_of,
)
from tests.properties.state import Node, Record, State, Step, Write, changed, in_order, void
from tests.unit.worlds import T0

from gpupartition.api.v1alpha1 import Grant, NodeStateStatus, Phase
from gpupartition.domain.admission import Rules, Standing, admit
from gpupartition.domain.quiesce import Way
from gpupartition.domain.rest import same_layout

CARELESS: Final = {
    "a record is written without its version": {"record"},
    "a node is written without its version": {"patch"},
    "a rule is activated without its version": {"activate"},
    "a rule is deleted by its name": {"delete"},
    "the ledger is written without its version": {"admit", "give back"},
    "a pod is evicted by its name": {"evict"},
}
BY_UID: Final = "a rule is deleted by its UID alone"
# The record is read first, and what is to be written only then: these kinds of writes come of it.
LOOKS: Final = {
    "the record is read before the node": {"patch"},
    "the record is read before the rule": {"activate", "delete"},
    "the grant is looked at instead of the record": {"patch", "activate", "delete"},
}
_NOTHING_MORE: Final[dict[str, Any]] = dict.fromkeys(
    ("failures", "departures", "reboots", "pauses", "hands", "leavings"), 0
)
NEW: Final = shape_of(NodeStateStatus())
EVICTING: Final = frozenset({Phase.DRAINING, Phase.APPLYING})


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """How much is gone through: nodes, workers, the targets that the user asks for, and what may go wrong how often; and one planted bug."""

    nodes: int = 1
    workers: int = 2
    path: tuple[int, ...] = (1,)
    failures: int = 0
    departures: int = 0
    reboots: int = 0
    pauses: int = 0  # the user says stop, and go on
    freezes: bool = False  # and says so by freezing everything
    hands: int = 0  # somebody deletes a record
    leavings: int = 0  # a node leaves the selector, or comes back
    deletion: bool = False
    reverts: bool = False  # whoever leaves gets back what it had
    abandons: bool = False  # somebody asked to let go of what cannot be brought back
    patient: bool = False  # no limit is ever over
    evicts: bool = False  # pods never end by themselves
    halts: bool = False  # a node that is not drained in time counts as failed
    restarts: bool = False  # the driver's pod has to be deleted for another config behind the same value
    strangers: bool = False  # somebody else cordons nodes
    kind: str = "reserved"  # of claims
    quiesce: Way = "DeviceTaint"
    bug: str = ""

    def initial(self) -> State:
        """Nobody has done anything yet."""
        node = Node(pod=FRESH, outdated=True) if self.restarts else Node()
        return State(
            (node,) * self.nodes,
            failures=self.failures,
            departures=self.departures,
            reboots=self.reboots,
            pauses=self.pauses,
            hands=self.hands,
            leavings=self.leavings,
        )

    def steps(self, state: State) -> Iterator[Step]:
        """Everything that may happen next."""
        yield from self.around(state)
        for i, write in enumerate(state.late):
            rest = state._replace(late=state.late[:i] + state.late[i + 1 :])
            yield Step(f"a worker dies before {write.kind} n{write.node}", rest)
            yield from self._looked(rest, write) if write.kind == "look" else (self.done(rest, write),)
        if len(state.late) < self.workers:
            yield from self.readings(state)

    def around(self, state: State) -> Iterator[Step]:
        """What may happen whatever the operator does."""
        for n in range(self.nodes):
            yield from self._surroundings(state, n)
        yield from self._user(state)

    def readings(self, state: State) -> Iterator[Step]:
        """What workers may read now, each with the write that it then wants."""
        careless: set[str] = CARELESS.get(self.bug, set())
        # What a worker makes of what it reads depends neither on who is late nor on what may still happen.
        for what, proven, false in _decided(self, state._replace(late=(), **_NOTHING_MORE)):
            write = proven
            if proven.kind in careless:
                write = proven._replace(on="")
            elif self.bug == BY_UID and proven.kind == "delete":
                write = proven._replace(on=f"U{proven.node}")
            yield Step(what, state._replace(late=tuple(sorted((*state.late, write), key=in_order))), false)

    # ------------------------------------------------------------------------------------------------------- all but the operator

    def _surroundings(self, state: State, n: int) -> Iterator[Step]:
        node = state.nodes[n]

        def happens(what: str, *objects: str, broken: str = "", helps: bool = True, **change: object) -> Step:
            return Step(f"n{n}: {what}", void(changed(state, n, **change), *objects), broken, helps)

        yield from self._driver(state, n)
        if node.claim is not None:
            if not self.evicts:
                yield happens("a claim ends", claim=None)
        elif node.there and not node.seen and node.pool >= 0:
            yield happens("the scheduler allocates a claim", claim=node.pool, helps=False)
        if node.seen != node.shut:
            yield happens("the scheduler sees the quiesce as it is", seen=not node.seen)
        record = node.record
        held = record is not None and bool(record.token)
        if record is not None and self.bug == "the finalizer goes when the node is at rest":
            held = held and not record.at_rest
        if record is not None and not record.ours and (not held or self.bug == "no finalizer"):
            yield happens("the record is collected with its node", f"R{n}", record=None)
        if record is not None and record.doomed and not held:
            yield happens("the record that somebody deleted is gone", f"R{n}", record=None)
        if node.rule and record is None:
            yield happens(
                "a rule that is left over is swept up",
                f"D{n}",
                f"U{n}",
                rule=0,
                broken="6" if node.rule == ACTIVE else "",
            )
        yield from self._machine(state, n)
        yield from self._hands(state, n)

    def _driver(self, state: State, n: int) -> Iterator[Step]:
        node = state.nodes[n]

        def happens(what: str, broken: str = "", *, fails: bool = False, **change: object) -> Step:
            failures = state.failures - fails
            return Step(f"n{n}: {what}", changed(state, n, **change)._replace(failures=failures), broken, not fails)

        anew: dict[str, Any] = {} if node.pod == NO_PODS else {"pod": FRESH, "outdated": False}
        if node.there and node.pod == 0:
            yield happens("a new pod of the driver is up", **anew)
            if state.failures:
                yield happens("a new pod of the driver fails half-way", fails=True, pool=BROKEN, **anew)
        if node.there and node.label != node.pool:
            under = "2" if node.claim is not None and node.claim != node.label and not node.lost else ""
            yield happens(f"the driver publishes layout {node.label}", under, pool=node.label, lost=False, **anew)
            if state.failures and node.pool != BROKEN:
                yield happens("the driver fails half-way", under, fails=True, pool=BROKEN)

    def _machine(self, state: State, n: int) -> Iterator[Step]:
        node, record = state.nodes[n], state.nodes[n].record
        if node.there and state.reboots:
            down = void(changed(state, n, rebooted=True, lost=True, pool=GONE, claim=None), f"N{n}", f"C{n}")
            # Whoever has read the node before names the boot before.
            late = tuple(w._replace(boots=False) if w.node == n else w for w in down.late)
            down = down._replace(reboots=state.reboots - 1, late=late)
            yield Step(f"n{n}: the node is restarted", down, helps=False)
        if node.there and state.departures:
            gone = Node(
                there=False,
                record=record._replace(ours=False) if record else None,
                taken=node.taken,
                rule=node.rule,
                seen=node.seen,
                pool=GONE,
                recovery=node.recovery,
                selected=node.selected,
                pod=node.pod and min(node.pod, 0),
            )
            left = state._replace(nodes=(*state.nodes[:n], gone, *state.nodes[n + 1 :]))
            late = tuple(w._replace(token=0) if (w.node, w.kind) == (n, "new record") else w for w in left.late)
            left = left._replace(late=late, departures=state.departures - 1, ready=False)
            yield Step(f"n{n}: the node is deleted", void(left, f"N{n}", f"C{n}", "P"), helps=False)
        if not node.there:
            # What a status says is one event behind then; that is not what invariant 5 is about.
            pod = NO_PODS if node.pod == NO_PODS else FRESH
            come = changed(state, n, there=True, pool=BASE, pod=pod)._replace(ready=False)
            yield Step(f"n{n}: a node comes under the same name", void(come, "P"), helps=False)

    def _hands(self, state: State, n: int) -> Iterator[Step]:
        node, record = state.nodes[n], state.nodes[n].record
        if record is not None and state.hands and not record.doomed:
            left = record._replace(doomed=True) if record.token else None
            deleted = void(changed(state, n, record=left, torn=True)._replace(hands=state.hands - 1), f"R{n}")
            yield Step(f"n{n}: somebody deletes the record", deleted, helps=False)
        if self.strangers and node.there and not node.cordon and not node.theirs:
            yield Step(f"n{n}: somebody else cordons it", void(changed(state, n, theirs=True), f"N{n}"), helps=False)
        if state.leavings and state.policy == "alive":
            relabelled = changed(state, n, selected=not node.selected)
            relabelled = relabelled._replace(leavings=state.leavings - 1, ready=False)
            told = "leaves the policy" if node.selected else "comes back to the policy"
            yield Step(f"n{n}: the node {told}", void(relabelled, f"N{n}", "P"), helps=False)

    def _user(self, state: State) -> Iterator[Step]:
        if state.policy != "gone" and state.pauses:
            says = "" if state.halt else "frozen" if self.freezes else "paused"
            stopped = state._replace(halt=says, pauses=state.pauses - 1)
            yield Step(f"the user says {says or 'go on'}", void(stopped, "P"), helps=False)
        if state.policy != "alive":
            return
        if state.spec + 1 < len(self.path):
            other = state._replace(spec=state.spec + 1, ready=False)
            yield Step(f"the user wants layout {self.path[state.spec + 1]}", void(other, "P"), helps=False)
        if self.deletion:
            deleted = state._replace(policy="deleting", ready=False)
            yield Step("the user deletes the policy", void(deleted, "P"), helps=False)

    # ---------------------------------------------------------------------------------------------------------------- the operator

    def decisions(self, state: State) -> Iterator[tuple[str, Write, str]]:
        """What may be read now, the write that is wanted then, and the invariants that wanting it breaks."""
        for n, node in enumerate(state.nodes):
            if node.record is not None:
                yield from self._node_turn(state, n, node.record)
            elif state.policy == "alive" and node.there and node.selected:
                yield f"n{n}: a worker finds no record", Write(n, "new record", "", token=1), ""
            swept = state.policy != "gone" or self.bug != "nobody sweeps up behind a policy"
            if node.record is None and node.taken and swept:
                yield f"n{n}: a worker finds an entry without a record", Write(n, "orphan", "", token=node.taken), ""
                if self.bug == "an entry without a record is simply removed":
                    yield f"n{n}: a worker wants no such entry", Write(n, "give back", "L", token=node.taken), ""
        chosen, lost = self._admitted(state)
        stands_still = "9" if state.halt or (chosen and self._failed(state)) else ""
        if chosen:
            yield f"a worker may admit {chosen}", Write(-1, "admit", "L", chosen=chosen), stands_still
        if lost:
            frozen = "9" if state.halt == "frozen" else ""
            yield f"a worker finds {lost} restarted", Write(-1, "recover", "L", chosen=lost), frozen
        empty = not any(n.taken for n in state.nodes)
        if state.policy == "alive":
            wanted = self.path[state.spec]
            there = [n for n in state.nodes if n.there and n.selected]
            done = all(n.alive and n.record and _at_target(n.record, wanted) for n in there)
            if done and not state.ready and (empty or self.bug == "ready while the ledger has entries"):
                yield "a worker finds all nodes up to date", Write(-1, "ready", "P"), ""
        if state.policy == "deleting" and empty and all(n.record is None for n in state.nodes):
            yield "a worker finds nothing left of the policy", Write(-1, "finish", "P"), ""

    def _wanted(self, state: State, n: int) -> int | None:
        """What is wanted for a node: the policy's layout, or what it had before, or nothing any more."""
        node = state.nodes[n]
        if state.policy == "alive" and node.selected:
            return self.path[state.spec]
        record = node.record
        if not self.reverts or record is None or state.policy == "gone" or self.bug == "nobody asks what a node had":
            return None
        shape = SHAPES[record.shape]
        if self.abandons and (record.phase is Phase.FAILED or shape.reason == "Abandoned"):
            return None
        original = next((i for i, c in enumerate(LAYOUTS) if same_layout(shape.original, c.assigned())), None)
        back = record.at_rest and node.label == original == node.pool
        return None if back else original

    def _views(self, state: State, n: int, record: Record) -> set[View]:
        node = state.nodes[n]
        blind = self.bug == "a grant for the node before is not seen" and node.there and not node.taken_for
        wanted = self._wanted(state, n)
        may_ask = record.phase is Phase.FAILED or (self.reverts and record.phase is Phase.ROLLED_BACK)
        return {
            View(
                shape=record.shape,
                token=record.token,
                step=record.step,
                there=node.there and record.ours,
                label=node.label,
                node_step=node.step,
                rule=node.rule,
                cordon=node.cordon,
                theirs=node.theirs,
                way=self.quiesce,
                seen=node.seen,
                pool=node.pool,
                claim=node.claim,
                grant=0 if blind else node.taken,
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
                pod=node.pod,
                outdated=node.outdated,
                gone_pod=record.pod,
                gone_step=record.pod_step,
                kind=self.kind,
                halted=bool(state.halt) and self.bug != "nobody asks whether to stand still",
            )
            for overdue in ((False,) if record.at_rest or self.patient else (False, True))
            for asked in ((False, True) if may_ask else (False,))
        }

    def _node_turn(self, state: State, n: int, record: Record) -> Iterator[tuple[str, Write, str]]:
        node = state.nodes[n]
        views = self._views(state, n, record)
        about = f"n{n}: a worker reads {record.phase}"
        for found in sorted({decide(v) for v in views}):
            yield from self._wish(state, n, record, found, about)
        if self.bug in LOOKS and not record.at_rest:
            yield f"{about}, and nothing else yet", Write(n, "look", "", record=record, token=record.token), ""
        closing = record.phase in {Phase.RELEASING, Phase.ABORTING}
        resting = record.at_rest or (closing and self.bug == "the entry leaves before the node is at rest")
        if not resting or not all(decide(v).kind == "" for v in views if record.at_rest):
            return
        wanted, grant = self._wanted(state, n), next(iter(views)).grant
        if node.taken and node.taken == record.token:
            yield f"{about}, gives its grant back", Write(n, "give back", "L", token=record.token), ""
        elif record.at_rest and not record.token and (wanted is None or not node.alive) and not grant:
            if node.alive and node.step:
                yield f"{about}, forgets the step", Write(n, "patch", f"N{n}", label=node.label), ""
            else:
                moved = self.reverts and not self.abandons and not node.torn and node.alive and node.label != BASE
                yield f"{about}, lets the node go", Write(n, "let go", f"R{n}"), "13" if moved else ""

    def _wish(
        self, state: State, n: int, record: Record, found: Decision, about: str
    ) -> Iterator[tuple[str, Write, str]]:
        node = state.nodes[n]
        if found.kind == "record":
            after = SHAPES[found.shape]
            target, wanted = after.target.fingerprint if after.target else "", self._wanted(state, n)
            superseded = (
                wanted is not None and after.outcome is Phase.UP_TO_DATE and target != LAYOUTS[wanted].fingerprint
            )
            false = "5" if superseded and after.phase is Phase.RELEASING else ""
            new = record._replace(
                shape=found.shape, token=found.token, step=found.step, pod=found.pod, pod_step=found.pod_step
            )
            yield f"{about}, wants {after.phase}", Write(n, "record", f"R{n}", record=new, boots=found.boots), false
        elif found.kind:
            on = {"patch": f"N{n}", "create": "", "evict": f"C{n}", "restart": ""}.get(found.kind, f"D{n}")
            moves = found.kind == "patch" and found.label != node.label
            slipped = moves and record.phase is Phase.APPLYING and node.claim not in {None, found.label}
            still = found.kind == "evict" and (bool(state.halt) or record.phase not in EVICTING)
            write = Write(
                n,
                found.kind,
                on,
                label=found.label,
                token=record.token,
                step=found.step,
                cordon=found.cordon,
                pod=found.pod,
                opens=found.opens,
                spared=found.spared,
            )
            yield f"{about}, wants to {found.kind}", write, "10" if slipped else "9" if still else ""

    def _looked(self, state: State, write: Write) -> Iterator[Step]:
        """A worker that read the record long ago reads what it is about to write."""
        n, record, node = write.node, write.record, state.nodes[write.node]
        assert record is not None, write
        if "grant" in self.bug and node.taken != record.token:
            return
        about = f"n{n}: who has read {record.phase} reads on"
        for found in sorted({decide(v) for v in self._views(state, n, record)}):
            if found.kind in LOOKS[self.bug]:
                for what, late, _ in self._wish(state, n, record, found, about):
                    yield Step(what, state._replace(late=tuple(sorted((*state.late, late), key=in_order))))

    @staticmethod
    def _ledger(state: State) -> list[Grant]:
        return [
            Grant(node=str(n), uid="u", policy="p", token=f"t{node.taken}", since=T0)
            for n, node in enumerate(state.nodes)
            if node.taken
        ]

    def _admitted(self, state: State) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if state.policy == "gone" or (state.policy == "deleting" and not self.reverts):
            return (), ()
        standings = [
            self._standing(state, n, node, node.record) for n, node in enumerate(state.nodes) if node.record is not None
        ]
        deaf = self.bug == "nobody asks whether to stand still"
        rules = Rules(
            max_unavailable=2 if self.bug == "nobody counts" else 1,
            driver_max_unavailable=2 if self.bug == "nobody counts" else 1,
            limit=len(standings),
            paused=state.halt == "paused" and state.policy == "alive" and not deaf,
            frozen="so that nothing moves" if state.halt == "frozen" and not deaf else "",
            now=T0,
        )
        admission = admit(nodes=standings, others=(), ledger=self._ledger(state), rules=rules)
        return tuple(int(n) for n in admission.nodes), tuple(int(n) for n in admission.lost)

    def _standing(self, state: State, n: int, node: Node, record: Record) -> Standing:
        wanted, shape = self._wanted(state, n), SHAPES[record.shape]
        on_target, leaving = _on_target(record, wanted), state.policy != "alive" or not node.selected
        waits = record.phase is Phase.PENDING if leaving else record.phase is not Phase.SKIPPED
        reverts = leaving and wanted is not None and on_target and waits
        return Standing(
            node=str(n),
            uid="u",
            phase=record.phase,
            at_target=not reverts if leaving else node.alive and _at_target(record, wanted),
            towards=on_target,
            startable=node.alive and (reverts or (not leaving and waits)),
            halted=on_target and self._has_failed(record),
            leaving=leaving,
            ready=node.there,
            ignored=not node.there,
            lost=T0 if node.alive and node.rebooted and record.phase is Phase.UP_TO_DATE else None,
            recovering=shape.recovering,
            at_work="it is cordoned" if node.theirs else "",
        )

    def _has_failed(self, record: Record) -> bool:
        return record.phase in {Phase.ROLLED_BACK, Phase.FAILED} and self.bug != "nobody counts failures"

    def _failed(self, state: State) -> bool:
        """Whether a node has failed with what is wanted now."""
        failed = {Phase.ROLLED_BACK, Phase.FAILED}
        return any(
            n.record is not None and n.record.phase in failed and _on_target(n.record, self._wanted(state, i))
            for i, n in enumerate(state.nodes)
        )

    def done(self, state: State, write: Write) -> Step:  # noqa: C901, PLR0911, PLR0912  (one case for each kind of write)
        """The write reaches the server, and its proof holds."""
        n, what = write.node, f"n{write.node}: written: {write.kind}" if write.node >= 0 else f"written: {write.kind}"
        node = state.nodes[n] if n >= 0 else Node()
        own = "" if write.token == node.taken else "3"
        match write.kind:
            case "record":
                return self._put(state, write, node, what)
            case "patch":
                return self._patched(state, write, node, what, own)
            case "create":
                if node.rule:
                    return Step(f"{what}: there is one", state)
                made = ACTIVE if self.bug == "a rule is born active" else INERT
                new = void(changed(state, n, rule=made), f"D{n}", f"U{n}")
                return Step(what, new, own if made == ACTIVE else "")
            case "activate":
                return (
                    Step(what, void(changed(state, n, rule=ACTIVE), f"D{n}"), own) if node.rule else Step(what, state)
                )
            case "delete":
                active = node.rule == ACTIVE
                return Step(what, void(changed(state, n, rule=0), f"D{n}", f"U{n}"), own if active else "")
            case "evict":
                if node.claim is None:
                    return Step(f"{what}: there is nobody", state)
                wrong = write.spared or node.claim != write.label
                ended = state if write.spared else void(changed(state, n, claim=None), f"C{n}")
                return Step(what, ended, "7" if wrong else "")
            case "restart":
                if node.pod != write.pod:
                    return Step(f"{what}: it is another one", state)
                return Step(what, changed(state, n, pod=0), own)
            case "new record" | "orphan":
                if node.record is not None:
                    return Step(f"{what}: there is one", state)
                orphan = write.kind == "orphan"
                ours = node.there and node.taken_for if orphan else bool(write.token)
                made_of = Record(NEW, token=write.token if orphan else 0, ours=ours)
                return Step(what, void(changed(state, n, record=made_of), f"R{n}"))
            case "admit" | "recover":
                nodes = tuple(
                    m._replace(taken=FRESH, taken_for=m.alive, touched=False, recovery=write.kind == "recover")
                    if i in write.chosen
                    else m
                    for i, m in enumerate(state.nodes)
                )
                return Step(f"{what} {write.chosen}", void(state._replace(nodes=nodes), "L"))
            case "give back":
                given = changed(state, n, taken=0, taken_for=False, touched=False, recovery=False)
                return Step(what, void(given, "L"))
            case "let go":
                return Step(what, void(changed(state, n, record=None), f"R{n}"))
            case "ready":
                return Step(what, void(state._replace(ready=True), "P"))
            case "finish":
                return Step(what, void(state._replace(policy="gone"), "P"))
        raise AssertionError(write)

    @staticmethod
    def _put(state: State, write: Write, node: Node, what: str) -> Step:
        assert write.record is not None, write
        if node.record is None:
            return Step(f"{what}: there is none", state)
        record = write.record._replace(ours=node.record.ours, doomed=node.record.doomed)
        put = changed(
            state,
            write.node,
            record=record,
            rebooted=node.rebooted and not write.boots,
            lost=node.lost or SHAPES[record.shape].reason == "Abandoned",
        )
        return Step(f"{what} {record.phase}", void(put, f"R{write.node}"))

    @staticmethod
    def _patched(state: State, write: Write, node: Node, what: str, own: str) -> Step:
        cordon = node.cordon if write.cordon == AS_IT_IS else write.cordon
        broken = own if write.step or cordon != node.cordon else ""
        touched = node.touched
        if write.label != node.label and not touched:
            previous = SHAPES[node.record.shape].previous if node.record else None
            known = previous is not None and previous.assignment == LAYOUTS[node.label].assignment
            broken, touched = broken or ("" if known else "4"), True
        if write.opens and node.theirs:
            broken = "6"
        change = changed(
            state,
            write.node,
            label=write.label,
            step=write.step,
            touched=touched,
            cordon=cordon,
            theirs=node.theirs and not write.opens,
        )
        told = f"layout {write.label}" + (f", cordon {bool(cordon)}" if write.cordon != AS_IT_IS else "")
        return Step(f"{what}: {told}", void(change, f"N{write.node}"), broken)


@lru_cache(maxsize=100_000)
def _decided(rollout: Rollout, state: State) -> tuple[tuple[str, Write, str], ...]:
    return tuple(rollout.decisions(state))


def _on_target(record: Record, wanted: int | None) -> bool:
    target = SHAPES[record.shape].target
    return wanted is not None and target is not None and target.fingerprint == LAYOUTS[wanted].fingerprint


def _at_target(record: Record, wanted: int | None) -> bool:
    return record.phase is Phase.UP_TO_DATE and record.ours and _on_target(record, wanted)


assert NO_PODS == AS_IT_IS, "what is no id keeps its value when ids are renamed"
