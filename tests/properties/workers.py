"""Workers that read, let the real code decide, and may then be stopped for any time before their one write.

The write carries its proof: when the object that it was decided on has changed meanwhile it is refused, so a worker whose proof is void simply
forgets it. Time is one assumption: to have waited for the settle time is to know that the scheduler's view has caught up. Every limit may be
over at any moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from tests.properties.cluster import BASE, LAYOUTS, SHAPES, Decision, View, decide
from tests.properties.rollout import Rollout
from tests.properties.state import Node, Record, State, Step, Write, in_order
from tests.unit.worlds import T0

from gpupartition.api.v1alpha1 import Grant, Phase
from gpupartition.domain.admission import Rules, Standing, admit
from gpupartition.domain.destination import in_vain
from gpupartition.domain.rest import same_layout
from gpupartition.domain.world import only_closes_or_opens

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
EVICTING: Final = frozenset({Phase.DRAINING, Phase.APPLYING})


def readings(rollout: Rollout, state: State) -> Iterator[Step]:
    """What workers may read now, each with the write that it then wants."""
    careless: set[str] = CARELESS.get(rollout.bug, set())
    # What a worker makes of what it reads depends neither on who is late nor on what may still happen.
    for what, proven, false in _decided(rollout, state._replace(late=(), **_NOTHING_MORE)):
        write = proven
        if proven.kind in careless:
            write = proven._replace(on="")
        elif rollout.bug == BY_UID and proven.kind == "delete":
            write = proven._replace(on=f"U{proven.node}")
        yield Step(what, state._replace(late=tuple(sorted((*state.late, write), key=in_order))), false)


def decisions(rollout: Rollout, state: State) -> Iterator[tuple[str, Write, str]]:
    """What may be read now, the write that is wanted then, and the invariants that wanting it breaks."""
    for n, node in enumerate(state.nodes):
        if node.record is not None:
            yield from _node_turn(rollout, state, n, node.record)
        elif state.policy == "alive" and node.there and node.selected:
            yield f"n{n}: a worker finds no record", Write(n, "new record", "", token=1), ""
        swept = state.policy != "gone" or rollout.bug != "nobody sweeps up behind a policy"
        if node.record is None and node.taken and swept:
            yield f"n{n}: a worker finds an entry without a record", Write(n, "orphan", "", token=node.taken), ""
            if rollout.bug == "an entry without a record is simply removed":
                yield f"n{n}: a worker wants no such entry", Write(n, "give back", "L", token=node.taken), ""
    chosen, lost = _admitted(rollout, state)
    stands_still = "9" if state.halt or (chosen and _failed(rollout, state)) else ""
    if chosen:
        yield f"a worker may admit {chosen}", Write(-1, "admit", "L", chosen=chosen), stands_still
    if lost:
        frozen = "9" if state.halt == "frozen" else ""
        yield f"a worker finds {lost} restarted", Write(-1, "recover", "L", chosen=lost), frozen
    empty = not any(n.taken for n in state.nodes)
    if state.policy == "alive":
        wanted = rollout.path[state.spec]
        there = [n for n in state.nodes if n.there and n.selected]
        done = all(n.alive and n.record and _at_target(n.record, wanted) for n in there)
        if done and not state.ready and (empty or rollout.bug == "ready while the ledger has entries"):
            yield "a worker finds all nodes up to date", Write(-1, "ready", "P"), ""
    if state.policy == "deleting" and empty and all(n.record is None for n in state.nodes):
        yield "a worker finds nothing left of the policy", Write(-1, "finish", "P"), ""


def _wanted(rollout: Rollout, state: State, n: int) -> int | None:
    """What is wanted for a node: the policy's layout, or what it had before, or nothing any more."""
    node = state.nodes[n]
    if state.policy == "alive" and node.selected:
        return rollout.path[state.spec]
    record = node.record
    if not rollout.reverts or record is None or state.policy == "gone" or rollout.bug == "nobody asks what a node had":
        return None
    shape = SHAPES[record.shape]
    failed = record.phase is Phase.FAILED or in_vain(shape)
    if rollout.abandons and (failed or shape.reason == "Abandoned"):
        return None
    original = next((i for i, c in enumerate(LAYOUTS) if same_layout(shape.original, c.assigned())), None)
    back = record.at_rest and node.label == original == node.pool
    return None if back else original


