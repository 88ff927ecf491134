"""Entries whose every edit has drivers start over are there before the first node is taken, and are written while nothing moves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.amd import BACKEND, CPX, EIGHT, compiled, driver, facts, gpu, mode, node, theirs
from tests.unit.vendor import policy

from gpupartition.api.v1alpha1 import Grant, NodeStateStatus, Phase, PolicyStatus
from gpupartition.controller.declared import Driver, Policy
from gpupartition.controller.intent import Intent, Intents
from gpupartition.controller.ledger import moving
from gpupartition.controller.preparing import Preparing
from gpupartition.controller.records import Record
from gpupartition.controller.scope import Scope
from gpupartition.domain.admission import Admission
from gpupartition.domain.backend import Cluster, Config
from gpupartition.kube import ApiError, Client, Conflict, Forbidden, Invalid, Kind

WANTED = compiled(CPX, on=facts(*EIGHT))
BACK = BACKEND.way_back(driver(), facts(*EIGHT), Cluster())


class Server:
    """One ConfigMap, written under the version that was read."""

    def __init__(self, config_map: Mapping[str, Any] | None = None) -> None:
        self.config_map = dict(config_map) if config_map is not None else None
        self.edits = 0
        self.refusal: ApiError | None = None
        self.records: list[dict[str, Any]] = []

    async def list(self, _: Kind) -> SimpleNamespace:
        return SimpleNamespace(items=self.records)

    async def find(self, _: Kind, __: str, **___: str) -> dict[str, Any] | None:
        return self.config_map

    async def create(self, _: Kind, body: dict[str, Any]) -> None:
        self._write(body)

    async def replace(self, _: Kind, body: dict[str, Any]) -> None:
        self._write(body)

    def _write(self, body: dict[str, Any]) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.config_map, self.edits = body, self.edits + 1

    @property
    def profiles(self) -> set[str]:
        text = (self.config_map or {}).get("data", {}).get("config.json", '{"gpu-config-profiles": {}}')
        return set(json.loads(text)["gpu-config-profiles"])


def scope(server: Server, *states: NodeStateStatus, wanted: Config = WANTED) -> Scope:
    """A policy with so many nodes, all of which are whole."""
    cluster = Cluster(config_maps=[server.config_map] if server.config_map is not None else [])
    names = [f"n{number}" for number in range(len(states))]
    spec = {"policyRef": {"name": "p", "uid": "p"}, "nodeUID": "u", "driver": "amd"}
    server.records = [
        {
            "metadata": {"name": n, "uid": n, "resourceVersion": "1"},
            "spec": spec,
            "status": s.model_dump(by_alias=True),
        }
        for n, s in zip(names, states, strict=True)
    ]
    records = [Record.read(body) for body in server.records]
    return Scope(
        body={},
        policy=Policy(
            name="p", uid="p", generation=1, spec=policy(CPX), status=PolicyStatus(), retry="", deleting=False
        ),
        driver=Driver(name="amd", uid="d", spec=driver(), backend=BACKEND, cluster=cluster, driver_name="gpu.amd.com"),
        driver_body={},
        nodes={name: {"metadata": node()["metadata"] | {"name": name}} for name in names},
        contested=(),
        rivals=(),
        intents={name: Intent(wanted=wanted) for name in names},
        problems=(),
        records={record.name: record for record in records},
        groups={},
        changes=0,
    )


def preparing(server: Server) -> Preparing:
    def of_node(name: str, *_: str) -> list[dict[str, Any]]:
        spec = facts(*(gpu(number) for number in range(8))).slices[0]["spec"]
        return [{"metadata": {"name": name}, "spec": spec | {"pool": spec["pool"] | {"name": name}}}]

    caches = SimpleNamespace(slices_on=of_node)
    intents = Intents(cast("Any", caches), cast("Any", None))
    return Preparing(cast("Client", server), intents)


async def prepared(server: Server, about: Scope, *nodes: str, at_rest: bool = True) -> str:
    return await preparing(server).prepare(about, nodes, at_rest)


WAITS = NodeStateStatus()


async def test_what_a_node_goes_to_and_what_it_may_have_to_go_back_to_are_written_in_one_edit() -> None:
    server = Server()
    assert await prepared(server, scope(server, WAITS, WAITS), "n0") == ""
    assert server.profiles == {WANTED.assignment, BACK.assignment}
    assert server.edits == 1


async def test_what_is_there_is_not_written_again() -> None:
    server = Server()
    await prepared(server, scope(server, WAITS), "n0")
    for at_rest in (True, False):
        assert await prepared(server, scope(server, WAITS), "n0", at_rest=at_rest) == ""
    assert server.edits == 1


async def test_while_a_node_is_being_changed_nothing_is_written_and_the_others_wait() -> None:
    server = Server(theirs(default={"profiles": []}))
    waits = await prepared(server, scope(server, WAITS), "n0", at_rest=False)
    assert "until no node of driver amd is being changed" in waits
    assert "kube-amd-gpu/gpp-amd" in waits
    assert (server.edits, server.profiles) == (0, {"default"})


async def test_what_the_others_will_want_is_written_along_but_for_those_that_have_it() -> None:
    done = NodeStateStatus(phase=Phase.UP_TO_DATE, current=WANTED.assigned(), target=WANTED.assigned())
    other = compiled(mode("DPX", "NPS1"), on=facts(*EIGHT))
    server = Server()
    about = scope(server, WAITS, done, WAITS)
    about.intents["n2"] = Intent(wanted=other)
    await prepared(server, about, "n0")
    assert server.profiles == {WANTED.assignment, other.assignment, BACK.assignment}


async def test_a_node_that_has_lost_what_it_had_may_have_to_go_back_to_what_it_has_now() -> None:
    drifted = NodeStateStatus(phase=Phase.UP_TO_DATE, current=WANTED.assigned(), target=WANTED.assigned())
    server = Server()
    await prepared(server, scope(server, drifted), "n0")
    assert server.profiles == {WANTED.assignment, BACK.assignment}


async def caught_up(server: Server, about: Scope) -> set[str]:
    await preparing(server).catch_up(about)
    return server.profiles


@pytest.mark.parametrize("phase", [Phase.ADMITTED, Phase.QUIESCING, Phase.DRAINING])
async def test_what_a_node_in_flight_is_to_have_instead_is_written_as_long_as_nobody_was_told(phase: Phase) -> None:
    server = Server()
    taken = NodeStateStatus(phase=phase)
    assert WANTED.assignment in await caught_up(server, scope(server, taken, WAITS))


@pytest.mark.parametrize("phase", [Phase.APPLYING, Phase.VERIFYING, Phase.ROLLING_BACK])
async def test_it_waits_for_those_that_were_told(phase: Phase) -> None:
    server = Server()
    draining = NodeStateStatus(phase=Phase.DRAINING)
    assert await caught_up(server, scope(server, draining, NodeStateStatus(phase=phase))) == set()


async def test_for_nodes_that_wait_for_their_turn_nothing_is_caught_up() -> None:
    server = Server()
    assert await caught_up(server, scope(server, WAITS, NodeStateStatus(phase=Phase.FAILED))) == set()


def test_a_node_that_failed_keeps_nobody_from_writing_and_one_that_moves_does() -> None:
    server = Server()
    failed, rests = NodeStateStatus(phase=Phase.FAILED), NodeStateStatus(phase=Phase.UP_TO_DATE)
    moves = NodeStateStatus(phase=Phase.RELEASING)
    records = scope(server, failed, rests, moves).records
    grants = [
        Grant(node=n, uid="u", policy="p", token=f"token-{n}", since=datetime(2026, 3, 1, tzinfo=UTC)) for n in records
    ]
    assert moving("amd", grants[:1], [records["n0"], records["n1"]]) == set()
    assert moving("amd", [], records.values()) == {"n2"}
    assert moving("amd", grants[1:2], [records["n1"]]) == {"n1"}, "a grant is taken before its record moves"
    assert moving("other", [], records.values()) == set()


async def test_an_edit_that_somebody_else_was_faster_with_is_tried_again_later() -> None:
    server = Server(theirs())
    server.refusal = Conflict("replace", 409, "Conflict", "somebody was faster")
    assert "has changed meanwhile" in await prepared(server, scope(server, WAITS), "n0")


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (
            Forbidden("replace", 403, "Forbidden", "cannot update resource"),
            ["may not be written", "components/amd-dcm"],
        ),
        (Invalid("replace", 422, "Invalid", "is immutable"), ["cannot be written: is immutable", "delete it"]),
    ],
)
async def test_a_config_map_that_cannot_be_written_is_told_and_ends_no_turn(refusal: ApiError, told: list[str]) -> None:
    server = Server(theirs())
    server.refusal = refusal
    why = await prepared(server, scope(server, WAITS), "n0")
    assert why.startswith("ConfigMap kube-amd-gpu/gpp-amd")
    assert all(each in why for each in told), why
    assert WANTED.assignment not in await caught_up(server, scope(server, NodeStateStatus(phase=Phase.DRAINING)))


def test_nodes_that_wait_for_an_edit_are_not_taken_and_are_still_to_be() -> None:
    waiting = Admission(nodes=("n0", "n1"), initial=frozenset({"n1"}), lost=("n2",), left=3).until_written("because")
    assert (waiting.nodes, waiting.initial, waiting.lost, waiting.left) == ((), frozenset(), ("n2",), 5)
    assert (waiting.reason, waiting.message) == ("ConfigWaits", "because")
