"""Slices of our own, written by workers that may be late: nobody ever sees half of one layout and half of another."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pytest
from tests.properties.late import RECORD, Late, Slices, explore, facts, kept, wiped, write_of, written
from tests.unit.published import BACKEND, H100, Server, config, driver, equal, layout
from tests.unit.worlds import LONG, NEVER, T0, quiesce, record, world

from gpupartition.api.v1alpha1 import DriverSpec, NodeStateStatus, Phase
from gpupartition.backends import slices
from gpupartition.domain.backend import Cluster, Config
from gpupartition.domain.destination import expected_pool
from gpupartition.domain.effects import CreateSlice, Effect, PutSlice
from gpupartition.domain.lifecycle import advance
from gpupartition.domain.offered import offered_by
from gpupartition.domain.pool import Pool
from gpupartition.domain.world import AT_REST
from gpupartition.domain.writes import Subject, effects

WORKERS: Final = 2
MANY: Final = driver({**H100, "count": 9})  # more counter sets than one slice takes
NOTHING: Final = Config(fingerprint="nothing", assignment=None, pool=Pool())
FROM_TO: Final[dict[str, tuple[DriverSpec, Config, Config]]] = {
    "from nothing to a first layout": (driver(), NOTHING, config(equal(2))),
    "from one layout to another": (driver(), config(equal(2)), config(layout())),
    "to more slices": (MANY, config(equal(2), of=MANY), config(equal(7), of=MANY)),
    "to fewer slices": (MANY, config(equal(7), of=MANY), config(equal(2), of=MANY)),
}


class Seen(NamedTuple):
    """The slices by name, the record, and those who are late."""

    slices: Slices
    record: str
    late: tuple[Late, ...] = ()
    wiped: bool = False  # a kubelet has started


RULE: Final = {"metadata": {"name": "r", "uid": "r"}, "spec": {"taint": {"effect": "NoSchedule"}}}


class Publishing:
    """One node of a driver whose slices we write, from just before its first write until it is at rest again."""

    def __init__(self, of: DriverSpec, previous: Config, target: Config, *, starts: bool = False) -> None:
        """With `starts`, its kubelet starts once, at whatever moment, and takes all slices away."""
        self.driver, self.previous, self.target, self._starts = of, previous, target, starts
        self._wishes: dict[tuple[Slices, str, bool], Late | None] = {}

    def initial(self) -> Seen:
        """The former layout is there, and its own step is used up."""
        server = Server(self.driver)
        if self.previous.pool.devices:
            list(server.assign(self.previous.assigned(), "s1"))
        begun = record(Phase.APPLYING, target=self.target, previous=self.previous, step="s2", generation=2)
        there = {name: kept(body) for name, body in server.slices.items()}
        return Seen(tuple(sorted(there.items())), _told(begun))

    def steps(self, seen: Seen) -> Iterator[tuple[str, Seen]]:
        """Everything that may happen next."""
        for i, late in enumerate(seen.late):
            rest = seen._replace(late=seen.late[:i] + seen.late[i + 1 :])
            yield "a worker dies", rest
            yield f"written: {late.name}", self.written(rest, late)
        if self._starts and not seen.wiped:
            yield "the kubelet wipes the slices", seen._replace(slices=(), wiped=True, late=wiped(seen.late))
        if len(seen.late) < WORKERS:
            for overdue in (False, True):
                wish = self.wish(seen.slices, seen.record, overdue=overdue)
                if wish is not None:
                    yield f"a worker wants to write {wish.name}", seen._replace(late=(*seen.late, wish))

    def wish(self, there: Slices, recorded: str, *, overdue: bool) -> Late | None:
        """What the real code makes of it."""
        known = self._wishes.get((there, recorded, overdue))
        if known is None:
            known = self._wishes[there, recorded, overdue] = self._wish(there, recorded, overdue=overdue)
        return known

    def _wish(self, there: Slices, recorded: str, *, overdue: bool) -> Late | None:
        state, seen = NodeStateStatus.model_validate_json(recorded), facts(there)
        observed = BACKEND.observe(self.driver, seen, Cluster())
        closed = state.phase not in AT_REST | {Phase.RELEASING}
        turn = world(
            after=LONG if overdue else NEVER,
            wanted=self.target,
            observed=observed,
            rule=quiesce() if closed else None,
            matched=LONG if observed.ready and observed.pool.equals(expected_pool(state)) else NEVER,
        )
        step = advance(state, turn) if state.phase not in AT_REST else None
        if step is not None and step.state.phase not in {state.phase, Phase.FAILED}:
            return Late(RECORD, _told(step.state))
        subject = Subject(
            node_name="n1",
            node_uid="uid-n1",
            driver=self.driver,
            driver_name="gpu.example.org",
            backend=BACKEND,
            facts=seen,
            rule=RULE if closed else None,
        )
        return next((write_of(effect) for effect in effects(state, turn, subject)), None)

    def written(self, seen: Seen, late: Late) -> Seen:
        """The write reaches the server. Whoever was about to write the same object by what it was finds another version."""
        if late.name == RECORD:
            after = seen._replace(record=str(late.body))
            return after._replace(late=tuple(w for w in seen.late if w.name != RECORD))
        there, waiting = written(seen.slices, seen.late, late)
        return seen._replace(slices=there, late=waiting)

    def broken(self, seen: Seen) -> str:
        """What is wrong with what everybody sees."""
        state, pool = _state(seen), offered_by(facts(seen.slices).slices)
        if seen.wiped and not (pool.usable and pool.devices):
            return ""  # whoever is next writes it again
        if pool.usable and not any(pool.equals(c.pool) for c in (self.previous, self.target)):
            return "the pool is neither the former one nor the new one"
        open_again = state.phase in AT_REST or state.phase is Phase.RELEASING
        has = Pool.from_json(state.current.pool) if state.current else Pool()
        # A first slice that comes after all of them were taken away offers nothing, and is taken away like any that is left over.
        if open_again and not (pool if pool.usable else Pool()).equals(has):
            return f"the node is open, and its pool is not what its record says: {pool.problem or 'it is another one'}"
        return ""


def _state(seen: Seen) -> NodeStateStatus:
    return NodeStateStatus.model_validate_json(seen.record)


def _told(state: NodeStateStatus) -> str:
    """As it is kept; at rest its grant is given back at once, and every limit is counted from the same moment."""
    token = "" if state.phase in AT_REST else state.token
    return state.model_copy(update={"token": token, "since": T0}).model_dump_json()


def explored(publishing: Publishing) -> tuple[str, set[Phase]]:
    """What is broken, and how; and the phases that are reached."""
    found, states = explore(publishing.initial(), publishing.steps, publishing.broken)
    return found, {_state(seen).phase for seen in states}


@pytest.mark.parametrize(("of", "previous", "target"), FROM_TO.values(), ids=FROM_TO)
def test_whoever_is_late_the_pool_is_one_layout_or_the_other_and_at_rest_the_one_on_record(
    of: DriverSpec, previous: Config, target: Config
) -> None:
    found, phases = explored(Publishing(of, previous, target))
    assert not found, found
    assert {Phase.ROLLED_BACK, Phase.UP_TO_DATE} <= phases


@pytest.mark.parametrize(("of", "previous", "target"), FROM_TO.values(), ids=FROM_TO)
def test_whenever_a_kubelet_starts_what_can_be_used_is_one_layout_or_the_other_and_at_rest_the_one_on_record(
    of: DriverSpec, previous: Config, target: Config
) -> None:
    found, phases = explored(Publishing(of, previous, target, starts=True))
    assert not found, found
    assert {Phase.ROLLED_BACK, Phase.UP_TO_DATE} <= phases


def only_what_differs(
    present: Sequence[Any], target: slices.Target, step: str | None, generation: int
) -> Effect | None:
    """Slices that are right already keep their generation, and the anchor, which says that this step has begun, comes last."""
    there = {s["metadata"]["name"]: s for s in present}
    for number, body in reversed(list(enumerate(target.bodies(generation, step or "")))):
        found = there.get(body["metadata"]["name"])
        if found is None:
            return CreateSlice(body=body)
        unused = number == 0 and slices.step_of(found) != step
        if unused or _content(found) != _content(body):
            pool = body["spec"]["pool"] if _content(found) != _content(body) else found["spec"]["pool"]
            metadata = {**found["metadata"], **body["metadata"]}
            return PutSlice(body={**body, "metadata": metadata, "spec": {**body["spec"], "pool": pool}})
    return None


def one_generation(present: Sequence[Any], target: slices.Target, step: str | None, generation: int) -> Effect | None:
    """Every slice in its order, but always at the same generation."""
    there = {s["metadata"]["name"]: s for s in present}
    for body in target.bodies(min(generation, 1), step or ""):
        found = there.get(body["metadata"]["name"])
        if found is None:
            return CreateSlice(body=body)
        if json.dumps(found["spec"], sort_keys=True) != json.dumps(body["spec"], sort_keys=True):
            return PutSlice(body={**body, "metadata": {**found["metadata"], **body["metadata"]}})
    return None


def _content(body: Mapping[str, Any]) -> str:
    return json.dumps({k: v for k, v in body["spec"].items() if k != "pool"}, sort_keys=True)


@pytest.mark.parametrize("wrong", [only_what_differs, one_generation])
def test_each_rule_of_writing_slices_is_needed(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "next_write", wrong)
    assert any(explored(Publishing(*way))[0] for way in FROM_TO.values())
