"""Reads one node, in the order that makes writes safe.

    objects that may be written ─▶ the record ─▶ facts, and those objects again

If an object is not the same before and after the record was read, nothing is decided. Otherwise what is written under its
resourceVersion is written to exactly what the record, as read, speaks of: a worker that was stopped in between cannot come too late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from gpupartition import names
from gpupartition.api.v1alpha1 import DriverStatus, NodeStateStatus, Phase
from gpupartition.controller.caches import Caches
from gpupartition.controller.durations import Durations
from gpupartition.controller.facts import grant_of
from gpupartition.controller.groups import in_the_way, label_of
from gpupartition.controller.intent import Driver, Intents, Policy
from gpupartition.controller.occupants import Occupants
from gpupartition.controller.packed import PackedSlice, packed
from gpupartition.controller.reading import Assembly, Found, Reading
from gpupartition.controller.records import DRIVERS, NODE_STATES, POLICIES, Record
from gpupartition.controller.stopwatch import Stopwatch
from gpupartition.controller.trimmed import claim_pools, trim_claim, trim_pod
from gpupartition.domain.backend import Kept
from gpupartition.domain.groups import Group
from gpupartition.domain.holders import Holder, holders
from gpupartition.domain.quiesce import TAINTS
from gpupartition.domain.world import AT_REST, Limits, only_closes_or_opens
from gpupartition.kube import (
    DEVICE_TAINT_RULES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Client,
    NotServed,
    Object,
)

# Phases in which the holders decide something; elsewhere the whole cluster's claims need not be listed.
HOLDERS_MATTER = frozenset({Phase.DRAINING, Phase.APPLYING, Phase.ROLLING_BACK})
# Phases in which a group's pool may be written for the first time, so that whoever else has it has to be known.
_BEGINNING = AT_REST | {Phase.ADMITTED, Phase.DRAINING, Phase.APPLYING}


Objects = tuple[Object | None, Object | None, list[PackedSlice]]
"""The Node, the rule that closes it, and slices: what may be written."""


class Moved(Exception):  # noqa: N818  (reads as what happened)
    """Something changed while it was being read: look again."""


class Reader:
    """Makes Readings: from the caches for nodes at rest, live for all that is about to be decided."""

    def __init__(
        self,
        client: Client,
        caches: Caches,
        intents: Intents,
        watches: Stopwatch,
        limits: Limits,
        *,
        occupants: Occupants | None = None,
    ) -> None:
        """Without `occupants` nobody is ever evicted by what is read."""
        self._client = client
        self._caches = caches
        self._intents = intents
        self._assembly = Assembly(client, caches, intents, Durations(watches), limits, occupants)

    async def glance(self, name: str, policies: dict[str, Object], drivers: dict[str, Object]) -> Reading | None:
        """Read from the caches alone; None when there is no record, or its driver is not known (yet)."""
        record = self._caches.records.get(name)
        driver_body = drivers.get(record.spec.driver) if record else None
        if record is None or driver_body is None:
            return None
        driver = await self._intents.driver(driver_body)
        policy_body = policies.get(record.spec.policy_ref.name)
        return await self.look(record, driver, driver_body, Policy.read(policy_body) if policy_body else None)

    async def look(self, record: Record, driver: Driver, driver_body: Object, policy: Policy | None) -> Reading:
        """Read the node of this record from the caches alone."""
        name, node = record.name, self._caches.nodes.get(record.name)
        rule_name = names.taint_rule(name, record.spec.node_uid)
        group = self._intents.groups.of(driver, policy, node, record.state)
        pool = driver.backend.pool_name(driver.spec, name, group)
        return await self._assembly.reading(
            body={"metadata": {"name": name}},
            record=record,
            driver_body=driver_body,
            driver=driver,
            policy=policy,
            found=Found(
                node=node,
                group=group,
                slices=self._caches.slices_on(name, driver.driver_name, group),
                pods=await self._pods(driver, name, live=False),
                rule=self._caches.rule(rule_name),
                held=_held(driver, name, pool, self._caches.claims.by("pool", pool)),
                former=self._former(name, group),
            ),
            live=False,
        )

    async def read(self, known: Record, drivers: dict[str, Object]) -> Reading:
        """Read live; the copies of the record and of its driver only say where to look.

        Raises NotFound (no record), Moved, and Refused when the driver cannot be read.
        """
        name, copy = known.name, drivers.get(known.spec.driver) or await self._client.get(DRIVERS, known.spec.driver)
        driver = await self._intents.driver(copy)
        ours = _are_ours(driver)
        shared = self._intents.groups.name(driver, self._caches.nodes.get(name), known.state)
        before = await self._objects(known, driver, slices=ours)
        body = await self._client.get(NODE_STATES, name)
        record = Record.read(body)
        # A list is answered once the server's copy has caught up with all that was just written, which takes longer than the rest of a turn.
        live = ours or not only_closes_or_opens(record.state.phase, has_token=bool(record.state.token))
        policy_body, driver_body, after, pods = await asyncio.gather(
            self._client.find(POLICIES, record.spec.policy_ref.name),
            self._client.get(DRIVERS, record.spec.driver),
            self._objects(known, driver, slices=live),
            self._pods(driver, name, live=live),
        )
        if record.spec != known.spec or _versions(before, shared) != _versions(after, shared, slices=ours):
            raise Moved(name)
        if _spec_version(driver_body) != _spec_version(copy):
            drivers[known.spec.driver] = driver_body
            raise Moved(name)
        node, rule, of_driver = after
        of_pool = _of(shared, of_driver) if live else self._caches.packed_on(name, driver.driver_name)
        policy = Policy.read(policy_body) if policy_body else None
        if self._intents.groups.name(driver, node, record.state) != shared:
            raise Moved(name)
        group = self._intents.groups.of(driver, policy, node, record.state)
        pool = driver.backend.pool_name(driver.spec, name, group)
        ledger = DriverStatus.model_validate(driver_body.get("status", {})).in_flight
        beginning = record.state.phase in AT_REST and grant_of(ledger, name) is not None
        ends_a_plugin = record.state.phase is Phase.FAILED and record.state.restart is not None
        retires = record.state.phase in AT_REST and bool(record.state.retiring)
        if record.state.phase in HOLDERS_MATTER or beginning or ends_a_plugin or retires:
            claims: Iterable[Object] = await self._claims(pool)
        else:
            claims = self._caches.claims.by("pool", pool)
        leads = group is not None and group.leader == name and record.state.phase in _BEGINNING
        return await self._assembly.reading(
            body=body,
            record=record,
            driver_body=driver_body,
            driver=driver,
            policy=policy,
            found=Found(
                node=node,
                group=group,
                slices=Kept(of_pool, PackedSlice.body),
                pods=pods,
                rule=rule,
                held=_held(driver, name, pool, claims),
                elsewhere=in_the_way(driver, record, await self._records(), of_driver) if leads else "",
                former=self._former(name, group),
            ),
            live=True,
        )

    def _former(self, name: str, group: Group | None) -> NodeStateStatus | None:
        """What the record says from which this node, which leads its group, has still to take the pool."""
        record = self._caches.records.get(group.former) if group is not None and group.leader == name else None
        return record.state if record is not None else None

    async def _objects(self, known: Record, driver: Driver, *, slices: bool) -> Objects:
        name = known.name
        return await asyncio.gather(
            self._client.find(NODES, name),
            self._rule(driver, known),
            self._slices(name, driver) if slices else _none(),
        )

    async def _rule(self, driver: Driver, known: Record) -> Object | None:
        served, state = driver.taint_rules, known.state
        if served is None and (state.phase in AT_REST or state.quiesce not in TAINTS):
            return None
        try:
            return await self._client.find(
                served or DEVICE_TAINT_RULES, names.taint_rule(known.name, known.spec.node_uid)
            )
        except NotServed:
            if served is None:
                return None  # whoever was asked says so: there is none that anybody obeys
            self._intents.rules_are_gone()
            raise

    async def _claims(self, pool: str) -> list[Object]:
        """Who has devices of this pool now. There is no selector for that, and of a large cluster's claims only these are kept."""

        def of_pool(body: Object) -> Object | None:
            claim = trim_claim(body)
            return claim if claim is not None and pool in claim_pools(claim) else None

        return (await self._client.list(RESOURCE_CLAIMS, keep=of_pool)).items

    async def _slices(self, name: str, driver: Driver) -> list[PackedSlice]:
        """Those of a node, or of all groups of a driver that knows groups: there is no selector of pools."""
        of_driver = f"spec.driver={driver.driver_name}"
        if label_of(driver):
            return await self._caches.slices.now(lambda each: each.version, field_selector=of_driver)
        listed = await self._client.list(RESOURCE_SLICES, field_selector=f"spec.nodeName={name},{of_driver}")
        return list(map(packed, listed.items))

    async def _records(self) -> list[Record]:
        return await self._caches.records.now(lambda record: record.resource_version)

    async def _pods(self, driver: Driver, node: str, *, live: bool) -> list[Object]:
        found: list[Object] = []
        for namespace in driver.backend.namespaces(driver.spec):
            if live:
                selector = f"spec.nodeName={node}"
                listed = await self._client.list(PODS, namespace=namespace, field_selector=selector)
                found += [trim_pod(p) for p in listed.items]
            else:
                found += (await self._caches.namespace(namespace))[2].by("node", node)
        return found


def _of(group: str, slices: Iterable[PackedSlice]) -> list[PackedSlice]:
    """Those of a group's pool; "" for those of nodes that are in none."""
    return [each for each in slices if each.group == group]


def _versions(objects: Objects, group: str, *, slices: bool = True) -> list[Any]:
    node, rule, published = objects
    single = [o["metadata"]["resourceVersion"] if o else "" for o in (node, rule)]
    written = _of(group, published) if slices else []
    return [*single, *sorted((each.name, each.version) for each in written)]


def _held(driver: Driver, node: str, pool: str, claims: Iterable[Object]) -> tuple[Holder, ...]:
    return holders(claims, node=node, driver=driver.driver_name, pool=pool)


def _are_ours(driver: Driver) -> bool:
    """Whether the slices are among what may be written: where no driver runs, the operator itself publishes."""
    return not driver.backend.namespaces(driver.spec)


def _spec_version(driver: Object) -> tuple[str, int]:
    return driver["metadata"]["uid"], driver["metadata"].get("generation", 0)


async def _none() -> list[PackedSlice]:
    return []
