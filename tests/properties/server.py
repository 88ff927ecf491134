"""What comes of a write whose proof holds, and which invariants it breaks by itself."""

from __future__ import annotations

from typing import Final

from tests.properties.cluster import ACTIVE, AS_IT_IS, FRESH, INERT, LAYOUTS, NO_PODS, SHAPES, shape_of
from tests.properties.rollout import Rollout
from tests.properties.state import Node, Record, State, Step, Write, changed, void

from gpupartition.api.v1alpha1 import NodeStateStatus

NEW: Final = shape_of(NodeStateStatus())

assert NO_PODS == AS_IT_IS, "what is no id keeps its value when ids are renamed"


def done(rollout: Rollout, state: State, write: Write) -> Step:  # noqa: C901, PLR0911, PLR0912  (one case for each kind of write)
    """The write reaches the server, and its proof holds."""
    n, what = write.node, f"n{write.node}: written: {write.kind}" if write.node >= 0 else f"written: {write.kind}"
    node = state.nodes[n] if n >= 0 else Node()
    own = "" if write.token == node.taken else "3"
    match write.kind:
        case "record":
            return _put(state, write, node, what)
        case "patch":
            return _patched(rollout, state, write, node, what, own)
        case "create":
            if node.rule:
                return Step(f"{what}: there is one", state)
            made = ACTIVE if rollout.bug == "a rule is born active" else INERT
            new = void(changed(state, n, rule=made), f"D{n}", f"U{n}")
            return Step(what, new, own if made == ACTIVE else "")
        case "activate":
            return Step(what, void(changed(state, n, rule=ACTIVE), f"D{n}"), own) if node.rule else Step(what, state)
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


def _patched(rollout: Rollout, state: State, write: Write, node: Node, what: str, own: str) -> Step:
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
        answered=node.answered and (write.label == node.label or not rollout.cuts),
        cordon=cordon,
        theirs=node.theirs and not write.opens,
    )
    told = f"layout {write.label}" + (f", cordon {bool(cordon)}" if write.cordon != AS_IT_IS else "")
    return Step(f"{what}: {told}", void(change, f"N{write.node}"), broken)
