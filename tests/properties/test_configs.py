"""A config object that comes into use while it is being collected: every order of the calls of both, which are the real ones."""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Iterator
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from itertools import combinations
from types import SimpleNamespace
from typing import Any, Final

import pytest
from tests.unit.published import BACKEND, driver
from tests.unit.worlds import HALVES, NODE, UID, WHOLE, granted, world

from gpupartition import names
from gpupartition.api.v1alpha1 import NodeStateStatus, Phase
from gpupartition.controller.actuator import carry_out
from gpupartition.controller.collect import Collector
from gpupartition.controller.records import NODE_STATES, Record, new_record, with_state
from gpupartition.domain.lifecycle import advance
from gpupartition.domain.rest import rest
from gpupartition.domain.world import AT_REST
from gpupartition.domain.writes import Subject, effects
from gpupartition.kube import DAEMON_SETS, NODES, Conflict, Kind, NotFound

LONG_AGO, NOW = datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 2, tzinfo=UTC)
COLLECTOR, USER = 0, 1
OF_THE_COLLECTOR, OF_THE_USER = 4, 12  # calls
MANY: Final = 100  # calls; whoever needs more never comes to an end


CONFIG: Final[dict[str, Any]] = {
    "kind": "DaemonSet",
    "metadata": {
        "name": "base-halves",
        "namespace": "gpus",
        "uid": "k",
        "resourceVersion": "1",
        "labels": {names.LAYOUT: "halves"},
        "annotations": {names.FINGERPRINT: "halves-and-more", names.LAST_USED: LONG_AGO.isoformat()},
    },
}


class Pause:
    """Where a call waits for its turn."""

    def __await__(self) -> Generator[None]:
        yield


class Server:
    """One config object, one record, one node; every call waits for its turn first, and writes are refused as a server refuses them."""

    def __init__(self) -> None:
        self.config: dict[str, Any] | None = deepcopy(CONFIG)
        self.record = new_record(node=NODE, node_uid=UID, policy="halves", policy_uid="p", driver="d")
        self.record["metadata"] |= {"uid": "r", "resourceVersion": "1"}
        self.version = 1

    async def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> dict[str, Any]:
        await Pause()
        body = self.record if kind == NODE_STATES else self.config
        if body is None:
            raise NotFound(f"{namespace}/{name}", 404, "NotFound", "it is not there")
        return deepcopy(body)

    async def list(self, kind: Kind, *, label_selector: str = "") -> Any:
        await Pause()
        assert kind == NODE_STATES or (kind == NODES and label_selector.startswith(names.LAYOUT))
        return SimpleNamespace(items=[deepcopy(self.record)] if kind == NODE_STATES else [])

    async def delete(self, _: Kind, name: str, *, namespace: str, uid: str, resource_version: str) -> None:
        await Pause()
        self._check(self.config, resource_version, f"{namespace}/{name} {uid}")
        self.config = None

    async def patch(self, _: Kind, name: str, body: dict[str, Any], *, namespace: str) -> None:
        await Pause()
        self._check(self.config, body["metadata"]["resourceVersion"], f"{namespace}/{name}")
        assert self.config is not None
        self.config["metadata"]["annotations"] |= body["metadata"]["annotations"]
        self.config["metadata"]["resourceVersion"] = self._next()

    async def create(self, _: Kind, body: dict[str, Any]) -> None:
        await Pause()
        if self.config is not None:
            raise Conflict("create", 409, "AlreadyExists", "it is there")
        self.config = deepcopy(body)
        self.config["metadata"] |= {"uid": f"k{self.version}", "resourceVersion": self._next()}

    async def replace(self, _: Kind, body: dict[str, Any]) -> None:
        await Pause()
        self._check(self.record, body["metadata"]["resourceVersion"], "the record")
        self.record = deepcopy(body)
        self.record["metadata"]["resourceVersion"] = self._next()

    @property
    def state(self) -> NodeStateStatus:
        return Record.read(self.record).state

    def _next(self) -> str:
        self.version += 1
        return str(self.version)

    @staticmethod
    def _check(body: dict[str, Any] | None, version: str, what: str) -> None:
        if body is None:
            raise NotFound(what, 404, "NotFound", "it is not there")
        if body["metadata"]["resourceVersion"] != version:
            raise Conflict(what, 409, "Conflict", "it has changed")


