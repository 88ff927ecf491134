"""What must hold in every state that can be seen, told by the number under which the design lists it.

1 budget, 2 no change under a holder, 3 nothing without a grant, 4 the way back, 5 no false success, 6 the quiesce, 7 whoever is evicted is who
was decided about and may be, 8 nobody is stuck and no grant is left, 9 nobody is touched while everything is to stand still, 10 whoever got a
device at the last moment is seen, 13 nothing is left behind. Those that are about one write or one decision are told by the step that breaks
them (rollout.py); 8 is what the search finds when it has seen everything.
"""

from __future__ import annotations

from typing import Final

from tests.properties.cluster import LAYOUTS, SHAPES
from tests.properties.state import Node, State

from gpupartition.api.v1alpha1 import Phase

MUST_BE_QUIESCED: Final = frozenset({Phase.DRAINING, Phase.APPLYING, Phase.VERIFYING, Phase.ROLLING_BACK, Phase.FAILED})


def broken(state: State) -> str:
    """The invariants that do not hold now."""
    found = set()
    if sum(n.away and not n.recovery for n in state.nodes) > 1:
        found.add("1")
    for node in state.nodes:
        if node.away and not node.taken:
            found.add("3")
        if state.policy == "gone" and (node.closed or node.marked):
            found.add("13")
        if node.closed and (node.record is None or node.record.at_rest):
            found.add("6")
        found |= _of_record(node)
    return " ".join(sorted(found))


def _of_record(node: Node) -> set[str]:
    record = node.record
    if not node.alive or record is None:
        return set()
    found = set()
    if record.phase in MUST_BE_QUIESCED and not node.shut:
        found.add("6")
    shape = SHAPES[record.shape]
    there = (LAYOUTS[node.label].assignment, (node.label == node.pool and node.pod != 0) or node.lost)
    if record.phase is Phase.UP_TO_DATE and shape.target and there != (shape.target.assignment, True):
        found.add("5")
    if record.phase is Phase.ROLLED_BACK and shape.current and there != (shape.current.assignment, True):
        found.add("4")
    return found


def false_success(state: State, path: tuple[int, ...]) -> bool:
    """Whether the policy says Ready while a node is in flight or does not have what it wants now."""
    wanted = LAYOUTS[path[state.spec]].assignment
    # That a node was lost after it had been verified is told by the next event, like all that a status says of nodes.
    return state.ready and any(
        n.there
        and n.selected
        and (
            LAYOUTS[n.label].assignment != wanted
            or (not n.recovery and (n.away or (n.record is not None and not n.record.at_rest)))
        )
        for n in state.nodes
    )


def quiet(state: State) -> bool:
    """Nobody is in flight, and nothing of ours is left that should not be."""
    settled = all(
        not n.taken and not n.rule and not n.cordon and (n.record is None or (n.record.at_rest and not n.record.token))
        for n in state.nodes
    )
    unwanted = [n for n in state.nodes if state.policy == "gone" or not n.selected]
    closed = all(n.record is None and not n.marked for n in unwanted)
    return settled and closed and not state.late and state.policy != "deleting"
