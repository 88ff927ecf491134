"""Whom the copies tell of what has changed."""

from __future__ import annotations

from typing import Any

from tests.unit.fleet import Fleet

from gpupartition.controller.caches import Caches
from gpupartition.domain.pool import NODES, Device, Pool


def node(**labels: str) -> dict[str, Any]:
    return {"metadata": {"name": "node-1", "uid": "uid", "resourceVersion": "1", "labels": labels}}


def test_a_node_that_is_relabelled_or_gone_is_told_as_it_was() -> None:
    before: list[dict[str, str]] = []

    def note(body: dict[str, Any]) -> None:
        before.append(body["metadata"]["labels"])

    caches = Caches(Fleet(1).client, namespace="", on_node=lambda _: None, on_all=lambda: None, on_relabelled=note)
    caches.nodes._see("ADDED", node(pool="a"))
    caches.nodes._see("MODIFIED", node(pool="a") | {"spec": {"unschedulable": True}})
    assert before == []
    caches.nodes._see("MODIFIED", node(pool="b"))
    caches.nodes._see("DELETED", node(pool="b"))
    assert before == [{"pool": "a"}, {"pool": "b"}]


def test_a_slice_that_nobody_owns_in_a_groups_pool_is_told_to_the_node_that_leads() -> None:
    told: list[str] = []
    on_it = Device(name="half", capacity={}, costs={NODES: {"key": 1}})
    of_group = Pool(counters={NODES: {"key": 1}}, devices=(on_it,), group="r1")
    caches = Caches(
        Fleet(1).client, namespace="", on_node=told.append, on_all=lambda: None, on_relabelled=lambda _: None
    )
    assigned = {"fingerprint": "f", "pool": of_group.to_json(), "revision": "", "since": "2026-01-01T00:00:00Z"}
    record = {
        "metadata": {"name": "node-1", "uid": "record", "resourceVersion": "1"},
        "spec": {"policyRef": {"name": "racks", "uid": "policy"}, "nodeUID": "uid", "driver": "racks"},
        "status": {"phase": "UpToDate", "current": assigned},
    }
    caches.records._see("ADDED", record)
    told.clear()
    spec = {
        "driver": "rack.example.org",
        "pool": {"name": "rack.example.org/r1", "generation": 99, "resourceSliceCount": 2},
    }
    caches.slices._see("ADDED", {"metadata": {"name": "theirs", "uid": "slice", "resourceVersion": "2"}, "spec": spec})
    assert told == ["node-1"]
