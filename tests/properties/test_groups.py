"""A node that moves between two groups, played exhaustively: whoever leads them sees late, acts late, and forgets.

Its devices are never in the pools of both, whose counters know nothing of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

import pytest
from tests.properties.late import explore
from tests.unit.published import BACKEND, config, driver, layout

from gpupartition.api.v1alpha1 import Assigned, NodeStateStatus, Phase
from gpupartition.backends.slices import Target
from gpupartition.controller import groups
from gpupartition.controller.declared import Driver
from gpupartition.controller.packed import packed
from gpupartition.controller.records import Record, dump, new_record
from gpupartition.domain.backend import Cluster
from gpupartition.domain.groups import joined
from gpupartition.domain.pool import Pool

GROUPS: Final = ("a", "b")
BEGINS: Final = 3
WORKERS: Final = 2
OWN: Final = config(layout(), of=driver({"count": 1, "product": "H100", "memory": "80Gi"})).pool


class Told(NamedTuple):
    """A record: `doing` "" at rest. With or without the node that moves: what is published, and what is to be."""

    doing: str
    now: bool
    then: bool


class Worker(NamedTuple):
    """Has read the anchor of a group's pool, and the record; `looked`: at what others have, after that."""

    group: int
    record: Told
    looked: bool


class Seen(NamedTuple):
    """Records (None: there is none), pools (None: the node that moves was never in there), workers, late records, and what may still happen."""

    records: tuple[Told | None, Told | None]
    pools: tuple[bool, bool]
    used: tuple[bool, bool] = (False, False)
    workers: tuple[Worker, ...] = ()
    begins: int = BEGINS
    forgets: int = 1


Gate = Callable[[Seen, int, Told], bool]


class Pair:
    """Two groups, each with a node of its own that leads it, and one that belongs to either by turns."""

    def __init__(self, gate: Gate, *, on_record: bool = True) -> None:
        self._gate, self._on_record = gate, on_record

    def steps(self, seen: Seen) -> Iterator[tuple[str, Seen]]:
        for group, record in enumerate(seen.records):
            if record is None:
                there = seen.pools[group]
                yield f"{GROUPS[group]} is found as it is", _told(seen, group, Told("", there, there))
                continue
            yield from _decided(seen, group, record)
            yield from self._read(seen, group, record)
        yield from self._work(seen)

    def _read(self, seen: Seen, group: int, record: Told) -> Iterator[tuple[str, Seen]]:
        """Somebody is about to write what the record says."""
        if len(seen.workers) == WORKERS:
            return
        if record.doing == "" or (record.doing == "applying" and not seen.used[group]):
            worker = Worker(group, record, looked=False)
            yield f"a worker has read {GROUPS[group]}", seen._replace(workers=(*seen.workers, worker))
        for then in (False, True) if record.doing == "admitted" and not self._on_record else ():
            worker = Worker(group, Told("applying", record.now, then), looked=False)
            yield "a worker knows from elsewhere what comes", seen._replace(workers=(*seen.workers, worker))

    def _work(self, seen: Seen) -> Iterator[tuple[str, Seen]]:
        for i, worker in enumerate(seen.workers):
            others = seen._replace(workers=seen.workers[:i] + seen.workers[i + 1 :])
            name, to = GROUPS[worker.group], worker.record.then
            yield "a worker dies", others
            if worker.looked:
                yield f"{name} is written {_words(to)}", _written(others, worker.group, to)
            elif self._gate(seen, worker.group, worker.record):
                ready = worker._replace(looked=True)
                yield f"a worker of {name} sees nobody else", others._replace(workers=(*others.workers, ready))


