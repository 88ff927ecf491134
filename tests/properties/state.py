"""A small cluster as values: what is there, what late workers are about to write, and ids that are only ever compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from tests.properties.cluster import ACTIVE, AS_IT_IS, BASE, NO_PODS, SHAPES

from gpupartition.api.v1alpha1 import Phase
from gpupartition.domain.world import AT_REST


class Record(NamedTuple):
    """A record; `shape` has everything but the ids.

    `ours`: it is about the Node that is there now. `doomed`: somebody deleted it, and its finalizer holds it. `pod`: the driver's pod that is
    to go, recorded in the step `pod_step`.
    """

    shape: int
    token: int = 0
    step: int = 0
    ours: bool = True
    doomed: bool = False
    pod: int = 0
    pod_step: int = 0

    @property
    def ids(self) -> tuple[int, int, int, int]:
        return self.token, self.step, self.pod, self.pod_step

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
    for verifying it again. `cordon`: the token for which the node is cordoned; `theirs`: somebody else has cordoned it. `selected`: the policy
    is about it.
    `pod`: the driver's pod, 0 while there is none, and `outdated` whether it runs from a former config. `torn`: somebody has deleted its
    record by hand, so what only that knew is forgotten. `cut`: the layout of the hardware, where its plugin publishes that only when it starts
    anew, and `answered`: the driver has done what its label says.
    """

    there: bool = True
    record: Record | None = None
    taken: int = 0
    taken_for: bool = False
    label: int = BASE
    step: int = 0
    rule: int = 0
    cordon: int = 0
    theirs: bool = False
    seen: bool = False
    pool: int = BASE
    claim: int | None = None
    touched: bool = False
    rebooted: bool = False
    lost: bool = False
    recovery: bool = False
    selected: bool = True
    pod: int = NO_PODS
    outdated: bool = False
    torn: bool = False
    cut: int = BASE
    answered: bool = True

    @property
    def alive(self) -> bool:
        """Whether the record is about a Node that exists."""
        return self.there and self.record is not None and self.record.ours

    @property
    def away(self) -> bool:
        """Unavailable through us."""
        return self.closed or (self.there and (self.label != self.pool or self.pod == 0) and not self.lost)

    @property
    def closed(self) -> bool:
        """Whether we keep new claims away."""
        return self.rule == ACTIVE or self.cordon != 0

    @property
    def shut(self) -> bool:
        """Whether new claims are kept away, by whomever."""
        return self.closed or self.theirs

    @property
    def marked(self) -> bool:
        """Whether our last step is still written on it, and somebody could know."""
        return self.step != 0 and not self.torn


class Write(NamedTuple):
    """What a late worker is going to write. `on`: the object whose change makes it void ("" when only its existence counts).

    Where the rules of reading are broken it may be a `look`: a worker that has read this record, and will read what it is about to write
    only later.
    """

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
    pod: int = 0
    opens: bool = False
    spared: bool = False


class State(NamedTuple):
    """Everything, as values. `halt`: why nobody is to be touched now; the numbers are how often something may still happen."""

    nodes: tuple[Node, ...]
    late: tuple[Write, ...] = ()
    spec: int = 0
    policy: str = "alive"  # deleting, gone
    ready: bool = False
    halt: str = ""
    failures: int = 0
    departures: int = 0
    reboots: int = 0
    pauses: int = 0
    hands: int = 0
    leavings: int = 0


class Step(NamedTuple):
    """What happens, what comes of it, and which invariants that breaks by itself. `helps`: it will happen if only one waits."""

    what: str
    state: State
    broken: str = ""
    helps: bool = True


def changed(state: State, n: int, **change: object) -> State:
    """The state with one node changed."""
    what: Any = change
    node = state.nodes[n]._replace(**what)
    return state._replace(nodes=(*state.nodes[:n], node, *state.nodes[n + 1 :]))


def void(state: State, *objects: str) -> State:
    """These objects have changed: whoever was about to write them under what they were forgets it."""
    return state._replace(late=tuple(w for w in state.late if w.on not in objects)) if objects else state


def in_order(write: Write) -> tuple[Any, ...]:
    """Late workers are nobody in particular, so they stand in this order."""
    numbers = write.label, write.token, write.step, write.cordon, write.pod, write.opens, write.spared
    return write.node, write.kind, numbers, write.record or (), write.chosen


_LASTING: Final = {0: 0, AS_IT_IS: AS_IT_IS}


def renamed(state: State) -> State:
    """Ids by first appearance: tokens, steps and pods are only ever compared."""
    odd = [n for n, node in enumerate(state.nodes) if not _is_in_order(_ids(n, node, state.late))]
    if not odd:
        return state
    nodes, late = list(state.nodes), list(state.late)
    for n in odd:
        node = nodes[n]
        names = dict(_LASTING)

        def name(old: int, names: dict[int, int] = names) -> int:
            return names.setdefault(old, len(names))

        nodes[n] = node._replace(
            taken=name(node.taken),
            record=_renamed(node.record, name),
            step=name(node.step),
            cordon=name(node.cordon),
            pod=name(node.pod),
        )
        for i, write in enumerate(late):
            if _has_ids(write, n):
                late[i] = write._replace(
                    token=name(write.token),
                    step=name(write.step),
                    cordon=name(write.cordon),
                    pod=name(write.pod),
                    record=_renamed(write.record, name),
                )
    return state._replace(nodes=tuple(nodes), late=tuple(sorted(late, key=in_order)))


def _renamed(record: Record | None, name: Callable[[int], int]) -> Record | None:
    if record is None:
        return None
    token, step, pod = name(record.token), name(record.step), name(record.pod)
    return record._replace(token=token, step=step, pod=pod, pod_step=name(record.pod_step))


def _has_ids(write: Write, n: int) -> bool:
    return write.node == n and write.kind != "new record"


def _ids(n: int, node: Node, late: tuple[Write, ...]) -> list[int]:
    """All ids that are about a node, in the order in which they are named."""
    ids = [node.taken]
    if node.record is not None:
        ids += node.record.ids
    ids += (node.step, node.cordon, node.pod)
    for write in late:
        if _has_ids(write, n):
            ids += (write.token, write.step, write.cordon, write.pod)
            if write.record is not None:
                ids += write.record.ids
    return ids


def _is_in_order(ids: list[int]) -> bool:
    """Whether they are named by first appearance already."""
    last = len(_LASTING) - 1
    for each in ids:
        if each > last:
            if each > last + 1:
                return False
            last = each
    return True
