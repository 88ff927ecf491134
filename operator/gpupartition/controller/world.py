"""Reads one node, in the order that makes writes safe.

    objects that may be written ─▶ the record ─▶ facts, and those objects again

If an object is not the same before and after the record was read, nothing is decided. Otherwise what is written under its
resourceVersion is written to exactly what the record, as read, speaks of: a worker that was stopped in between cannot come too late.

Of the objects before the record the versions are enough, and the copies know those. A record that was just written has been read as well.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from gpupartition import names
from gpupartition.api.v1alpha1 import NodeStateStatus, Phase
from gpupartition.controller import clock
from gpupartition.controller.caches import Caches
from gpupartition.controller.declared import Driver, Policy
from gpupartition.controller.durations import Durations
from gpupartition.controller.facts import grant_of
from gpupartition.controller.groups import in_the_way, label_of
from gpupartition.controller.intent import Intents
from gpupartition.controller.occupants import Occupants
from gpupartition.controller.packed import PackedSlice, packed
from gpupartition.controller.reading import Assembly, Found, Reading, Versions
from gpupartition.controller.records import DRIVERS, NODE_STATES, POLICIES, Record
from gpupartition.controller.remembered import Recent
from gpupartition.controller.scope import ledger_of
from gpupartition.controller.stopwatch import Stopwatch
from gpupartition.controller.taint_rule import TaintRule
from gpupartition.controller.together import Together
from gpupartition.controller.trimmed import claim_pools, trim_claim, trim_pod
from gpupartition.domain.backend import Kept
from gpupartition.domain.groups import Group
from gpupartition.domain.holders import Holder, holders
from gpupartition.domain.world import AT_REST, Limits, only_closes_or_opens
from gpupartition.kube import (
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Client,
    Kind,
    Object,
)
from gpupartition.kube.reflector import key_of

T = TypeVar("T")

# Phases in which the holders decide something; elsewhere the whole cluster's claims need not be listed.
HOLDERS_MATTER = frozenset({Phase.DRAINING, Phase.APPLYING, Phase.ROLLING_BACK})
# Phases in which a group's pool may be written for the first time, so that whoever else has it has to be known.
_BEGINNING = AT_REST | {Phase.ADMITTED, Phase.DRAINING, Phase.APPLYING}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Live:
    """The record, as `body` too, and what was read after it. `slices`: as `Reader._slices` lists them; None: they decide nothing now."""

    body: Object
    record: Record
    policy: Object | None
    driver: Object
    node: Object | None
    rule: Object | None
    slices: list[PackedSlice] | None
    pods: list[Object]


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
        self._rule = TaintRule(client, watches, on_refused=intents.rules_are_gone)
        self._together: Together[Any] = Together()
        self._policy = Recent(Policy.read)
        self._ledger = Recent(ledger_of)
        self._assembly = Assembly(client, caches, intents, Durations(watches), limits, occupants)

    async def glance(self, name: str, policies: dict[str, Object], drivers: dict[str, Object]) -> Reading | None:
        """Read from the caches alone; None when there is no record, or its driver is not known (yet)."""
        record = self._caches.records.get(name)
        driver_body = drivers.get(record.spec.driver) if record else None
        if record is None or driver_body is None:
            return None
        driver = await self._intents.driver(driver_body)
        policy_body = policies.get(record.spec.policy_ref.name)
        return await self.look(record, driver, driver_body, self._policy(policy_body) if policy_body else None)

    async def look(self, record: Record, driver: Driver, driver_body: Object, policy: Policy | None) -> Reading:
        """Read the node of this record from the caches alone."""
        name, node = record.name, self._caches.nodes.get(record.name)
        rule_name = names.taint_rule(name, record.spec.node_uid)
        group = self._intents.groups.of(driver, policy, node, record.state)
        pool = driver.backend.pool_name(driver.spec, name, group)
        found = Found(
            now=clock.now(),
            body={"metadata": {"name": name}},
            record=record,
            ledger=self._ledger(driver_body),
            driver=driver,
            policy=policy,
            node=node,
            group=group,
            slices=self._caches.slices_on(name, driver.driver_name, group),
            pods=await self._pods(driver, name, live=False),
            rule=self._caches.rule(rule_name),
            held=_held(driver, name, pool, self._caches.claims.by("pool", pool)),
            former=self._former(name, group),
            versions=None,
        )
        return await self._assembly.reading(found)

    async def read(self, known: Record, drivers: dict[str, Object]) -> Reading:
        """Read live; the copies only say where to look, and what there was before.

        Raises NotFound (no record), Moved, and Refused when the driver cannot be read.
        """
        copy, driver = await self._driver(known, drivers)
        before = self._copied(known, driver)
        live = await self._live(await self._client.get(NODE_STATES, known.name), driver)
        if not before.stand(self._versions(live, driver)):
            # The copies are behind, or something moves. What was just read comes before the record, when that is read once more.
            before = self._versions(live, driver)
            live = await self._live(await self._client.get(NODE_STATES, known.name), driver)
        return await self._reading(known, copy, driver, before, live, drivers)

    async def read_on(self, reading: Reading, drivers: dict[str, Object], body: Object) -> Reading:
        """Read again after a write of ours; `body` is the record as the server has had it since. Raises as `read` does."""
        assert reading.versions is not None, "only what was read live is read on"
        copy, driver = await self._driver(reading.record, drivers)
        live = await self._live(body, driver)
        return await self._reading(reading.record, copy, driver, reading.versions, live, drivers)

    async def stands(self, reading: Reading) -> bool:
        """Whether the record is still the one that was read."""
        body = await self._client.find(NODE_STATES, reading.record.name)
        return body is not None and body["metadata"]["resourceVersion"] == reading.record.resource_version

    async def _driver(self, known: Record, drivers: dict[str, Object]) -> tuple[Object, Driver]:
        copy = drivers.get(known.spec.driver) or await self._client.get(DRIVERS, known.spec.driver)
        return copy, await self._intents.driver(copy)

    async def _live(self, body: Object, driver: Driver) -> _Live:
        """All that decides, read now, after the record."""
        record = Record.read(body)
        name, state, spec = record.name, record.state, record.spec
        # A list is answered once the server's copy has caught up with all that was just written, which takes longer than the rest of a turn.
        decides = not only_closes_or_opens(state.phase, has_token=bool(state.token)) or bool(label_of(driver))
        policy, driver_body, node, rule, slices, pods = await asyncio.gather(
            self._shared(self._client.find, POLICIES, spec.policy_ref.name),
            self._shared(self._client.get, DRIVERS, spec.driver),
            self._client.find(NODES, name),
            self._rule.of(record, driver.taint_rules),
            self._slices(name, driver) if decides else _nothing(),
            self._pods(driver, name, live=decides),
        )
        return _Live(
            body=body, record=record, policy=policy, driver=driver_body, node=node, rule=rule, slices=slices, pods=pods
        )

    async def _shared(self, ask: Callable[[Kind, str], Awaitable[T]], kind: Kind, name: str) -> T:
        """What many nodes ask for in the same moment."""
        found: T = await self._together.read((kind, name), partial(ask, kind, name))
        return found

    async def _reading(
        self, known: Record, copy: Object, driver: Driver, before: Versions, live: _Live, drivers: dict[str, Object]
    ) -> Reading:
        name, record, node, versions = known.name, live.record, live.node, self._versions(live, driver)
        if record.spec != known.spec or not before.stand(versions):
            raise Moved(name)
        if _spec_version(live.driver) != _spec_version(copy):
            drivers[known.spec.driver] = live.driver
            raise Moved(name)
        policy, ledger = self._policy(live.policy) if live.policy else None, self._ledger(live.driver)
        group = self._intents.groups.of(driver, policy, node, record.state)
        of_pool = self._caches.packed_on(name, driver.driver_name, group)
        if live.slices is not None:
            of_pool = _of(versions.group, live.slices)
            if group is None:  # of those that nobody here may write the copy is enough, whoever put them there
                of_pool += self._caches.afloat(name, driver.driver_name)
        pool = driver.backend.pool_name(driver.spec, name, group)
        beginning = record.state.phase in AT_REST and grant_of(ledger, name) is not None
        ends_a_plugin = record.state.phase is Phase.FAILED and record.state.restart is not None
        retires = record.state.phase in AT_REST and bool(record.state.retiring)
        if record.state.phase in HOLDERS_MATTER or beginning or ends_a_plugin or retires:
            held = await self._together.read(RESOURCE_CLAIMS, self._claims)
            claims: Iterable[Object] = held.get(pool, ())
        else:
            claims = self._caches.claims.by("pool", pool)
        leads = group is not None and group.leader == name and record.state.phase in _BEGINNING
        elsewhere = in_the_way(driver, record, await self._records(), live.slices or ()) if leads else ""
        found = Found(
            now=clock.now(),
            body=live.body,
            record=record,
            ledger=ledger,
            driver=driver,
            policy=policy,
            node=node,
            group=group,
            slices=Kept(of_pool, PackedSlice.body),
            pods=live.pods,
            rule=live.rule,
            held=_held(driver, name, pool, claims),
            elsewhere=elsewhere,
            former=self._former(name, group),
            versions=versions,
        )
        return await self._assembly.reading(found)

    def _former(self, name: str, group: Group | None) -> NodeStateStatus | None:
        """What the record says from which this node, which leads its group, has still to take the pool."""
        record = self._caches.records.get(group.former) if group is not None and group.leader == name else None
        return record.state if record is not None else None

    def _copied(self, known: Record, driver: Driver) -> Versions:
        """What may be written, as the copies have it."""
        group = self._intents.groups.name(driver, self._caches.nodes.get(known.name), known.state)
        slices = self._caches.packed_on(known.name, driver.driver_name, Group(name=group, leader="") if group else None)
        return Versions(
            node=self._caches.nodes.version(known.name),
            rule=_version(self._caches.rule(names.taint_rule(known.name, known.spec.node_uid))),
            group=group,
            slices=_versions(_of(group, slices)) if _are_ours(driver) else None,
        )

    def _versions(self, live: _Live, driver: Driver) -> Versions:
        """The same, as it was read after the record."""
        group = self._intents.groups.name(driver, live.node, live.record.state)
        written = live.slices if _are_ours(driver) else None
        return Versions(
            node=_version(live.node),
            rule=_version(live.rule),
            group=group,
            slices=_versions(_of(group, written)) if written is not None else None,
        )

    async def _claims(self) -> Mapping[str, list[Object]]:
        """Who has devices now, by pool. There is no selector for it: all claims are listed, and kept as the copies are."""

        def keep(body: Object) -> Object | None:
            claim, copy = trim_claim(body), self._caches.claims.get(key_of(body))
            return copy if claim == copy else claim

        found: defaultdict[str, list[Object]] = defaultdict(list)
        for claim in (await self._client.list(RESOURCE_CLAIMS, keep=keep)).items:
            for pool in claim_pools(claim):
                found[pool].append(claim)
        return found

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
                found += (await self._caches.namespace(namespace)).pods.by("node", node)
        return found


def _of(group: str, slices: Iterable[PackedSlice]) -> list[PackedSlice]:
    """Those of a group's pool; "" for those of nodes that are in none."""
    return [each for each in slices if each.group == group]


def _versions(slices: Iterable[PackedSlice]) -> dict[str, str]:
    return {each.name: each.version for each in slices}


def _version(body: Object | None) -> str:
    return str(body["metadata"]["resourceVersion"]) if body is not None else ""


def _held(driver: Driver, node: str, pool: str, claims: Iterable[Object]) -> tuple[Holder, ...]:
    return holders(claims, node=node, driver=driver.driver_name, pool=pool)


def _are_ours(driver: Driver) -> bool:
    """Whether the slices are among what may be written: where no driver runs, the operator itself publishes."""
    return not driver.backend.namespaces(driver.spec)


def _spec_version(driver: Object) -> tuple[str, int]:
    return driver["metadata"]["uid"], driver["metadata"].get("generation", 0)


async def _nothing() -> None:
    return None
