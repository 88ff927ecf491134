"""What was made of the copies stands for as long as the copies are the very same, and no longer."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from tests.unit.fleet import Fleet, policy, whole

from gpupartition.controller.caches import Caches
from gpupartition.controller.census import Census
from gpupartition.controller.declared import Policy
from gpupartition.controller.intent import Intents
from gpupartition.controller.probe import Probe
from gpupartition.controller.records import DRIVERS, NODE_STATES, POLICIES, new_record
from gpupartition.controller.remembered import FEW, SPARE, Recent, Remembered
from gpupartition.controller.scope import Absence, Scope, Standings, read_scope
from gpupartition.domain import capacity
from gpupartition.kube import NODES
from gpupartition.settings import Settings

if TYPE_CHECKING:
    from gpupartition.domain.admission import Standing
    from gpupartition.kube import Object


def test_an_answer_is_made_once_for_the_same_objects() -> None:
    known: Remembered[object] = Remembered()
    body = {"a": 1}
    first = known.of("n", (body,), object)
    assert known.of("n", (body,), object) is first
    assert known.of("m", (body,), object) is not first


@pytest.mark.parametrize("objects", [({"a": 1},), (), (None,)], ids=["an equal one", "none", "nothing"])
def test_an_answer_is_made_anew_for_other_objects(objects: tuple[object, ...]) -> None:
    known: Remembered[object] = Remembered()
    first = known.of("n", ({"a": 1},), object)
    assert known.of("n", objects, object) is not first


def test_facts_that_all_share_are_one_object_while_they_are_equal() -> None:
    known: Remembered[object] = Remembered()
    first = known.common("p", ["a"], nodes=1)
    assert known.common("p", ["a"], nodes=1) is first
    assert known.common("p", ["b"], nodes=1) == ["b"]
    assert known.common("p", ["a"], nodes=1) is not first


def test_nodes_that_went_are_forgotten_some_day() -> None:
    known: Remembered[object] = Remembered()
    for number in range(SPARE + 2):
        known.of(f"n{number}", (), object)
    stays = known.of("n0", (), object)
    known.common("p", (), nodes=2)
    assert known.of("n0", (), object) is stays
    known.common("p", (), nodes=1)
    assert known.of("n0", (), object) is not stays


class Desk:
    """A policy over a few nodes with records, looked at again and again."""

    def __init__(self) -> None:
        self.fleet = Fleet(3)
        self.fleet.apply(policy())
        for node in self.fleet.objects[NODES]:
            meta = node["metadata"]
            body = new_record(
                node=meta["name"],
                node_uid=meta["uid"],
                policy="inference",
                policy_uid="inference",
                driver="example",
            )
            body["metadata"] |= {"uid": meta["name"], "resourceVersion": "1"}
            self.fleet.objects[NODE_STATES].append(body)
        client = self.fleet.client
        self.caches = Caches(client, namespace="", on_node=lambda _: None, on_all=lambda: None)
        self.intents = Intents(self.caches, Probe(client, dry_runs=False))
        settings = Settings()
        absence = Absence(noticed=settings.limits.not_ready, ignored=settings.ignore_not_ready)
        self.standings = Standings(self.caches, absence)
        self.census = Census(self.caches)

    async def scope(self) -> Scope:
        await self.caches.read()
        (body,), (driver_body,) = self.fleet.objects[POLICIES], self.fleet.objects[DRIVERS]
        driver = await self.intents.driver(driver_body)
        policies: dict[str, Object] = {"inference": body}
        return await read_scope(
            body, Policy.read(body), driver, driver_body, caches=self.caches, intents=self.intents, policies=policies
        )

    async def stand(self) -> list[Standing]:
        scope = await self.scope()
        return await self.standings.of(scope, ((n, scope.records.get(n), node) for n, node in scope.nodes.items()))


async def test_where_nodes_stand_is_found_out_anew_only_where_something_changed() -> None:
    desk = Desk()
    one, two, three = await desk.stand()
    (body, *_) = desk.fleet.objects[NODES]
    body["spec"] = {"unschedulable": True}
    again = await desk.stand()
    assert [a is b for a, b in zip(again, (one, two, three), strict=True)] == [False, True, True]
    assert [node.at_work for node in again] == ["it is cordoned", "", ""]


async def test_where_nodes_stand_is_found_out_anew_for_a_changed_policy() -> None:
    desk = Desk()
    before = await desk.stand()
    desk.fleet.apply(policy(deletionPolicy="Revert"))
    assert not any(a is b for a, b in zip(await desk.stand(), before, strict=True))


async def test_a_node_that_is_not_ready_is_looked_at_each_time_for_that_is_a_matter_of_time() -> None:
    desk = Desk()
    await desk.stand()
    desk.fleet.not_ready(desk.fleet.nodes[0])
    (body, *_) = desk.fleet.objects[NODES]
    (ready,) = body["status"]["conditions"]
    ready["lastTransitionTime"] = datetime.now(UTC).isoformat()
    assert [node.ignored for node in await desk.stand()] == [False, False, False]
    ready["lastTransitionTime"] = "2020-01-01T00:00:00Z"
    assert [node.ignored for node in await desk.stand()] == [True, False, False]


async def test_a_census_follows_what_is_published_and_what_is_taken() -> None:
    desk = Desk()
    node, *_ = desk.fleet.nodes
    assert [(c.total, c.allocated) for c in await desk.census.capacity(await desk.scope())] == [(24, 0)]
    desk.fleet.hold(node)
    assert [(c.total, c.allocated) for c in await desk.census.capacity(await desk.scope())] == [(24, 1)]
    desk.fleet.publish(node, parts=2)
    counted = {c.profile: (c.total, c.allocated) for c in await desk.census.capacity(await desk.scope())}
    assert counted == {"40Gi": (16, 0), "80Gi": (24, 0)}


async def test_a_census_counts_nodes_that_nobody_touched_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    await desk.census.capacity(await desk.scope())
    read: list[object] = []
    monkeypatch.setattr(capacity, "read_device", read.append)
    assert [c.total for c in await desk.census.capacity(await desk.scope())] == [24]
    assert not read


async def test_a_census_says_how_many_nodes_do_not_have_what_is_wanted() -> None:
    desk = Desk()
    assert await desk.census.would_change(await desk.scope()) == 3
    assert await desk.census.would_change(await desk.scope()) == 3
    desk.fleet.apply(policy("inference", whole()))
    desk.fleet.objects[POLICIES][0]["metadata"]["generation"] = 2
    assert await desk.census.would_change(await desk.scope()) == 0


def test_what_was_made_of_an_object_is_made_anew_for_another_that_is_equal_and_only_few_are_kept() -> None:
    made: list[object] = []

    def length(of: list[int]) -> int:
        made.append(of)
        return len(of)

    recent, one, other = Recent(length), [1], [1]
    assert [recent(one), recent(one), recent(other), recent(one)] == [1] * 4
    assert len(made) == 2, "each of them once"
    for _ in range(FEW):
        recent([1])
    recent(one)
    assert made[-1] is one, "it was asked of too long ago"
