"""What would become of policies: the same reading, compiling and admitting as ever, handed to domain/plan.py instead of the API server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from gpupartition.api.v1alpha1 import DrainMode, NodeStateSpec, NodeStateStatus, PolicyRef, PolicyStatus
from gpupartition.controller.caches import Caches
from gpupartition.controller.declared import Policy
from gpupartition.controller.ledger import Ledger
from gpupartition.controller.occupants import Occupants
from gpupartition.controller.readiness import LONG_AGO
from gpupartition.controller.records import Record
from gpupartition.controller.scope import Absence, Scope, ledger_of, standing
from gpupartition.controller.world import Reader
from gpupartition.domain.admission import Standing
from gpupartition.domain.plan import Candidate, Lane, Plan, plan
from gpupartition.domain.world import State, World
from gpupartition.kube.pauses import Pauses


class Planner:
    """Plans from the copies, and writes nothing. With `occupants` it asks the API server who would be evicted, else it asks nothing."""

    def __init__(
        self,
        caches: Caches,
        reader: Reader,
        ledger: Ledger,
        *,
        absence: Absence,
        occupants: Occupants | None = None,
    ) -> None:
        self._occupants = occupants
        self._caches = caches
        self._reader = reader
        self._ledger = ledger
        self._absence = absence

    async def of(self, scopes: Sequence[Scope]) -> list[Plan]:
        """Play these policies forward together, as if all of them were in force."""
        records = {scope.policy.name: _records(scope) for scope in scopes}
        everybody = {r.name: r for r in self._caches.records.values()}
        for mine in records.values():
            everybody |= mine
        lanes = [await self._lane(scope, records[scope.policy.name], everybody) for scope in scopes]
        ledgers = {scope.driver.name: ledger_of(scope.driver_body) for scope in scopes}
        # For thousands of nodes it takes seconds, and it reads no copy.
        return await asyncio.to_thread(plan, lanes, ledgers)

    def made_of(self, scope: Scope) -> object:
        """All that a plan of this policy follows from, beside the policy: as long as it is equal, another one would say the same."""
        of_driver = [r for r in self._caches.records.values() if r.spec.driver == scope.driver.name]
        rules = replace(self._ledger.rules(scope, scope.records, of_driver), now=LONG_AGO)
        return scope.changes, scope.driver, ledger_of(scope.driver_body), scope.contested, rules

    async def _lane(self, scope: Scope, records: Mapping[str, Record], everybody: Mapping[str, Record]) -> Lane:
        of_driver = [r for r in everybody.values() if r.spec.driver == scope.driver.name]
        refused = "" if scope.stopped else "; ".join(str(p) for p in scope.problems[:3])
        return Lane(
            policy=scope.policy.name,
            driver=scope.driver.name,
            rules=self._ledger.rules(scope, records, of_driver),
            candidates=[each async for each in self._candidates(scope, records)],
            others=frozenset(self._ledger.others(scope, of_driver, ledger_of(scope.driver_body))),
            contested=scope.contested,
            refused=refused,
            hint=scope.hint,
        )

    async def _candidates(self, scope: Scope, records: Mapping[str, Record]) -> AsyncIterator[Candidate]:
        pauses = Pauses()
        for _, record in sorted(records.items()):
            yield await self._candidate(scope, record)
            if pauses.due:
                await pauses.take()

    async def _candidate(self, scope: Scope, record: Record) -> Candidate:
        reading = await self._reader.look(record, scope.driver, scope.driver_body, scope.policy)
        # Who may begin is for the rules to say: a policy that observes is planned as if it did not.
        world = replace(reading.world, held_back=False)
        node = self._caches.nodes.get(record.name)

        def stand(state: State) -> Standing:
            return standing(scope, record.name, replace(record, state=state), node, absence=self._absence)

        return Candidate(
            name=record.name,
            uid=record.spec.node_uid,
            state=record.state,
            world=await self._with_occupants(world),
            stand=stand,
            problem=record.state.message
            if record.unreadable
            else "; ".join(str(p) for p in reading.intent.problems[:3]),
        )

    async def _with_occupants(self, world: World) -> World:
        if self._occupants is None or world.drain.mode is not DrainMode.EVICT or not world.holders:
            return world
        seen = await self._occupants.look(tuple(world.holders), world.observed, world.drain)
        return replace(world, holders=seen.holders, occupants=seen.occupants, monitors=seen.monitors)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """A plan, what it was asked for and made of, and until when it stands whatever changes (seconds of the monotonic clock)."""

    asked: Policy
    made_of: object
    at: float
    until: float
    plan: Plan


class Observer:
    """Says of policies that only observe what they would do.

    Planning takes up to seconds for thousands of nodes: what was said last stands as long as nothing has changed that it was made of, and where
    much changes planning may take a twentieth of the time.
    """

    SHARE: Final = 20
    LASTS: Final = 600  # seconds, after which a plan is made anew for what the time alone may change

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._said: dict[str, _Said] = {}  # by the name of the policy

    async def of(self, scope: Scope) -> tuple[Plan, timedelta | None]:
        """The plan, and when to ask again if it may be an old one."""
        begun, said = time.monotonic(), self._said.get(scope.policy.name)
        asked, made_of = replace(scope.policy, status=PolicyStatus()), self._planner.made_of(scope)
        if said is not None and said.asked == asked:
            if said.made_of == made_of and begun < said.at + self.LASTS:
                return said.plan, None
            if begun < said.until:
                return said.plan, timedelta(seconds=said.until - begun)
        (plan,) = await self._planner.of([scope])
        now = time.monotonic()
        self._said[scope.policy.name] = _Said(
            asked=asked, made_of=made_of, at=begun, until=now + self.SHARE * (now - begun), plan=plan
        )
        return plan, None

    def forget(self, policy: str) -> None:
        """A policy is gone, and what was said of it goes too: of thousands of nodes that is much."""
        self._said.pop(policy, None)


def _records(scope: Scope) -> dict[str, Record]:
    """The records that there are, and those that taking the other nodes on would make."""
    nothing_yet = NodeStateStatus()
    new = {
        name: Record(
            name=name,
            uid="",
            resource_version="",
            spec=NodeStateSpec(
                policy_ref=PolicyRef(name=scope.policy.name, uid=scope.policy.uid),
                node_uid=node["metadata"]["uid"],
                driver=scope.driver.name,
            ),
            state=nothing_yet,
        )
        for name, node in scope.nodes.items()
        if "deletionTimestamp" not in node["metadata"]
    }
    return new | scope.records