def _views(rollout: Rollout, state: State, n: int, record: Record) -> set[View]:
    node = state.nodes[n]
    blind = rollout.bug == "a grant for the node before is not seen" and node.there and not node.taken_for
    wanted = _wanted(rollout, state, n)
    copies = only_closes_or_opens(record.phase, has_token=bool(record.token))
    pools, pods = ({node.pool, BASE, *rollout.path}, {node.pod, 0}) if copies else ({node.pool}, {node.pod})
    may_ask = record.phase is Phase.FAILED or (rollout.reverts and record.phase is Phase.ROLLED_BACK)
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
            way=rollout.quiesce,
            seen=node.seen,
            pool=pool,
            claim=node.claim,
            grant=0 if blind else node.taken,
            grant_stands=node.taken_for and record.ours,
            for_recovery=node.recovery,
            rebooted=node.rebooted,
            wanted=wanted,
            overdue=overdue,
            asked=asked,
            abandoned=rollout.abandons,
            bug=rollout.bug,
            evicts=rollout.evicts,
            halts=rollout.halts,
            pod=pod,
            outdated=node.outdated,
            cuts=rollout.cuts,
            answered=node.answered,
            gone_pod=record.pod,
            gone_step=record.pod_step,
            kind=rollout.kind,
            halted=bool(state.halt) and rollout.bug != "nobody asks whether to stand still",
        )
        for overdue in ((False,) if record.at_rest or rollout.patient else (False, True))
        for asked in ((False, True) if may_ask else (False,))
        for pool in pools
        for pod in pods
    }


def _node_turn(rollout: Rollout, state: State, n: int, record: Record) -> Iterator[tuple[str, Write, str]]:
    node = state.nodes[n]
    views = _views(rollout, state, n, record)
    about = f"n{n}: a worker reads {record.phase}"
    for found in sorted({decide(v) for v in views}):
        yield from _wish(rollout, state, n, record, found, about)
    if rollout.bug in LOOKS and not record.at_rest:
        yield f"{about}, and nothing else yet", Write(n, "look", "", record=record, token=record.token), ""
    closing = record.phase in {Phase.RELEASING, Phase.ABORTING}
    resting = record.at_rest or (closing and rollout.bug == "the entry leaves before the node is at rest")
    if not resting or not all(decide(v).kind == "" for v in views if record.at_rest):
        return
    wanted, grant = _wanted(rollout, state, n), next(iter(views)).grant
    if node.taken and node.taken == record.token:
        yield f"{about}, gives its grant back", Write(n, "give back", "L", token=record.token), ""
    elif record.at_rest and not record.token and (wanted is None or not node.alive) and not grant:
        if node.alive and node.step:
            yield f"{about}, forgets the step", Write(n, "patch", f"N{n}", label=node.label), ""
        else:
            moved = rollout.reverts and not rollout.abandons and not node.torn and node.alive and node.label != BASE
            yield f"{about}, lets the node go", Write(n, "let go", f"R{n}"), "13" if moved else ""


def _wish(
    rollout: Rollout, state: State, n: int, record: Record, found: Decision, about: str
) -> Iterator[tuple[str, Write, str]]:
    node = state.nodes[n]
    if found.kind == "record":
        after = SHAPES[found.shape]
        target, wanted = after.target.fingerprint if after.target else "", _wanted(rollout, state, n)
        superseded = wanted is not None and after.outcome is Phase.UP_TO_DATE and target != LAYOUTS[wanted].fingerprint
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


