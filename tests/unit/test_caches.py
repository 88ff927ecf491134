"""Whom the copies tell of what has changed."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.fleet import Fleet, driver

from gpupartition.controller.caches import Caches
from gpupartition.controller.intent import Intents
from gpupartition.controller.probe import Probe
from gpupartition.domain.pool import NODES, Device, Pool
from gpupartition.kube import DEVICE_TAINT_RULES, Kind, Listing, NotServed
from gpupartition.names import taint_rule

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator


class Downgraded(Fleet):
    """A cluster that still says that it serves DeviceTaintRules, and has none to list."""

    serves = False

    async def pages(self, kind: Kind, **_: Any) -> AsyncGenerator[Listing]:
        """All objects of the kind, at once. Raises NotServed."""
        if kind is DEVICE_TAINT_RULES and not self.serves:
            raise NotServed(f"list {kind}", 404, "NotFound", "the server could not find the requested resource")
        yield await self.list(kind)

    async def watch(self, *_: Any, **__: Any) -> AsyncGenerator[tuple[str, Any]]:
        """Nothing ever happens."""
        await asyncio.Event().wait()
        yield "", None


def afloat(pool: str, *, driver: str = "gpu.example.org") -> dict[str, Any]:
    spec = {
        "driver": driver,
        "pool": {"name": pool, "generation": 99, "resourceSliceCount": 1},
        "allNodes": True,
    }
    return {"metadata": {"name": f"{driver} {pool}", "uid": "slice", "resourceVersion": "2"}, "spec": spec}


@pytest.mark.parametrize("pool", ["node-1", "gpu.example.org/node-1"])
def test_a_slice_of_no_one_node_is_told_to_the_node_whose_pool_it_is_in_and_counts_there(pool: str) -> None:
    told: list[str] = []
    caches = Caches(Fleet(1).client, namespace="", on_node=told.append, on_all=lambda: None)
    caches.nodes._see("ADDED", node())
    told.clear()
    for body in (afloat(pool), afloat(pool, driver="another.example.org"), afloat("a-pool-of-many-nodes")):
        caches.slices._see("ADDED", body)
    assert set(told) == {"node-1"}
    (found,) = caches.packed_on("node-1", "gpu.example.org")
    assert found.body() == afloat(pool)
    assert caches.packed_on("node-2", "gpu.example.org") == []


@asynccontextmanager
async def kept(fleet: Fleet) -> AsyncIterator[Caches]:
    """The copies of a cluster, as an operator keeps them."""
    caches, ready = Caches(fleet.client, namespace="", on_node=lambda _: None, on_all=lambda: None), asyncio.Event()
    keeping = asyncio.create_task(caches.run(ready))
    async with asyncio.timeout(30):
        await ready.wait()
        yield caches
    keeping.cancel()
    await asyncio.wait([keeping])


async def test_taint_rules_that_went_since_they_were_asked_for_are_not_waited_for() -> None:
    fleet = Downgraded(1)
    async with kept(fleet) as caches:
        found = await Intents(caches, Probe(fleet.client, dry_runs=False)).driver(driver())
    assert (found.taint_rules, found.quiesce, found.problems) == (None, "Cordon", ())


async def test_taint_rules_are_kept_only_while_they_are_served() -> None:
    fleet = Downgraded(1)
    name = taint_rule("node-1", "uid")
    fleet.objects[DEVICE_TAINT_RULES] = [{"metadata": {"name": name, "uid": "rule", "resourceVersion": "1"}}]
    async with kept(fleet) as caches:
        assert not await caches.read_rules(DEVICE_TAINT_RULES)
        fleet.serves = True
        assert await caches.read_rules(DEVICE_TAINT_RULES)
        assert caches.rule(name) is not None
        before = caches.changes
        assert not await caches.read_rules(None)
        assert caches.rule(name) is None
        assert caches.changes > before, "whoever remembers what was made of it has to look again"


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
