"""Layouts that change under their users, played exhaustively: workers that are late, a scheduler that looks at old slices, a wiped node.

What somebody has is never taken from under him, and nothing that is given out adds up to more than its GPU.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import pytest
from tests.properties.late import RECORD, Late, Slices, explore, facts, kept, wiped, write_of, written
from tests.unit.published import BACKEND, H100, Server, config, driver, equal, layout
from tests.unit.worlds import LONG, NEVER, T0, granted, record, world

from gpupartition.api.v1alpha1 import Assigned, NodeStateStatus, Phase
from gpupartition.domain import changes, writes
from gpupartition.domain.backend import Cluster, Observation
from gpupartition.domain.destination import is_expected
from gpupartition.domain.disturbance import disturbance
from gpupartition.domain.effects import CreateSlice, DeleteSlice, PutSlice
from gpupartition.domain.holders import Holder
from gpupartition.domain.lifecycle import advance
from gpupartition.domain.offered import offered_by
from gpupartition.domain.pool import Device, Pool
from gpupartition.domain.rest import rest
from gpupartition.domain.retiring import retired
from gpupartition.domain.world import AT_REST
from gpupartition.domain.writes import Subject, effects

ONE_GPU: Final = driver({**H100, "count": 1})
WHOLE, HALVES = config(layout(), of=ONE_GPU), config(equal(2, offerWhole=False), of=ONE_GPU)
WAYS_BACK: Final = {config_.fingerprint: config_ for config_ in (WHOLE, HALVES)}
CLAIMS: Final = 2


class Seen(NamedTuple):
    """The slices, those that the scheduler knows, who has which device, the record, who is late, and what may still happen."""

    slices: Slices
    known: Slices
    given: tuple[str, ...]
    record: str
    late: tuple[Late, ...] = ()
    returns: bool = False
    may_return: bool = False
    may_be_wiped: bool = False


class Node:
    """One node with one GPU in one piece, from the moment at which it is admitted to be cut in halves."""

    def __init__(self, *, workers: int, returns: bool, wiped: bool) -> None:
        self._workers, self._returns, self._wiped = workers, returns, wiped
        self._wishes: dict[tuple[Any, ...], Late | None] = {}

    def initial(self) -> Seen:
        """The whole GPU is there, and somebody has it."""
        server = Server(ONE_GPU)
        list(server.assign(WHOLE.assigned(), "s1"))
        there = tuple(sorted((name, kept(body)) for name, body in server.slices.items()))
        begun = record(Phase.ADMITTED, target=HALVES, previous=WHOLE, change="Live", quiesce="None", generation=1)
        return Seen(there, there, ("gpu-0-full",), _told(begun), may_return=self._returns, may_be_wiped=self._wiped)

    def steps(self, seen: Seen) -> Iterator[tuple[str, Seen]]:
        """Everything that may happen next."""
        for i, late in enumerate(seen.late):
            others = seen._replace(late=seen.late[:i] + seen.late[i + 1 :])
            yield "a worker dies", others
            yield f"written: {late.name}", _written(others, late)
        if len(seen.late) < self._workers:
            for overdue in (False, True):
                wish = self._wish(seen, overdue=overdue)
                if wish is not None:
                    yield f"a worker wants to write {wish.name}", seen._replace(late=(*seen.late, wish))
        if seen.known != seen.slices:
            yield "the scheduler looks", seen._replace(known=seen.slices)
        for device in _schedulable(seen):
            yield f"somebody gets {device}", seen._replace(given=tuple(sorted((*seen.given, device))))
        for device in sorted(set(seen.given)):
            given = list(seen.given)
            given.remove(device)
            yield f"somebody is done with {device}", seen._replace(given=tuple(given))
        if seen.may_be_wiped:
            yield "the kubelet wipes the slices", seen._replace(slices=(), may_be_wiped=False, late=wiped(seen.late))
        if seen.may_return and _state(seen).phase is Phase.UP_TO_DATE:
            yield "the policy wants it whole again", seen._replace(returns=True, may_return=False)

    def _wish(self, seen: Seen, *, overdue: bool) -> Late | None:
        key = (seen.slices, seen.record, seen.given, seen.returns, _settled(seen), overdue)
        if key not in self._wishes:
            self._wishes[key] = _decide(seen, overdue=overdue)
        return self._wishes[key]


def _decide(seen: Seen, *, overdue: bool) -> Late | None:
    """What the real code makes of it, read as the controller reads it."""
    state, there = _state(seen), facts(seen.slices)
    observed = BACKEND.observe(ONE_GPU, there, Cluster())
    wanted = WHOLE if seen.returns else HALVES
    at_rest = state.phase in AT_REST
    change = disturbance(state, observed, wanted, BACKEND.disturbs, live=True)
    assert change is not None, "something is always wanted"
    held = change.blocked_by(
        Holder(node="n1", driver="d", pool="n1", device=d, claim=f"team/{d}") for d in sorted(set(seen.given))
    )
    told = at_rest and state.retiring and _settled(seen)
    turn = replace(
        world(
            after=LONG if overdue else NEVER,
            wanted=wanted,
            observed=observed,
            matched=LONG if is_expected(state, observed) and observed.ready else NEVER,
            holders=held,
            grant=granted("t2") if seen.returns and state.phase in {Phase.UP_TO_DATE, Phase.PENDING} else None,
            way_back=WAYS_BACK.get(observed.running, WHOLE),
        ),
        fresh=f"s{state.generation + 1}",
        live=True,
        in_use=retired(state).names & set(seen.given) if told else None,
    )
    step = rest(state, turn) if at_rest else advance(state, turn)
    if step is not None and _told(step.state) != seen.record:
        return Late(RECORD, _told(step.state))
    subject = Subject(
        node_name="n1",
        node_uid="uid-n1",
        driver=ONE_GPU,
        driver_name="gpu.example.org",
        backend=BACKEND,
        facts=there,
        rule=None,
    )
    return next((write_of(e) for e in effects(state, turn, subject) if isinstance(e, SLICE)), None)


SLICE: Final = (CreateSlice, PutSlice, DeleteSlice)


def _settled(seen: Seen) -> bool:
    """Whether all that is retired by the record has been tainted for so long that the scheduler knows: what settling is to bring about."""
    names = retired(_state(seen)).names
    there, known = _pool(seen.slices), _pool(seen.known)
    return names <= {d.name for d in there.devices if d.retired} and not names & {
        d.name for d in known.devices if not d.retired
    }


def _schedulable(seen: Seen) -> Iterator[str]:
    """What the scheduler would give out by what it knows: nothing else of a pool that is not whole, and no more than the counters have."""
    known = _pool(seen.known)
    if not known.usable or len(seen.given) >= CLAIMS:
        return
    devices = {d.name: d for d in known.devices}
    spent = sum((_cost(devices[name]) for name in seen.given if name in devices), Counter[str]())
    for device in known.devices:
        if device.retired or device.name in seen.given:
            continue
        after = spent + _cost(device)
        if all(amount <= known.counters["gpu-0"][name] for name, amount in after.items()):
            yield device.name


def _cost(device: Device) -> Counter[str]:
    return Counter(dict(device.costs["gpu-0"]))


def _written(seen: Seen, late: Late) -> Seen:
    """The write reaches the server. Whoever was about to write the same object by what it was finds another version."""
    if late.name == RECORD:
        return seen._replace(record=str(late.body), late=tuple(w for w in seen.late if w.name != RECORD))
    there, waiting = written(seen.slices, seen.late, late)
    return seen._replace(slices=there, late=waiting)


def broken(seen: Seen) -> str:
    """What is wrong with what everybody sees."""
    spent: Counter[str] = sum((_cost(DEVICES[name]) for name in seen.given), Counter())
    if spent["memory"] > WHOLE.pool.counters["gpu-0"]["memory"]:
        return f"{' and '.join(seen.given)} are more than the GPU has"
    there = _pool(seen.slices)
    if not seen.slices or not there.usable:
        return ""
    missing = set(seen.given) - there.names
    return f"{min(missing)} was taken away from under its user" if missing else ""


DEVICES: Final = {d.name: d for c in (WHOLE, HALVES) for d in c.pool.devices}


def play(game: Node) -> tuple[str, Iterable[Seen]]:
    """What is broken, and how; and all that can be seen."""
    return explore(game.initial(), game.steps, broken)


def _state(seen: Seen) -> NodeStateStatus:
    return NodeStateStatus.model_validate_json(seen.record)


def _told(state: NodeStateStatus) -> str:
    """As it is kept: at rest its grant is given back at once, limits are all counted from the same moment, and nothing grows for ever."""
    token = "" if state.phase in AT_REST else state.token
    same = {"token": token, "since": T0, "message": "", "attempts": 0}
    ways = {
        n: w.model_copy(update={"since": T0}) for n in ("target", "current", "previous") if (w := getattr(state, n))
    }
    return state.model_copy(update=same | ways).model_dump_json()


def _pool(there: Slices) -> Pool:
    return offered_by(facts(there).slices)


SCENES: Final = {
    "the policy goes back": partial(Node, workers=2, returns=True, wiped=False),
    "a kubelet starts": partial(Node, workers=2, returns=False, wiped=True),
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_nothing_is_taken_from_under_anybody_and_nothing_is_sold_twice(scene: Callable[[], Node]) -> None:
    found, states = play(scene())
    assert not found, found
    records = {seen.record for seen in states}
    phases = {(s.phase, bool(s.retiring)) for s in map(NodeStateStatus.model_validate_json, records)}
    rests = (Phase.UP_TO_DATE, Phase.ROLLED_BACK)
    assert {(phase, retires) for phase in rests for retires in (False, True)} <= phases


def only_what_is_seen(_: NodeStateStatus, observed: Observation, to: Assigned | None) -> str:
    """What is half written, or wiped, is forgotten."""
    stay = observed.pool.retire(Pool.from_json(to.pool if to else ""))
    return stay.to_json() if stay.devices else ""


def nothing_beside_it(_: NodeStateStatus, to: Assigned) -> Assigned:
    """As for nodes that were drained."""
    return to


def at_once(_: Seen) -> bool:
    """A scheduler may still give out what it does not know to be retired."""
    return True


MUTANTS: Final = {
    "what is retired is what is seen": (changes, "retire", only_what_is_seen),
    "what is retired is not published": (writes, "published", nothing_beside_it),
    "settling is not waited for": (sys.modules[__name__], "_settled", at_once),
}


@pytest.mark.parametrize(("where", "name", "wrong"), MUTANTS.values(), ids=MUTANTS)
def test_each_rule_is_needed(where: Any, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, name, wrong)
    assert any(play(scene())[0] for scene in SCENES.values())
