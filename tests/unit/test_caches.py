"""Whom the copies tell of what has changed."""

from __future__ import annotations

from typing import Any

from tests.unit.fleet import Fleet

from gpupartition.controller.caches import Caches


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