def looked(rollout: Rollout, state: State, write: Write) -> Iterator[Step]:
    """A worker that read the record long ago reads what it is about to write."""
    n, record, node = write.node, write.record, state.nodes[write.node]
    assert record is not None, write
    if "grant" in rollout.bug and node.taken != record.token:
        return
    about = f"n{n}: who has read {record.phase} reads on"
    for found in sorted({decide(v) for v in _views(rollout, state, n, record)}):
        if found.kind in LOOKS[rollout.bug]:
            for what, late, _ in _wish(rollout, state, n, record, found, about):
                yield Step(what, state._replace(late=tuple(sorted((*state.late, late), key=in_order))))


def _ledger(state: State) -> list[Grant]:
    return [
        Grant(node=str(n), uid="u", policy="p", token=f"t{node.taken}", since=T0)
        for n, node in enumerate(state.nodes)
        if node.taken
    ]


def _admitted(rollout: Rollout, state: State) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if state.policy == "gone" or (state.policy == "deleting" and not rollout.reverts):
        return (), ()
    standings = [
        _standing(rollout, state, n, node, node.record) for n, node in enumerate(state.nodes) if node.record is not None
    ]
    deaf = rollout.bug == "nobody asks whether to stand still"
    rules = Rules(
        max_unavailable=2 if rollout.bug == "nobody counts" else 1,
        driver_max_unavailable=2 if rollout.bug == "nobody counts" else 1,
        limit=len(standings),
        paused="by somebody" if state.halt == "paused" and state.policy == "alive" and not deaf else "",
        frozen="so that nothing moves" if state.halt == "frozen" and not deaf else "",
        now=T0,
    )
    admission = admit(nodes=standings, others=(), ledger=_ledger(state), rules=rules)
    return tuple(int(n) for n in admission.nodes), tuple(int(n) for n in admission.lost)


def _standing(rollout: Rollout, state: State, n: int, node: Node, record: Record) -> Standing:
    wanted, shape = _wanted(rollout, state, n), SHAPES[record.shape]
    on_target, leaving = _on_target(record, wanted), state.policy != "alive" or not node.selected
    waits = record.phase is Phase.PENDING if leaving else record.phase is not Phase.SKIPPED
    reverts = leaving and wanted is not None and on_target and waits
    return Standing(
        node=str(n),
        uid="u",
        phase=record.phase,
        at_target=not reverts if leaving else node.alive and _at_target(record, wanted),
        startable=node.alive and (reverts or (not leaving and waits)),
        halted=on_target and _has_failed(rollout, record),
        leaving=leaving,
        ready=node.there,
        ignored=not node.there,
        lost=T0 if node.alive and node.rebooted and record.phase is Phase.UP_TO_DATE else None,
        recovering=shape.recovering,
        at_work="it is cordoned" if node.theirs else "",
    )


def _has_failed(rollout: Rollout, record: Record) -> bool:
    return record.phase in {Phase.ROLLED_BACK, Phase.FAILED} and rollout.bug != "nobody counts failures"


def _failed(rollout: Rollout, state: State) -> bool:
    """Whether a node has failed with what is wanted now."""
    failed = {Phase.ROLLED_BACK, Phase.FAILED}
    return any(
        n.record is not None and n.record.phase in failed and _on_target(n.record, _wanted(rollout, state, i))
        for i, n in enumerate(state.nodes)
    )


@lru_cache(maxsize=100_000)
def _decided(rollout: Rollout, state: State) -> tuple[tuple[str, Write, str], ...]:
    return tuple(decisions(rollout, state))


def _on_target(record: Record, wanted: int | None) -> bool:
    target = SHAPES[record.shape].target
    return wanted is not None and target is not None and target.fingerprint == LAYOUTS[wanted].fingerprint


def _at_target(record: Record, wanted: int | None) -> bool:
    return record.phase is Phase.UP_TO_DATE and record.ours and _on_target(record, wanted)
