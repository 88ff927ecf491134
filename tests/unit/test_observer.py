"""A policy that only observes is planned anew when something has changed that its plan is made of, and not otherwise."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest_asyncio
from tests.unit.fleet import Fleet, equal, policy

from gpupartition.controller.caches import Caches
from gpupartition.controller.declared import Policy
from gpupartition.controller.intent import Intents
from gpupartition.controller.ledger import Ledger
from gpupartition.controller.planner import Observer, Planner
from gpupartition.controller.probe import Probe
from gpupartition.controller.records import DRIVERS, POLICIES
from gpupartition.controller.scope import Absence, Scope, Standings, read_scope
from gpupartition.controller.stopwatch import Stopwatch
from gpupartition.controller.world import Reader
from gpupartition.domain.plan_summary import sentence
from gpupartition.settings import Settings

if TYPE_CHECKING:
    from gpupartition.domain.plan import Plan


class Observed(Fleet):
    """A fleet of four nodes with a policy that observes it."""

    def __init__(self) -> None:
        super().__init__(4)
        self.apply(policy(mode="Observe"))
        client, settings, watches = self.client, Settings(), Stopwatch()
        self.caches = Caches(client, namespace="", on_node=lambda _: None, on_all=lambda: None)
        self.intents = Intents(self.caches, Probe(client, dry_runs=False))
        absence = Absence(noticed=settings.limits.not_ready, ignored=settings.ignore_not_ready)
        ledger = Ledger(client, self.caches, Standings(self.caches, absence), watches, settings.limits.first_looks)
        reader = Reader(client, self.caches, self.intents, watches, settings.limits)
        self.observer = Observer(Planner(self.caches, reader, ledger, absence=absence))

    async def scope(self) -> Scope:
        """What there is, as the copies have it now."""
        (body,), (driver_body,) = self.objects[POLICIES], self.objects[DRIVERS]
        driver = await self.intents.driver(driver_body)
        return await read_scope(
            body,
            Policy.read(body),
            driver,
            driver_body,
            caches=self.caches,
            intents=self.intents,
            policies={"inference": body},
        )

    async def plan(self) -> tuple[Plan, timedelta | None]:
        """What the observer says now."""
        return await self.observer.of(await self.scope())


@pytest_asyncio.fixture
async def fleet() -> Observed:
    observed = Observed()
    await observed.caches.read()
    return observed


async def test_a_policy_that_observes_is_planned_as_if_it_did_not(fleet: Observed) -> None:
    fleet.apply(policy(mode="Observe", rollout={"limit": 1}))
    await fleet.caches.read()
    plan, _ = await fleet.plan()
    assert sentence(plan) == (
        "4 of 4 nodes would change (4 Repartition), in 1 wave; 3 are left waiting: "
        "spec.rollout.limit is reached; 3 nodes wait for it to be raised"
    )


async def test_a_plan_stands_as_long_as_nothing_changes(fleet: Observed) -> None:
    plan, _ = await fleet.plan()
    assert plan.changing == 4
    await fleet.caches.read()  # finds all as it was
    assert await fleet.plan() == (plan, None)
    assert (await fleet.plan())[0] is plan


async def test_what_is_written_into_the_status_is_no_reason_for_another_plan(fleet: Observed) -> None:
    plan, _ = await fleet.plan()
    fleet.objects[POLICIES][0]["status"] = {"observedGeneration": 1, "acceptedAt": "2026-01-01T00:00:00Z"}
    assert (await fleet.plan())[0] is plan


async def test_a_change_is_planned_when_planning_has_had_its_share_of_the_time(fleet: Observed) -> None:
    plan, _ = await fleet.plan()
    fleet.not_ready("node-1")
    await fleet.caches.read()
    begun = time.monotonic()
    while (again := await fleet.plan())[0] is plan:
        assert again[1] is not None, "nobody would ask again"
        assert again[1] > timedelta(0)
        await asyncio.sleep(again[1].total_seconds())
        assert time.monotonic() - begun < 60
    assert (again[0].nodes != plan.nodes, again[1]) == (True, None)


async def test_what_changes_while_all_is_looked_at_is_planned_too(fleet: Observed) -> None:
    before = await fleet.scope()
    fleet.not_ready("node-1")
    await fleet.caches.read()
    plan, _ = await fleet.observer.of(before)
    assert (await fleet.plan())[1] is not None, f"{plan} was made of what there was before, and would stand"


async def test_nothing_is_remembered_of_a_policy_that_is_gone(fleet: Observed) -> None:
    plan, _ = await fleet.plan()
    fleet.observer.forget("inference")
    assert (await fleet.plan())[0] is not plan


async def test_another_wish_is_planned_at_once(fleet: Observed) -> None:
    plan, _ = await fleet.plan()
    fleet.apply(policy("inference", equal(4), mode="Observe"))
    fleet.objects[POLICIES][0]["metadata"]["generation"] = 2
    other, _ = await fleet.plan()
    assert other is not plan
