"""Reads one node, in the order that makes writes safe.

    objects that may be written ─▶ the record ─▶ facts, and those objects again

If an object is not the same before and after the record was read, nothing is decided. Otherwise what is written under its
resourceVersion is written to exactly what the record, as read, speaks of: a worker that was stopped in between cannot come too late.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from gpupartition import names
from gpupartition.api.v1alpha1 import DrainMode, DriverStatus, Phase, Rollout
from gpupartition.controller.caches import (
    Caches,
    claim_pools,
    condition,
    since_ready,
    trim,
    trim_claim,
    trim_node,
    trim_pod,
)
from gpupartition.controller.durations import Durations
from gpupartition.controller.facts import (
    configs_known,
    grant_of,
    held_back,
    is_abandoned,
    is_back,
    last_touched,
    last_written,
    stands,
    way_back_of,
)
from gpupartition.controller.groups import in_the_way
from gpupartition.controller.intent import NOTHING, Driver, Intent, Intents, Policy, known, revert
from gpupartition.controller.occupants import EVICTING, Occupants, Seen
from gpupartition.controller.records import DRIVERS, NODE_STATES, POLICIES, Record
from gpupartition.controller.stopwatch import Stopwatch
from gpupartition.domain.ahead import ahead
from gpupartition.domain.backend import Config, NodeFacts, Observation
from gpupartition.domain.entries import identity, is_entry
from gpupartition.domain.groups import Group
from gpupartition.domain.holders import Holder, holders
from gpupartition.domain.lifecycle import ABANDONED
from gpupartition.domain.others import at_work, skips
from gpupartition.domain.pool import Pool
from gpupartition.domain.quiesce import holds, in_force, quiesce
from gpupartition.domain.retiring import retired
from gpupartition.domain.world import AT_REST, Limits, World, only_closes_or_opens
from gpupartition.domain.writes import Subject
from gpupartition.kube import (
    CONFIG_MAPS,
    DAEMON_SETS,
    DEVICE_TAINT_RULES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Client,
    Kind,
    NotFound,
    Object,
)

# Phases in which the holders decide something; elsewhere the whole cluster's claims need not be listed.
HOLDERS_MATTER = frozenset({Phase.DRAINING, Phase.APPLYING, Phase.ROLLING_BACK})
_BEFORE = frozenset({Phase.ADMITTED, Phase.QUIESCING, Phase.DRAINING})  # nothing of the node has been changed yet
_BEGINNING = AT_REST | {
    Phase.ADMITTED,
    Phase.DRAINING,
    Phase.APPLYING,
}  # a group's pool may be written for the first time
NOBODY = Observation(assignment=None, step="", running="", ready=False, pool=Pool())


class Moved(Exception):  # noqa: N818  (reads as what happened)
    """Something changed while it was being read: look again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What there is of a node beside its record, and who has its pool."""

    node: Object | None
    group: Group | None
    slices: list[Object]
    pods: list[Object]
    rule: Object | None
    claims: list[Object]
    elsewhere: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One node, read: the record as the server has it, everything decisions depend on, and what may be written."""

    body: Object
    record: Record
    world: World
    subject: Subject
    intent: Intent
    driver: Driver
    policy: Policy | None
    leaving: bool
    node: Object | None


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
        self._occupants = occupants
        self._caches = caches
        self._intents = intents
        self._durations = Durations(watches)
        self._limits = limits

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
        return await self._reading(
            body={"metadata": {"name": name}},
            record=record,
            driver_body=driver_body,
            driver=driver,
            policy=policy,
            found=_Found(
                node=node,
                group=group,
                slices=self._caches.slices_on(name, driver.driver_name, group.name if group else ""),
                pods=await self._pods(driver, name, live=False),
                rule=self._caches.rule(rule_name),
                claims=list(self._caches.claims.by("pool", pool)),
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
        before = await self._objects(known, driver, shared, slices=ours)
        body = await self._client.get(NODE_STATES, name)
        record = Record.read(body)
        # A list is answered once the server's copy has caught up with all that was just written, which takes longer than the rest of a turn.
        live = ours or not only_closes_or_opens(record.state.phase, has_token=bool(record.state.token))
        policy_body, driver_body, after, pods = await asyncio.gather(
            self._maybe(POLICIES, record.spec.policy_ref.name),
            self._client.get(DRIVERS, record.spec.driver),
            self._objects(known, driver, shared, slices=live),
            self._pods(driver, name, live=live),
        )
        if record.spec != known.spec or _versions(before) != _versions(after, slices=ours):
            raise Moved(name)
        if _spec_version(driver_body) != _spec_version(copy):
            drivers[known.spec.driver] = driver_body
            raise Moved(name)
        node, rule, slices = after if live else (*after[:2], self._caches.slices_on(name, driver.driver_name))
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
            claims = await self._claims(pool)
        else:
            claims = list(self._caches.claims.by("pool", pool))
        leads = group is not None and group.leader == name and record.state.phase in _BEGINNING
        return await self._reading(
            body=body,
            record=record,
            driver_body=driver_body,
            driver=driver,
            policy=policy,
            found=_Found(
                node=node,
                group=group,
                slices=slices,
                pods=pods,
                rule=rule,
                claims=claims,
                elsewhere=await in_the_way(self._client, driver, record) if leads else "",
            ),
            live=True,
        )

    async def _objects(
        self, known: Record, driver: Driver, group: str, *, slices: bool
    ) -> tuple[Object | None, Object | None, list[Object]]:
        name = known.name
        return await asyncio.gather(
            self._maybe(NODES, name),
            self._maybe(driver.taint_rules, names.taint_rule(name, known.spec.node_uid)),
            self._slices(name, driver, group) if slices else _none(),
        )

    async def _claims(self, pool: str) -> list[Object]:
        """Who has devices of this pool now. There is no selector for that, and of a large cluster's claims only these are kept."""

        def of_pool(body: Object) -> Object | None:
            claim = trim_claim(body)
            return claim if claim is not None and pool in claim_pools(claim) else None

        return (await self._client.list(RESOURCE_CLAIMS, keep=of_pool)).items

    async def _slices(self, name: str, driver: Driver, group: str) -> list[Object]:
        fields, labels = f"spec.driver={driver.driver_name}", f"{names.NODE_GROUP}={group}"
        if not group:
            fields, labels = f"spec.nodeName={name},{fields}", ""
        found = await self._client.list(RESOURCE_SLICES, field_selector=fields, label_selector=labels)
        return [trim(s) for s in found.items]

    async def _maybe(self, kind: Kind | None, name: str, namespace: str | None = None) -> Object | None:
        if kind is None:
            return None
        try:
            return await self._client.get(kind, name, namespace=namespace)
        except NotFound:
            return None

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

    async def _reading(
        self,
        *,
        body: Object,
        record: Record,
        driver_body: Object,
        driver: Driver,
        policy: Policy | None,
        found: _Found,
        live: bool,
    ) -> Reading:
        name, state, now = record.name, record.state, datetime.now(UTC)
        node, group, rule, claims = found.node, found.group, found.rule, found.claims
        alive = node is not None and node["metadata"]["uid"] == record.spec.node_uid
        facts = (
            NodeFacts(node=node, slices=found.slices, pods=found.pods, known=known(state), group=group)
            if node is not None and alive
            else None
        )
        observed = driver.backend.observe(driver.spec, facts, driver.cluster) if facts else NOBODY
        if policy is not None and policy.uid != record.spec.policy_ref.uid:
            policy = None
        leaving = policy is None or policy.deleting or not policy.selects(node if alive else None)
        intent = self._intent(driver, policy, record, node if alive else None, observed, leaving=leaving)
        way_back, no_way_back = way_back_of(driver, facts, observed, state)
        held = await self._holders(driver, record, observed, intent, claims, group, live=live)
        # Once it is on record, the way back is not made anew from what a node is on its way through.
        back = way_back if state.phase in _BEFORE else None
        configs = await self._configs(intent, back, live=live and state.phase not in AT_REST)
        touched, youngest = last_touched(configs, now), last_written(configs)
        if state.phase in AT_REST:
            configs = configs_known(intent, driver)
        ledger = DriverStatus.model_validate(driver_body.get("status", {})).in_flight
        rollout = policy.spec.rollout if policy is not None and policy.spec is not None else Rollout()
        seen = Seen(holders=held)
        if live and self._occupants is not None and rollout.drain.mode is DrainMode.EVICT and state.phase in EVICTING:
            seen = await self._occupants.read(held, observed, state, policy, now)
        since = since_ready(node, ready=False)
        closed_by = holds(state, node if alive else None, rule)
        watched = self._durations.closed(name, in_force(closed_by), live=live)
        world = World(
            now=now,
            fresh=secrets.token_hex(8),
            node_is_there=alive,
            node_ready=node is not None and condition(node, "Ready") == "True",
            boot_id=str(node["status"].get("nodeInfo", {}).get("bootID", "")) if node else "",
            wanted=intent.wanted,
            refused=intent.refused,
            left_out=intent.left_out,
            revision=policy.status.revision if policy else "",
            grant=grant_of(ledger, name),
            grant_stands=stands(grant_of(ledger, name), record),
            way_back=way_back,
            no_way_back=no_way_back,
            config_touched=touched,
            observed=observed,
            quiesce=quiesce(closed_by, watched),
            quiesce_by=driver.quiesce,
            holders=seen.holders,
            idle=self._durations.idle(record, seen.holders, live=live),
            matched=self._durations.matched(record, observed, live=live),
            differs=self._durations.differs(record, observed, node),
            plugin_seen=self._durations.plugin(record, observed),
            retry=policy.retry_of(name) if policy else "",
            drain=rollout.drain,
            limits=self._limits.standing_still(rollout.min_ready_seconds).of_driver(
                driver.backend.applying(driver.spec), seen_late=bool(driver.backend.documents(driver.spec))
            ),
            on_failure=rollout.on_failure,
            held_back=held_back(policy, now, frozen=self._caches.freezing is not None),
            occupants=seen.occupants,
            monitors=seen.monitors,
            no_eviction=seen.no_eviction,
            away=now - since if since is not None else timedelta(0),
            ready_since=since_ready(node),
            at_work=at_work(node) if node is not None else "",
            skip=node is not None and skips(node),
            abandoned=is_abandoned(policy, node),
            config_written=youngest,
            elsewhere=found.elsewhere,
            live=driver.backend.live(driver.spec, driver.cluster),
            in_use=self._in_use(driver, record, observed, claims, group),
        )
        subject = Subject(
            node_name=name,
            node_uid=record.spec.node_uid,
            driver=driver.spec,
            driver_name=driver.driver_name,
            backend=driver.backend,
            facts=facts,
            rule=rule,
            taint_rules=(driver.taint_rules or DEVICE_TAINT_RULES).api_version,
            configs=configs,
            group=group,
        )
        return Reading(
            body=body,
            record=record,
            world=world,
            subject=subject,
            intent=intent,
            driver=driver,
            policy=policy,
            leaving=leaving,
            node=node if alive else None,
        )

    def _intent(
        self,
        driver: Driver,
        policy: Policy | None,
        record: Record,
        node: Object | None,
        observed: Observation,
        *,
        leaving: bool,
    ) -> Intent:
        if node is None:
            return NOTHING
        if not leaving and policy is not None:
            return self._intents.compile(driver, policy, trim_node(node), record.state)
        given_up = record.state.phase is Phase.FAILED or record.state.reason == ABANDONED
        if given_up and is_abandoned(policy, node):
            return NOTHING
        wants_revert = policy is not None and policy.spec is not None and policy.spec.deletion_policy == "Revert"
        original = revert(record.state.original) if wants_revert else None
        if original is None or is_back(original, observed, record):
            return NOTHING
        return Intent(wanted=original, reverting=True)

    async def _holders(
        self,
        driver: Driver,
        record: Record,
        observed: Observation,
        intent: Intent,
        claims: list[Object],
        group: Group | None,
        *,
        live: bool,
    ) -> tuple[Holder, ...]:
        can = driver.backend.live(driver.spec, driver.cluster)
        change = ahead(record.state, observed, intent.wanted, driver.backend.disturbs, live=can)
        if change is None:
            return ()
        held = self._held(driver, record, claims, group)
        if live and change.change == "Restart":
            held = await self._mark_terminating(held)
        return change.blocked_by(held)

    @staticmethod
    def _held(driver: Driver, record: Record, claims: list[Object], group: Group | None) -> tuple[Holder, ...]:
        pool = driver.backend.pool_name(driver.spec, record.name, group)
        return holders(claims, node=record.name, driver=driver.driver_name, pool=pool)

    def _in_use(
        self, driver: Driver, record: Record, observed: Observation, claims: list[Object], group: Group | None
    ) -> frozenset[str] | None:
        """Those of the retired devices of a node at rest that somebody has; None until that can be told."""
        settled = self._durations.retired(record, observed) >= self._limits.settle
        if record.state.phase not in AT_REST or not record.state.retiring or not settled:
            return None
        return retired(record.state).names & {holder.device for holder in self._held(driver, record, claims, group)}

    async def _mark_terminating(self, held: tuple[Holder, ...]) -> tuple[Holder, ...]:
        ending = set()
        for pod in sorted({p for h in held for p in h.pods}):
            namespace, _, name = pod.partition("/")
            body = await self._maybe(PODS, name, namespace)
            if body is not None and "deletionTimestamp" in body["metadata"]:
                ending.add(pod)
        return tuple(replace(h, terminating=h.terminating or bool(ending & set(h.pods))) for h in held)

    async def _configs(
        self, intent: Intent, way_back: Config | None, *, live: bool
    ) -> list[tuple[Object, Object | None]]:
        if not live:
            return []
        wanted = [*(intent.wanted.objects if intent.wanted else ()), *(way_back.objects if way_back else ())]
        bodies = {identity(b): b for b in wanted}
        kinds = [CONFIG_MAPS if is_entry(b) else DAEMON_SETS for b in bodies.values()]
        found = await asyncio.gather(
            *(self._maybe(kind, name, space) for kind, (space, name, _) in zip(kinds, bodies, strict=True))
        )
        return [(dict(body), present) for body, present in zip(bodies.values(), found, strict=True)]


def _versions(objects: tuple[Object | None, Object | None, list[Object]], *, slices: bool = True) -> list[Any]:
    node, rule, published = objects
    single = [o["metadata"]["resourceVersion"] if o else "" for o in (node, rule)]
    written = published if slices else []
    return [*single, *sorted((s["metadata"]["name"], s["metadata"]["resourceVersion"]) for s in written)]


def _are_ours(driver: Driver) -> bool:
    """Whether the slices are among what may be written: where no driver runs, the operator itself publishes."""
    return not driver.backend.namespaces(driver.spec)


def _spec_version(driver: Object) -> tuple[str, int]:
    return driver["metadata"]["uid"], driver["metadata"].get("generation", 0)


async def _none() -> list[Object]:
    return []
