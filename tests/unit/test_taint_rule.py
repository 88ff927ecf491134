"""Whether a node is closed by a rule, where not every API server knows rules."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from gpupartition.api.v1alpha1 import NodeStateStatus, Phase
from gpupartition.controller.probe import NO_STANDS, TAINT_RULES
from gpupartition.controller.records import Record
from gpupartition.controller.stopwatch import Stopwatch
from gpupartition.controller.taint_rule import TaintRule
from gpupartition.kube import Client, Kind, NotServed, Object

if TYPE_CHECKING:
    from collections.abc import Callable

V1, BETA = TAINT_RULES
RULE: Final[Object] = {"metadata": {"name": "rule"}}


class Servers:
    """API servers behind one address, of which whoever answers now serves `kinds`."""

    def __init__(self) -> None:
        self.kinds: set[Kind] = set()
        self.rule: Object | None = RULE
        self.denied = 0
        self.reader = TaintRule(cast("Client", self), Stopwatch(), self._deny)

    async def find(self, kind: Kind, name: str) -> Object | None:
        """Raises NotServed."""
        if kind not in self.kinds:
            raise NotServed(f"get {kind} {name}", 404, "NotFound", "the server could not find the requested resource")
        return self.rule

    def _deny(self) -> None:
        self.denied += 1


def closing(phase: Phase = Phase.RELEASING, quiesce: str = "DeviceTaint") -> Record:
    body: dict[str, Any] = {
        "metadata": {"name": "node-1", "uid": "record", "resourceVersion": "1"},
        "spec": {"policyRef": {"name": "halves", "uid": "policy"}, "nodeUID": "uid", "driver": "example"},
        "status": {"phase": phase, "quiesce": quiesce, "token": "" if phase is Phase.UP_TO_DATE else "t1"},
    }
    record = Record.read(body)
    assert isinstance(record.state, NodeStateStatus)
    assert not record.unreadable, record.state.message
    return record


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets so many seconds pass."""
    passed = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: passed[0])

    def wait(seconds: float) -> None:
        passed[0] += seconds

    return wait


@pytest.mark.parametrize("served", [V1, None])
async def test_that_a_server_does_not_know_rules_does_not_mean_that_a_node_is_open(
    served: Kind | None, later: Callable[[float], None]
) -> None:
    servers, record = Servers(), closing()
    for _ in range(2):
        with pytest.raises(NotServed):
            await servers.reader.of(record, served)
        later(NO_STANDS - 1)
    servers.kinds = {V1}
    assert await servers.reader.of(record, served) == RULE
    servers.kinds = set()
    later(NO_STANDS)
    with pytest.raises(NotServed):
        await servers.reader.of(record, served)
    assert servers.denied == (3 if served else 0)


async def test_where_no_server_has_known_rules_for_a_minute_there_is_none_that_anybody_obeys(
    later: Callable[[float], None],
) -> None:
    servers, record = Servers(), closing()
    with pytest.raises(NotServed):
        await servers.reader.of(record, V1)
    later(NO_STANDS)
    assert await servers.reader.of(record, None) is None


async def test_a_rule_is_found_in_whatever_version_a_server_has_it() -> None:
    servers = Servers()
    servers.kinds = {BETA}
    assert await servers.reader.of(closing(), None) == RULE


@pytest.mark.parametrize("record", [closing(quiesce="Cordon"), closing(Phase.UP_TO_DATE)])
async def test_where_there_are_no_rules_nobody_asks_for_one_that_cannot_be(record: Record) -> None:
    assert await Servers().reader.of(record, None) is None


async def test_that_a_rule_is_gone_is_believed_at_once_where_its_kind_is_known() -> None:
    servers = Servers()
    servers.kinds, servers.rule = {V1}, None
    assert await servers.reader.of(closing(), V1) is None