async def come_into_use(server: Any, *, touches: bool) -> None:
    """A node is admitted and closed, with the real decisions and writes. `touches` False: what is there is used as it is."""
    while server.state.phase is not Phase.QUIESCING:
        body = await server.get(NODE_STATES, NODE)
        state = Record.read(body).state
        try:
            config = await server.get(DAEMON_SETS, "base-halves", namespace="gpus")
        except NotFound:
            config = None
        if config is not None and not touches:
            config["metadata"]["annotations"][names.LAST_USED] = NOW.isoformat()
        turn = world(grant=granted(), way_back=WHOLE, wanted=replace(HALVES, objects=(CONFIG,)))
        turn = replace(turn, now=NOW, config_touched=last_used(config))
        step = rest(state, turn) if state.phase in AT_REST else advance(state, turn)
        try:
            if step is not None:
                await server.replace(NODE_STATES, with_state(body, step.state))
                continue
        except Conflict:
            continue
        subject = Subject(
            node_name=NODE,
            node_uid=UID,
            driver=driver(),
            driver_name="d",
            backend=BACKEND,
            facts=None,
            rule=None,
            configs=[(CONFIG, config)],
        )
        for effect in effects(state, turn, subject):
            await carry_out(server, effect)


def last_used(config: dict[str, Any] | None) -> datetime | None:
    """When the object was last touched; None while there is none."""
    return datetime.fromisoformat(config["metadata"]["annotations"][names.LAST_USED]) if config is not None else None


def collect(server: Any) -> Coroutine[Any, Any, None]:
    """The real collector, whose caches know of no use."""

    async def records_now() -> list[Record]:
        return [Record.read(body) for body in (await server.list(NODE_STATES)).items]

    caches: Any = SimpleNamespace(records={}, nodes={}, records_now=records_now)
    backend = SimpleNamespace(label=names.LAYOUT, documents=lambda _: ())
    owner: Any = SimpleNamespace(
        name="d", spec=driver(), backend=backend, cluster=SimpleNamespace(daemon_sets=[CONFIG])
    )
    return Collector(server, caches).collect(owner)


def orders() -> Iterator[list[int]]:
    """Every order in which two can take their turns: the collector makes four calls, and its first turn leads to the first of them."""
    for turns in combinations(range(OF_THE_USER + OF_THE_COLLECTOR), OF_THE_COLLECTOR):
        yield [COLLECTOR, *(COLLECTOR if turn in turns else USER for turn in range(OF_THE_USER + OF_THE_COLLECTOR))]


def play(order: list[int], *, touches: bool = True) -> Server:
    """Both take their turns, and then each goes on to its end."""
    server = Server()
    both: list[Coroutine[Any, Any, None]] = [collect(server), come_into_use(server, touches=touches)]
    over = [False, False]
    for who in [*order, *[COLLECTOR] * MANY, *[USER] * MANY]:
        if not over[who]:
            try:
                both[who].send(None)
            except StopIteration:
                over[who] = True
    assert over == [True, True], f"they never come to an end: {order}"
    return server


def test_a_config_that_comes_into_use_while_it_is_collected_is_there_in_the_end() -> None:
    for order in orders():
        server = play(order)
        assert server.state.phase is Phase.QUIESCING, order
        assert server.config is not None, order


def test_a_config_that_nobody_touches_is_collected_under_the_hands_of_its_user() -> None:
    assert any(play(order, touches=False).config is None for order in orders())


def test_a_config_that_is_not_used_goes_and_comes_again_with_its_user() -> None:
    server = Server()
    alone = collect(server)
    for _ in range(OF_THE_COLLECTOR):
        alone.send(None)
    with pytest.raises(StopIteration):
        alone.send(None)
    assert server.config is None
    assert play([COLLECTOR] * MANY).config is not None
