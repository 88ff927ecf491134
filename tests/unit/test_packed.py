"""Slices that are kept in few bytes are the slices that were read."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from tests.properties import hostile

from gpupartition.controller.packed import packed
from gpupartition.domain.offered import offered_by


def published(node: str, *devices: str, pool: str = "") -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"slice-of-{node}", "uid": f"uid-of-{node}", "managedFields": [{"manager": "driver"}]},
        "spec": {
            "driver": "gpu.example.org",
            "nodeName": node,
            "pool": {"name": pool or node, "generation": 3, "resourceSliceCount": 1},
            "devices": [{"name": name, "attributes": {"index": {"int": 0}}} for name in devices],
        },
    }


@given(hostile.resource_slice())
def test_nothing_of_a_slice_is_lost_but_the_servers_bookkeeping(body: dict[str, Any]) -> None:
    body["metadata"].pop("managedFields", None)
    assert packed({**body, "metadata": {**body["metadata"], "managedFields": []}}).body() == body


def test_nodes_that_offer_the_same_share_it() -> None:
    one, two = (packed(published(node, "gpu-0", "gpu-1")) for node in ("a", "b"))
    assert one != two
    assert one.offered is two.offered
    assert one.body()["spec"]["devices"] is two.body()["spec"]["devices"]
    assert offered_by([one.body()]) is offered_by([two.body()])


def test_a_slice_that_offers_something_else_is_another() -> None:
    before, after = packed(published("a", "gpu-0")), packed(published("a", "gpu-1"))
    assert before != after
    assert packed(published("a", "gpu-0")) == before


def test_a_pool_is_ours_by_its_name_alone() -> None:
    assert packed(published("a", pool="gpu.example.org/a")).ours
    assert not packed(published("a")).ours
    assert not packed(published("a", pool="gpu.example.org/b")).ours
