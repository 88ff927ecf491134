"""The record of a node, as the API server has it: whatever somebody writes into it, it is read, and says at most of its own node nothing."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from tests.unit.worlds import HALVES

from gpupartition.api.v1alpha1 import Assigned, NodeStateStatus, Phase
from gpupartition.controller.collect import Unclear, used
from gpupartition.controller.ledger import moving
from gpupartition.controller.records import Record, dump, new_record, packed, with_state
from gpupartition.domain.pool import MAX_RECORD, Device, Pool
from gpupartition.kube import Object

TARGET: Final = dump(NodeStateStatus(target=HALVES.assigned()))["target"]
LONG: Final = json.dumps({"devices": [{"name": f"gpu-{n}", "capacity": {"memory": "80"}} for n in range(500)]})
SPOILT: Final[dict[str, Object]] = {
    "the year 0": {"since": "0000-01-01T00:00:00Z"},
    "a year to which nothing can be added": {"since": "9999-12-31T23:59:59Z"},
    "a zone of 99 hours": {"target": {"since": "2026-01-01T00:00:00+99:99"}},
    "a letter in front of the fraction": {"blockers": [{"node": "n", "since": "2026-01-01T00:00:00x1Z"}]},
    "half of a pool": {"target": TARGET | {"pool": TARGET["pool"][:-1]}},
    "a pool of something else": {"previous": {"pool": '{"devices":[{"name":1,"capacity":{}}]}'}},
    "amounts that are none": {"retiring": '{"counters":{"a":{"b":"much"}}}'},
    "a pool without end": {"current": {"pool": "[" * 9000 + "]" * 9000}},
    "a packed pool that somebody cut": {"current": {"pool": packed(LONG)[:-40]}},
    "a packed pool that is no base64": {"current": {"pool": "zlib:~~~~"}},
    "a packed pool without end": {"current": {"pool": packed(" " * 10_000_000)}},
    "a phase that there is not": {"phase": "Nowhere"},
    "no map": {"target": []},
}


def body(status: Any, **meta: Any) -> Object:
    made = new_record(node="node-1", node_uid="uid-1", policy="p", policy_uid="uid-p", driver="d")
    return {**made, "metadata": {"name": "node-1", "uid": "u", "resourceVersion": "7", **meta}, "status": status}


@pytest.mark.parametrize("spoilt", SPOILT.values(), ids=SPOILT)
@pytest.mark.parametrize(("phase", "counts_as"), [("Draining", Phase.FAILED), ("UpToDate", Phase.SKIPPED)])
def test_of_a_record_that_cannot_be_read_only_that_it_is_there_is_known(
    spoilt: Object, phase: str, counts_as: Phase
) -> None:
    record = Record.read(body({"phase": phase, "token": "t", "target": TARGET, **spoilt}))
    assert record.unreadable
    assert record.spec.policy_ref.name == "p"
    expected = Phase.FAILED if "phase" in spoilt else counts_as
    known = {"phase", "token", "reason", "message", "since"}
    assert (record.state.phase, record.state.token, record.state.reason) == (expected, "t", "RecordUnreadable")
    assert record.state.model_dump(exclude=known) == NodeStateStatus().model_dump(exclude=known)
    assert record.unreadable in record.state.message
    assert "gpupartitionnodestate node-1" in record.state.message


@pytest.mark.parametrize("squeezed", [packed(LONG)[:-40], "zlib:~~~~"], ids=["cut", "no base64"])
def test_nobody_is_sent_to_edit_what_nobody_can_read(squeezed: str) -> None:
    """A record at rest is made anew from what its node publishes; one of a node on its way is the only thing that knows its way back."""

    def advice(spoilt: str, **status: str) -> str:
        return Record.read(body({"target": TARGET | {"pool": spoilt}, **status})).state.message.partition("); ")[2]

    made_anew = "nobody can correct that; have the record made anew: kubectl delete gpupartitionnodestate node-1"
    assert advice(squeezed, phase="UpToDate") == made_anew
    for on_its_way in ({"phase": "Draining"}, {"phase": "Failed"}, {"phase": "UpToDate", "token": "t"}):
        assert advice(squeezed, **on_its_way).startswith("put it back as it was, ")
    assert advice("half of a pool", phase="UpToDate") == "mend that: kubectl edit gpupartitionnodestate node-1"


def test_what_a_later_release_has_written_is_kept_and_hinders_nothing() -> None:
    """Whoever goes back one release has records with fields that this one does not know, and may go forward again."""
    later = {"phase": "Draining", "token": "t", "target": TARGET | {"later": {"a": 1}}, "later": ["b"]}
    record = Record.read(body(later))
    assert (record.unreadable, record.state.phase) == ("", Phase.DRAINING)
    moved = with_state(body(later), record.state.model_copy(update={"phase": Phase.APPLYING}))["status"]
    assert (moved["phase"], moved["later"], moved["target"]["later"]) == ("Applying", ["b"], {"a": 1})


@pytest.mark.parametrize("status", [[], 7, "a", {"token": 7}, {"token": "t" * 65}])
def test_not_even_a_token_is_taken_for_granted(status: object) -> None:
    record = Record.read(body(status))
    assert record.unreadable
    assert record.state.token == ""


def test_a_record_whose_spec_cannot_be_read_is_nobodys() -> None:
    record = Record.read({**body({"phase": "UpToDate"}), "spec": {"policyRef": "p"}})
    assert record.unreadable.startswith("policyRef: ")
    assert record.spec.policy_ref.name == record.spec.driver == ""


@pytest.mark.parametrize("phase", Phase)
def test_what_the_operator_writes_can_be_read(phase: Phase) -> None:
    layout, stay = HALVES.assigned(), HALVES.pool.to_json()
    state = NodeStateStatus(phase=phase, target=layout, current=layout, previous=layout, original=layout, retiring=stay)
    record = Record.read(body(dump(state)))
    assert (record.state, record.unreadable) == (state, "")


def test_a_long_pool_takes_few_bytes_of_a_record_and_is_read_as_it_was() -> None:
    layout = Assigned(fingerprint="f", pool=LONG)
    state = NodeStateStatus(phase=Phase.UP_TO_DATE, target=layout, previous=layout, retiring=LONG)
    written = with_state(body({}), state)
    assert len(json.dumps(written)) < len(LONG) / 4, "three of them"
    assert Record.read(written).state == state
    assert Record.read(body(dump(state))).state == state, "as an earlier release wrote it"


def test_as_long_a_pool_as_a_record_may_have_is_read_in_whatever_letters_it_is_written() -> None:
    device = Device(name="a", attributes={"product": {"string": "é" * (MAX_RECORD - 200)}})
    longest = Assigned(fingerprint="f", pool=Pool(devices=(device,)).to_json())
    written = with_state(body({}), NodeStateStatus(target=longest))
    assert Record.read(written).state.target == longest


def test_a_short_pool_can_be_read_by_people() -> None:
    state = NodeStateStatus(target=HALVES.assigned())
    assert with_state(body({}), state)["status"]["target"]["pool"] == HALVES.pool.to_json()


def test_a_pool_of_another_release_can_be_read() -> None:
    """Kubernetes learns new kinds of attributes, and releases write new fields."""
    device = {"name": "a", "capacity": {}, "attributes": {"peers": {"strings": ["b"]}}, "spans": ["node-2"]}
    pool = json.dumps({"devices": [device], "counters": {"a": {"b": "1" * 25}}, "nodes": {}})
    assert Record.read(body({"target": {"pool": pool}})).unreadable == ""


def test_a_node_of_which_nothing_is_known_may_be_on_its_way() -> None:
    unread = Record.read(body({"phase": "Applying", "since": "0000-01-01T00:00:00Z"}))
    failed = Record.read(body({"phase": "Failed"}, name="node-2"))
    assert moving("d", [], [unread, failed]) == {"node-1"}


def test_no_config_is_spare_while_a_record_may_name_any() -> None:
    with pytest.raises(Unclear):
        used([Record.read(body({"phase": "Applying", "since": "0000-01-01T00:00:00Z"}))])
