"""A leader that leaves its group and comes back, and slices that are lost meanwhile: played exhaustively, with workers who know of others late.

What the pool had is never restored over what it has become, and somebody's record says at any time what is in there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any, Final, NamedTuple

import pytest
from tests.properties.late import explore

from gpupartition.api.v1alpha1 import Assigned, NodeStateStatus, Phase
from gpupartition.domain.leading import former, leader, taken_over
from gpupartition.domain.world import AT_REST

NODES: Final = ("n1", "n2")
WORKERS: Final = 2


class Kept(NamedTuple):
    """A record that has the pool: what it says is in there, at which generation, and whether that is still to be written."""

    content: int
    generation: int
    moving: bool = False


Records = tuple[Kept | None, Kept | None]


class Worker(NamedTuple):
    """Knows, perhaps from long ago, whether n1 is in the group, and the other one's record; has read its own, and what it will write."""

    node: int
    inside: bool
    other: Kept | None
    own: Kept | None = None
    writes: str = ""
    what: Kept | None = None


class Seen(NamedTuple):
    """Whether n1 is in the group, where n2 always is, the records, the pool, whoever is at work, and what may still happen.

    `undone`: something was restored that was not in the pool any more.
    """

    inside: bool = True
    records: Records = (Kept(1, 1), None)
    pool: int = 1
    generation: int = 1
    torn: bool = False
    workers: tuple[Worker, ...] = ()
    moves: int = 3
    changes: int = 1
    losses: int = 1
    undone: bool = False


@cache
def state_of(kept: Kept | None) -> NodeStateStatus:
    if kept is None:
        return NodeStateStatus(phase=Phase.PENDING, generation=7)
    phase = Phase.APPLYING if kept.moving else Phase.PENDING
    current = Assigned(fingerprint=str(kept.content), assignment="x", pool="")
    return NodeStateStatus(phase=phase, generation=kept.generation, current=current)


def kept_of(state: NodeStateStatus) -> Kept:
    assert state.current is not None
    return Kept(int(state.current.fingerprint), state.generation, state.phase not in AT_REST)


Former = Callable[[Mapping[str, NodeStateStatus], str], str]


def steps(seen: Seen, left: Former = former, rises: int = 2) -> Iterator[tuple[str, Seen]]:
    """All that can happen next."""
    if seen.moves:
        yield "n1 moves", seen._replace(inside=not seen.inside, moves=seen.moves - 1)
    if seen.losses and not seen.torn:
        yield "a slice is lost", seen._replace(torn=True, losses=seen.losses - 1)
    for node in range(2) if len(seen.workers) < WORKERS else ():
        begun = Worker(node, seen.inside, seen.records[1 - node])
        yield f"somebody looks at {NODES[node]}", seen._replace(workers=(*seen.workers, begun))
    for i, worker in enumerate(seen.workers):
        others = seen._replace(workers=seen.workers[:i] + seen.workers[i + 1 :])
        if worker.writes:
            yield f"{NODES[worker.node]}: {worker.writes}", written(others, worker)
            continue
        read = decided(seen, worker._replace(own=seen.records[worker.node]), left, rises)
        if read is not None:
            yield f"{NODES[worker.node]} will {read.writes}", others._replace(workers=(*others.workers, read))


def decided(seen: Seen, worker: Worker, left: Former, rises: int) -> Worker | None:
    """What a worker will write that reads now the record of its node, the pool, and whether another record has it."""
    me, own = NODES[worker.node], worker.own
    copies = {me: own, NODES[1 - worker.node]: worker.other}
    having = {name: state_of(kept) for name, kept in copies.items() if kept is not None}
    leading = leader(having, [name for name in NODES if name == "n2" or worker.inside])
    before, alone = left(having, leading), seen.records[1 - worker.node] is None
    rests = own is None or not own.moving
    if leading != me:
        return worker._replace(writes="forget") if own is not None and rests and before != me else None
    if before and rests:
        taken = kept_of(taken_over(state_of(own), having[before]))
        return worker._replace(writes="take over", what=taken)
    if own is None:
        found = Kept(seen.pool, seen.generation)
        return worker._replace(writes="take as found", what=found) if not seen.torn else None
    if not alone:
        return None
    if own.moving and seen.pool == own.content:
        return worker._replace(writes="rest", what=own._replace(moving=False))
    if own.moving or seen.torn or seen.pool != own.content:
        return worker._replace(writes="write", what=own)
    then = Kept(own.content + 1, max(own.generation, seen.generation) + rises, moving=True)
    return worker._replace(writes="change", what=then) if seen.changes else None


def written(seen: Seen, worker: Worker) -> Seen:
    """What has become of a write: nothing, if what it is about has changed since it was read."""
    own, what = worker.own, worker.what
    if worker.writes == "write":
        assert own is not None
        undone = seen.undone or own.content < seen.pool
        # Whoever else was about to write slices has read others than there are now.
        left = tuple(each for each in seen.workers if each.writes != "write")
        at = max(own.generation, seen.generation + 1)
        return seen._replace(pool=own.content, generation=at, torn=False, undone=undone, workers=left)
    if seen.records[worker.node] != own:
        return seen
    changes = seen.changes - (worker.writes == "change")
    records = (what, seen.records[1]) if worker.node == 0 else (seen.records[0], what)
    return seen._replace(records=records, changes=changes)


def broken(seen: Seen) -> str:
    if seen.undone:
        return "what the pool had is restored over what it has become"
    known = any(kept is not None and (kept.content == seen.pool or kept.moving) for kept in seen.records)
    return "" if known else "nobody's record says what is in the pool"


def test_it_is_always_known_what_is_in_a_pool_and_never_undone() -> None:
    found, seen = explore(Seen(), steps, broken)
    assert not found, found
    assert any(each.records[0] is None and each.pool == 2 for each in seen), "it is handed over, and changed then"


def nobody(having: Mapping[str, NodeStateStatus], leader: str) -> str:  # noqa: ARG001
    return ""


def whoever_has_it_first(having: Mapping[str, NodeStateStatus], leader: str) -> str:
    return "" if leader in having else former(having, leader)


@pytest.mark.parametrize(
    "rules",
    [{"left": nobody}, {"left": whoever_has_it_first}, {"rises": 1}],
    ids=["it is not handed over", "whoever took it late keeps it", "a change rises no higher than who takes over"],
)
def test_each_rule_of_that_is_needed(rules: dict[str, Any]) -> None:
    found, _ = explore(Seen(), partial(steps, **rules), broken)
    assert found