def _decided(seen: Seen, group: int, record: Told) -> Iterator[tuple[str, Seen]]:
    """What becomes of a record. Nobody leaves what is being applied before the pool was written."""
    name, pool = GROUPS[group], seen.pools[group]
    match record.doing:
        case "applying" if not seen.used[group]:
            yield f"{name} is cancelled", _written(seen, group, pool)
            return
        case "applying" if pool == record.then:
            yield f"{name} is verified", _told(seen, group, Told("", record.then, record.then))
        case "admitted":
            begun = _told(seen, group, record._replace(doing="applying"))
            yield f"{name} is applied", begun._replace(used=_at(seen.used, group, value=False))
        case "" if seen.forgets:
            yield f"{name} is forgotten", _told(seen, group, None)._replace(forgets=seen.forgets - 1)
    if record.doing == "applying" and pool == record.now:
        yield f"{name} waits again", _told(seen, group, record._replace(doing="admitted"))
    for then in (False, True) if record.doing != "applying" and seen.begins else ():
        begun = _told(seen, group, Told("admitted", record.now, then))
        yield f"{name} is to be {_words(then)}", begun._replace(begins=seen.begins - 1)


def _words(there: bool) -> str:
    return "with the node" if there else "without the node"


def _at(pair: tuple[Any, Any], which: int, *, value: Any) -> tuple[Any, Any]:
    return (value, pair[1]) if which == 0 else (pair[0], value)


def _told(seen: Seen, group: int, record: Told | None) -> Seen:
    return seen._replace(records=_at(seen.records, group, value=record))


def _written(seen: Seen, group: int, to: bool) -> Seen:
    """Whoever read the anchor before comes too late now."""
    left = tuple(worker for worker in seen.workers if worker.group != group)
    return seen._replace(pools=_at(seen.pools, group, value=to), used=_at(seen.used, group, value=True), workers=left)


def sold_twice(seen: Seen) -> str:
    return "its devices are in both pools" if all(seen.pools) else ""


# ─── the real look at what others have ────────────────────────────────────────────────────────────────────────────────

DRIVER: Final = Driver(
    name="d", uid="d", spec=driver(), backend=BACKEND, cluster=Cluster(), driver_name="gpu.example.org"
)


@lru_cache
def pool_of(group: int, there: bool) -> Pool:
    nodes = [f"{GROUPS[group]}1", *(["moves"] if there else [])]
    return joined(GROUPS[group], "rack", dict.fromkeys(nodes, OWN), {node: node for node in nodes}, [2])


