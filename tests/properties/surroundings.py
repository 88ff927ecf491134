"""All that may happen to a small cluster whatever the operator does.

A scheduler that sees the taint late and allocates whenever its own view shows none, a driver that follows the label late or fails, claims that
end, nodes that go and come back under their name, people with hands, and a user.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.properties.cluster import ACTIVE, BASE, BROKEN, FRESH, GONE, NO_PODS
from tests.properties.rollout import Rollout
from tests.properties.state import Node, State, Step, changed, void


def around(rollout: Rollout, state: State) -> Iterator[Step]:
    """What may happen whatever the operator does."""
    for n in range(rollout.nodes):
        yield from _surroundings(rollout, state, n)
    yield from _user(rollout, state)


def _surroundings(rollout: Rollout, state: State, n: int) -> Iterator[Step]:
    node = state.nodes[n]

    def happens(what: str, *objects: str, broken: str = "", helps: bool = True, **change: object) -> Step:
        return Step(f"n{n}: {what}", void(changed(state, n, **change), *objects), broken, helps)

    yield from (_cutter if rollout.cuts else _driver)(state, n)
    if node.claim is not None:
        if not rollout.evicts:
            yield happens("a claim ends", claim=None)
    elif node.there and not node.seen and node.pool >= 0:
        yield happens("the scheduler allocates a claim", claim=node.pool, helps=False)
    if node.seen != node.shut:
        yield happens("the scheduler sees the quiesce as it is", seen=not node.seen)
    record = node.record
    held = record is not None and bool(record.token)
    if record is not None and rollout.bug == "the finalizer goes when the node is at rest":
        held = held and not record.at_rest
    if record is not None and not record.ours and (not held or rollout.bug == "no finalizer"):
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
    yield from _machine(state, n)
    yield from _hands(rollout, state, n)


def _driver(state: State, n: int) -> Iterator[Step]:
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


def _cutter(state: State, n: int) -> Iterator[Step]:
    node = state.nodes[n]
    if node.there and node.pod == 0:
        up = changed(state, n, pod=FRESH, pool=node.cut)
        yield Step(
            f"n{n}: a new pod of the driver publishes layout {node.cut}", up, "2" if node.claim is not None else ""
        )
    if node.there and not node.answered:
        under = "2" if node.claim is not None and node.claim != node.label else ""
        done = changed(state, n, cut=node.label, answered=True)
        yield Step(f"n{n}: the driver cuts layout {node.label} and answers", void(done, f"N{n}"), under)
        if state.failures:
            half = changed(state, n, cut=BROKEN)._replace(failures=state.failures - 1)
            yield Step(f"n{n}: the driver fails half-way", half, under, helps=False)


def _machine(state: State, n: int) -> Iterator[Step]:
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
        come = changed(state, n, there=True, pool=BASE, pod=pod, cut=BASE, answered=True)._replace(ready=False)
        yield Step(f"n{n}: a node comes under the same name", void(come, "P"), helps=False)


def _hands(rollout: Rollout, state: State, n: int) -> Iterator[Step]:
    node, record = state.nodes[n], state.nodes[n].record
    if record is not None and state.hands and not record.doomed:
        left = record._replace(doomed=True) if record.token else None
        deleted = void(changed(state, n, record=left, torn=True)._replace(hands=state.hands - 1), f"R{n}")
        yield Step(f"n{n}: somebody deletes the record", deleted, helps=False)
    if rollout.strangers and node.there and not node.cordon and not node.theirs:
        yield Step(f"n{n}: somebody else cordons it", void(changed(state, n, theirs=True), f"N{n}"), helps=False)
    if state.leavings and state.policy == "alive":
        relabelled = changed(state, n, selected=not node.selected)
        relabelled = relabelled._replace(leavings=state.leavings - 1, ready=False)
        told = "leaves the policy" if node.selected else "comes back to the policy"
        yield Step(f"n{n}: the node {told}", void(relabelled, f"N{n}", "P"), helps=False)


def _user(rollout: Rollout, state: State) -> Iterator[Step]:
    if state.policy != "gone" and state.pauses:
        says = "" if state.halt else "frozen" if rollout.freezes else "paused"
        stopped = state._replace(halt=says, pauses=state.pauses - 1)
        yield Step(f"the user says {says or 'go on'}", void(stopped, "P"), helps=False)
    if state.policy != "alive":
        return
    if state.spec + 1 < len(rollout.path):
        other = state._replace(spec=state.spec + 1, ready=False)
        yield Step(f"the user wants layout {rollout.path[state.spec + 1]}", void(other, "P"), helps=False)
    if rollout.deletion:
        deleted = state._replace(policy="deleting", ready=False)
        yield Step("the user deletes the policy", void(deleted, "P"), helps=False)