def record_of(group: int, told: Told) -> dict[str, Any]:
    now, then = (Assigned(fingerprint="f", assignment="f", pool=pool_of(group, n).to_json()) for n in told[1:])
    ways = {"current": now, "target": then, "previous": now} if told.doing else {"current": now, "target": then}
    phase = {"": Phase.UP_TO_DATE, "admitted": Phase.ADMITTED, "applying": Phase.APPLYING}[told.doing]
    body = new_record(node=f"{GROUPS[group]}1", node_uid="u", policy="p", policy_uid="p", driver="d")
    body["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    return body | {"status": dump(NodeStateStatus(phase=phase, **ways))}


def slices_of(group: int, there: bool) -> list[dict[str, Any]]:
    owner = {"metadata": {"name": f"{GROUPS[group]}1", "uid": "u"}}
    name = GROUPS[group]
    pool = pool_of(group, there)
    target = Target(
        driver="gpu.example.org",
        pool_name=f"gpu.example.org/{name}",
        nodes=[owner],
        pool=pool,
        assignment="f",
        group=name,
    )
    return target.bodies(1, "s")


@cache
def _sees_nobody(records: tuple[Told | None, Told | None], pools: tuple[bool, bool], group: int, told: Told) -> bool:
    mine = Record.read(record_of(group, told))
    others = [Record.read(record_of(g, told)) for g, told in enumerate(records) if told is not None]
    slices = [packed(body) for g, there in enumerate(pools) for body in slices_of(g, there)]
    return not groups.in_the_way(DRIVER, mine, others, slices)


def real(seen: Seen, group: int, told: Told) -> bool:
    return _sees_nobody(seen.records, seen.pools, group, told)


def pools_alone(seen: Seen, group: int, told: Told) -> bool:
    return _sees_nobody((None, None), seen.pools, group, told)


def records_alone(seen: Seen, group: int, told: Told) -> bool:
    return _sees_nobody(seen.records, (False, False), group, told)


def start(*, there: bool) -> Seen:
    return Seen(records=(Told("", there, there), Told("", False, False)), pools=(there, False))


@pytest.mark.parametrize("there", [False, True])
def test_the_devices_of_a_node_are_never_in_two_pools(there: bool) -> None:
    found, seen = explore(start(there=there), Pair(real).steps, sold_twice)
    assert not found, found
    assert any(each.pools == (False, True) for each in seen), "it can move"
    assert any(each.pools == (True, False) for each in seen), "and back"


@pytest.mark.parametrize(
    "broken",
    [
        Pair(pools_alone),
        Pair(records_alone),
        Pair(real, on_record=False),
    ],
    ids=["records are not read", "pools are not read", "the record does not say first what comes"],
)
def test_each_part_of_the_look_is_needed(broken: Pair) -> None:
    found, _ = explore(start(there=True), broken.steps, sold_twice)
    assert "its devices are in both pools" in found


# ─── two nodes that lead one group ────────────────────────────────────────────────────────────────────────────────────


class Led(NamedTuple):
    """The group's pool without and with the node that moves; n1 changes it, n2 believes that it leads, and has taken what it found."""

    pool: bool = False
    first: Told = Told("", now=False, then=False)
    second: Told | None = None
    found: Told | None = None
    workers: tuple[Worker, ...] = ()
    undone: bool = False


def two_lead(seen: Led, *, looks: bool) -> Iterator[tuple[str, Led]]:
    """What two workers of the first may do, and two of the second, which was never admitted."""
    if seen.first.doing == "" and not seen.first.now:
        yield "n1 is admitted", seen._replace(first=Told("applying", now=False, then=True))
    if seen.first.doing == "applying" and seen.pool:
        yield "n1 is verified", seen._replace(first=Told("", now=True, then=True))
    if seen.second is None and seen.found is None:
        yield "n2 finds the pool as it is wanted", seen._replace(found=Told("", seen.pool, seen.pool))
    if seen.second is None and seen.found is not None:
        yield "n2 takes that on record", seen._replace(second=seen.found, found=None)
    for node, record in enumerate((seen.first, seen.second)):
        if record is not None and len(seen.workers) < WORKERS and record.then != seen.pool:
            worker = Worker(node, record, looked=not looks and record.doing == "")
            yield f"a worker of n{node + 1} has read", seen._replace(workers=(*seen.workers, worker))
    for i, worker in enumerate(seen.workers):
        left = seen.workers[:i] + seen.workers[i + 1 :]
        if worker.looked:
            undone = seen.undone or (seen.pool and not worker.record.then)
            yield f"n{worker.group + 1} writes", seen._replace(pool=worker.record.then, workers=(), undone=undone)
        elif _leads_alone(seen.second if worker.group == 0 else seen.first, worker.record):
            ready = worker._replace(looked=True)
            yield f"n{worker.group + 1} sees nobody else", seen._replace(workers=(*left, ready))
        yield "a worker dies", seen._replace(workers=left)


@cache
def _leads_alone(other: Told | None, mine: Told) -> bool:
    others = [Record.read(_named(other, "other"))] if other is not None else []
    return not groups.in_the_way(DRIVER, Record.read(_named(mine, "me")), others, ())


def _named(told: Told, name: str) -> dict[str, Any]:
    body = record_of(0, told)
    return body | {"metadata": body["metadata"] | {"name": name}}


def undone(seen: Led) -> str:
    return "the old layout is written over the new one" if seen.undone else ""


def test_a_second_node_that_believes_to_lead_undoes_nothing() -> None:
    found, seen = explore(Led(), lambda led: two_lead(led, looks=True), undone)
    assert not found, found
    assert any(each.pool for each in seen)


def test_it_has_to_look_before_it_restores_what_it_took() -> None:
    found, _ = explore(Led(), lambda led: two_lead(led, looks=False), undone)
    assert "written over" in found
