"""Level-triggered, one policy at a time: accept, take nodes on, admit, sum up."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from gpupartition import names
from gpupartition.api.v1alpha1 import (
    Condition,
    DrainMode,
    DriverStatus,
    Grant,
    NodeStateStatus,
    Phase,
    PolicyStatus,
    ProfileCapacity,
)
from gpupartition.controller.caches import Caches, condition
from gpupartition.controller.collect import Collector
from gpupartition.controller.events import Recorder
from gpupartition.controller.intent import Driver, Intent, Intents, Policy, labels, revision
from gpupartition.controller.metrics import IN_FLIGHT, NODES
from gpupartition.controller.records import DRIVERS, NODE_STATES, POLICIES, Record, new_record
from gpupartition.domain.admission import Admission, Rules, Standing, admit, resolve
from gpupartition.domain.backend import Config, NodeFacts, Problem, Refused, Turn
from gpupartition.domain.capacity import by_profile
from gpupartition.domain.conditions import Rollout, summarise
from gpupartition.domain.rest import same_layout
from gpupartition.domain.world import AT_REST
from gpupartition.kube import Client, Conflict, NotFound, Object
from gpupartition.settings import Settings

log = logging.getLogger(__name__)

SOON = timedelta(seconds=0.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """A policy with everything that is about it, as read in this turn."""

    body: Object
    policy: Policy
    driver: Driver
    driver_body: Object
    nodes: tuple[Object, ...]  # selected, and nobody else's
    contested: tuple[str, ...]
    intents: dict[str, Intent]
    problems: tuple[Problem, ...]
    records: dict[str, Record]


class PolicyLoop:
    """Brings one policy one turn further. `reconcile` returns when to look again, or None: when something changes."""

    def __init__(
        self,
        client: Client,
        caches: Caches,
        intents: Intents,
        recorder: Recorder,
        settings: Settings,
        *,
        policies: dict[str, Object],
        on_node: Callable[[str], None],
    ) -> None:
        self._client = client
        self._caches = caches
        self._intents = intents
        self._recorder = recorder
        self._settings = settings
        self._policies = policies
        self._on_node = on_node
        self._collector = Collector(client, caches)
        self._written: dict[str, datetime] = {}

    async def reconcile(self, name: str) -> timedelta | None:
        """One turn."""
        try:
            body = await self._client.get(POLICIES, name)
        except NotFound:
            self._policies.pop(name, None)
            for record in self._caches.records.by("policy", name):
                self._on_node(record.name)
            return None
        self._policies[name] = body
        policy = Policy.read(body)
        try:
            driver_body = await self._client.get(DRIVERS, policy.spec.driver if policy.spec else "")
            driver = await self._intents.driver(driver_body)
        except (NotFound, ValueError):
            return await self._refuse(body, policy, _no_driver(policy))
        except Refused as refused:
            return await self._refuse(body, policy, *refused.problems)
        scope = self._scope(body, policy, driver, driver_body)
        await self._driver_conditions(scope)
        if not policy.deleting and policy.spec is not None and policy.spec.mode == "Enforce" and not scope.problems:
            await self._take_on(scope)
        for record in scope.records.values():
            self._nudge(scope, record)
        admission = await self._admit(scope)
        if policy.deleting and await self._finish(scope):
            return None
        again = await self._sum_up(scope, admission)
        if admission.reason == "" and not policy.deleting:
            await self._unpin(scope)
            await self._collector.collect(driver)
        return again

    # ------------------------------------------------------------------------------------------------------------- reading

    def _scope(self, body: Object, policy: Policy, driver: Driver, driver_body: Object) -> Scope:
        records = {
            r.name: r for r in self._caches.records.by("policy", policy.name) if r.spec.policy_ref.uid == policy.uid
        }
        nodes, contested, intents, problems = [], [], {}, list(policy.problems)
        for name, node in sorted(self._caches.nodes.items()):
            if policy.deleting or not policy.selects(node):
                continue
            if name not in records and self._is_contested(policy, name, node):
                contested.append(name)
                continue
            nodes.append(node)
            intent = intents[name] = self._intents.compile(driver, policy, node)
            problems += [p for p in intent.problems if p not in problems]
        if not nodes:
            problems += [p for p in driver.problems if p not in problems]
        return Scope(
            body=body,
            policy=policy,
            driver=driver,
            driver_body=driver_body,
            nodes=tuple(nodes),
            contested=tuple(contested),
            intents=intents,
            problems=tuple(problems),
            records=records,
        )

    def _is_contested(self, policy: Policy, name: str, node: Object) -> bool:
        """Another policy has the node, or wants it as much as we do."""
        if self._caches.records.get(name) is not None:
            return True
        others = (Policy.read(b) for n, b in self._policies.items() if n != policy.name)
        return any(p.selects(node) and not p.deleting for p in others)

    def _standing(self, scope: Scope, name: str, record: Record | None) -> Standing:
        node = self._caches.nodes.get(name)
        state = record.state if record else NodeStateStatus()
        intent = scope.intents.get(name)
        target, wanted = state.target, intent.wanted if intent else None
        if wanted is None and state.phase not in AT_REST and target is not None:
            aimed = target.fingerprint
        else:
            aimed = wanted.fingerprint if wanted else ""
        on_target = target is not None and bool(aimed) and target.fingerprint == aimed
        uid = record.spec.node_uid if record else ""
        alive = node is not None and node["metadata"]["uid"] == uid
        failed = state.phase in {Phase.ROLLED_BACK, Phase.FAILED}
        asked_again = bool(scope.policy.retry) and scope.policy.retry != state.retry
        drain = scope.policy.spec.rollout.drain.mode if scope.policy.spec else DrainMode.WHEN_IDLE
        since_not_ready = _not_ready_since(node)
        return Standing(
            node=name,
            uid=uid,
            zone=labels(node).get("topology.kubernetes.io/zone", "") if node else "",
            phase=state.phase,
            at_target=state.phase is Phase.UP_TO_DATE and (on_target or intent is None) and alive,
            towards=on_target,
            startable=record is not None and alive and wanted is not None and state.phase is not Phase.SKIPPED,
            halted=failed and on_target and not asked_again,
            blocked=bool(state.blockers) and state.phase is Phase.PENDING and drain is DrainMode.WHEN_IDLE,
            holders=len(state.blockers),
            ready=node is not None and condition(node, "Ready") == "True",
            ignored=since_not_ready is not None
            and datetime.now(UTC) - since_not_ready > self._settings.ignore_not_ready,
            attempts=state.attempts,
        )

    # ------------------------------------------------------------------------------------------------------------- acting

    async def _take_on(self, scope: Scope) -> None:
        """Make the record of every node that has none: whoever creates it first has the node."""
        for node in scope.nodes:
            meta = node["metadata"]
            if meta["name"] in scope.records or "deletionTimestamp" in meta:
                continue
            body = new_record(
                node=meta["name"],
                node_uid=meta["uid"],
                policy=scope.policy.name,
                policy_uid=scope.policy.uid,
                driver=scope.driver.name,
            )
            try:
                created = await self._client.create(NODE_STATES, body)
            except Conflict:
                continue
            scope.records[meta["name"]] = Record.read(created)

    def _nudge(self, scope: Scope, record: Record) -> None:
        """Have a node looked at whose record does not say what is wanted now; events about policies do not name nodes."""
        intent, state = scope.intents.get(record.name), record.state
        if (
            intent is None
            or state.phase not in AT_REST
            or (
                intent.wanted is not None
                and (state.target is None or state.target.fingerprint != intent.wanted.fingerprint)
            )
            or (state.phase is Phase.ROLLED_BACK and scope.policy.retry != state.retry)
        ):
            self._on_node(record.name)

    async def _admit(self, scope: Scope) -> Admission:
        admission = self._decide(scope, scope.records, scope.driver_body)
        if not admission.nodes and not self._ledger_is_wrong(scope, scope.driver_body, scope.records):
            return admission
        # Decide again on live reads, ledger first: whatever changes after it makes the write below fail.
        body = await self._client.get(DRIVERS, scope.driver.name)
        live = {r.name: r for r in map(Record.read, (await self._client.list(NODE_STATES)).items)}
        mine = {n: r for n, r in live.items() if r.spec.policy_ref.uid == scope.policy.uid}
        admission = self._decide(scope, mine, body, everybody=live.values())
        await self._pin(scope)
        status = DriverStatus.model_validate(body.get("status", {}))
        entries = [*status.in_flight, *self._lost_grants(scope, status, mine)]
        known = {g.node for g in entries}
        now = datetime.now(UTC)
        entries += [
            Grant(node=n, uid=mine[n].spec.node_uid, policy=scope.policy.name, token=secrets.token_hex(8), since=now)
            for n in admission.nodes
            if n not in known
        ]
        await self._adopt_orphans(scope, status, live)
        if len(entries) == len(status.in_flight):
            return admission
        new = status.model_copy(update={"in_flight": entries})
        try:
            await self._client.replace(DRIVERS, {**body, "status": dump(new)}, subresource="status")
        except Conflict:
            return replace(admission, nodes=(), reason="RollingOut")
        for name in admission.nodes:
            log.info("admitted", extra={"node": name, "policy": scope.policy.name})
            self._on_node(name)
        return admission

    def _decide(
        self, scope: Scope, records: dict[str, Record], driver_body: Object, *, everybody: Iterable[Record] = ()
    ) -> Admission:
        policy = scope.policy
        if policy.spec is None or (policy.spec.mode == "Observe" and not policy.deleting):
            return Admission()
        ledger = DriverStatus.model_validate(driver_body.get("status", {})).in_flight
        standings = [self._standing(scope, name, record) for name, record in sorted(records.items())]
        reverting = {n for n, r in records.items() if self._reverts(scope, r)}
        standings = [replace(s, startable=True) if s.node in reverting and s.uid else s for s in standings]
        if policy.deleting:
            standings = [replace(s, at_target=s.node not in reverting) for s in standings]
        others = [r for r in (everybody or self._caches.records.values()) if r.spec.driver == scope.driver.name]
        driver_nodes = {r.name for r in others} | set(records)
        matched = len(scope.nodes) or len(records)
        rollout = policy.spec.rollout
        rules = Rules(
            max_unavailable=resolve(rollout.max_unavailable, matched),
            driver_max_unavailable=resolve(scope.driver.spec.max_unavailable, len(driver_nodes)),
            limit=len(records) if policy.deleting else resolve(rollout.limit, matched),
            paused=rollout.paused and not policy.deleting,
            frozen=self._caches.frozen,
            stopped=_stopped(scope),
        )
        if scope.problems and not rules.stopped:
            return Admission()
        down = {r.name for r in others if r.spec.policy_ref.uid != policy.uid and self._is_down(r)}
        return admit(nodes=standings, others=down, ledger=ledger, rules=rules)

    def _reverts(self, scope: Scope, record: Record) -> bool:
        """Whether a node that the policy gives up has to be brought back to what it had before."""
        spec = scope.policy.spec
        spec, state = scope.policy.spec, record.state
        gives_up = scope.policy.deleting or record.name not in {n["metadata"]["name"] for n in scope.nodes}
        if not gives_up or spec is None or spec.deletion_policy != "Revert" or state.original is None:
            return False
        return state.phase is Phase.PENDING and same_layout(state.target, state.original)

    def _is_down(self, record: Record) -> bool:
        node = self._caches.nodes.get(record.name)
        return record.state.phase not in AT_REST or node is None or condition(node, "Ready") != "True"

    def _ledger_is_wrong(self, scope: Scope, driver_body: Object, records: dict[str, Record]) -> bool:
        status = DriverStatus.model_validate(driver_body.get("status", {}))
        vanished = [g for g in status.in_flight if g.policy == scope.policy.name and g.node not in records]
        return bool(vanished or self._lost_grants(scope, status, records))

    def _lost_grants(self, scope: Scope, status: DriverStatus, records: dict[str, Record]) -> list[Grant]:
        """Entries that the ledger should have: it is rebuilt from the records that are not at rest."""
        held = {(g.node, g.token) for g in status.in_flight}
        return [
            Grant(
                node=r.name,
                uid=r.spec.node_uid,
                policy=scope.policy.name,
                token=r.state.token,
                since=r.state.since or datetime.now(UTC),
            )
            for r in sorted(records.values(), key=lambda r: r.name)
            if r.state.phase not in AT_REST and r.state.token and (r.name, r.state.token) not in held
        ]

    async def _adopt_orphans(self, scope: Scope, status: DriverStatus, live: dict[str, Record]) -> None:
        """An entry whose node and record are gone leaves the ledger only through a record that takes its token first."""
        for grant in status.in_flight:
            if (
                grant.policy != scope.policy.name
                or grant.node in live
                or self._caches.nodes.get(grant.node) is not None
            ):
                continue
            body = new_record(
                node=grant.node,
                node_uid=grant.uid,
                policy=scope.policy.name,
                policy_uid=scope.policy.uid,
                driver=scope.driver.name,
                token=grant.token,
            )
            try:
                await self._client.create(NODE_STATES, body)
            except Conflict:
                continue

    async def _pin(self, scope: Scope) -> None:
        """A policy with nodes in flight must not vanish under them."""
        meta = scope.body["metadata"]
        if names.FINALIZER not in meta.get("finalizers", ()) and not scope.policy.deleting:
            await self._finalizers(scope, [*meta.get("finalizers", ()), names.FINALIZER])

    async def _unpin(self, scope: Scope) -> None:
        """Nothing is in flight: the policy may be deleted without us, unless deleting it means work."""
        spec, finalizers = scope.policy.spec, scope.body["metadata"].get("finalizers", ())
        busy = any(r.state.phase not in AT_REST or r.state.token for r in scope.records.values())
        if names.FINALIZER in finalizers and not busy and spec is not None and spec.deletion_policy == "Retain":
            await self._finalizers(scope, [f for f in finalizers if f != names.FINALIZER])

    async def _finish(self, scope: Scope) -> bool:
        """Let a deleted policy go once no record is its own and the ledger holds none of its nodes."""
        live = [Record.read(b) for b in (await self._client.list(NODE_STATES)).items]
        mine = [r for r in live if r.spec.policy_ref.uid == scope.policy.uid]
        ledger = DriverStatus.model_validate((await self._client.get(DRIVERS, scope.driver.name)).get("status", {}))
        if mine or any(g.policy == scope.policy.name for g in ledger.in_flight):
            for record in mine:
                self._on_node(record.name)
            return False
        finalizers = scope.body["metadata"].get("finalizers", ())
        if names.FINALIZER in finalizers:
            await self._finalizers(scope, [f for f in finalizers if f != names.FINALIZER])
        return True

    async def _finalizers(self, scope: Scope, finalizers: list[str]) -> None:
        meta = scope.body["metadata"]
        patch = {"metadata": {"resourceVersion": meta["resourceVersion"], "finalizers": finalizers}}
        changed = await self._client.patch(POLICIES, scope.policy.name, patch)
        scope.body["metadata"] = changed["metadata"]

    # ----------------------------------------------------------------------------------------------------------- summing up

    async def _refuse(self, body: Object, policy: Policy, *problems: Problem) -> timedelta | None:
        if policy.spec is None and not problems:
            return None
        if policy.deleting and names.FINALIZER not in body["metadata"].get("finalizers", ()):
            return None
        rollout = Rollout(
            spec=policy.spec,
            nodes=(),
            records={},
            admission=Admission(),
            problems=problems,
            deleting=policy.deleting,
        )
        status = summarise(
            rollout, before=policy.status, generation=policy.generation, now=datetime.now(UTC), revision=""
        )
        await self._write_status(body, policy, status)
        return self._settings.resync

    async def _sum_up(self, scope: Scope, admission: Admission) -> timedelta | None:
        policy = scope.policy
        ledger = DriverStatus.model_validate(scope.driver_body.get("status", {})).in_flight
        granted = frozenset(g.node for g in ledger if g.node in scope.records)
        selected = {n["metadata"]["name"] for n in scope.nodes}
        standings = [self._standing(scope, n, scope.records.get(n)) for n in sorted(selected)]
        fingerprints = [i.wanted.fingerprint for i in scope.intents.values() if i.wanted]
        installation = _stopped(scope)
        rollout = Rollout(
            spec=policy.spec,
            nodes=standings,
            records={n: r.state for n, r in scope.records.items()},
            admission=admission,
            problems=() if installation else scope.problems,
            conflicts=scope.contested,
            would_change=sum(not self._has(scope, n) for n in scope.nodes) if not scope.problems else 0,
            granted=granted & selected | frozenset(admission.nodes),
            deleting=policy.deleting,
        )
        status = summarise(
            rollout,
            before=policy.status,
            generation=policy.generation,
            now=datetime.now(UTC),
            revision=revision(fingerprints),
            capacity=self._capacity(scope),
        )
        if _is_ready(status) and not _is_ready(policy.status) and not await self._really(scope):
            return SOON
        self._measure(scope, ledger)
        return await self._write_status(scope.body, policy, status)

    async def _really(self, scope: Scope) -> bool:
        """Ready is only said after all records were read live, at the current target, with the ledger holding none of them."""
        live = {r.name: r for r in map(Record.read, (await self._client.list(NODE_STATES)).items)}
        ledger = DriverStatus.model_validate((await self._client.get(DRIVERS, scope.driver.name)).get("status", {}))
        names_of_ours = {n for n, r in live.items() if r.spec.policy_ref.uid == scope.policy.uid}
        if any(g.node in names_of_ours for g in ledger.in_flight):
            return False
        return all(live.get(n) == r for n, r in scope.records.items())

    def _has(self, scope: Scope, node: Object) -> bool:
        """Whether a node publishes and runs what is wanted, as far as the caches know."""
        name = node["metadata"]["name"]
        intent, driver = scope.intents.get(name), scope.driver
        if intent is None or intent.wanted is None:
            return False
        record = scope.records.get(name)
        if record is not None and record.state.phase is Phase.UP_TO_DATE:
            return record.state.target is not None and record.state.target.fingerprint == intent.wanted.fingerprint
        facts = self._facts(driver, node)
        seen = driver.backend.observe(driver.spec, facts, driver.cluster)
        return seen.running == intent.wanted.fingerprint and seen.pool.equals(intent.wanted.pool)

    def _facts(self, driver: Driver, node: Object) -> NodeFacts:
        name = node["metadata"]["name"]
        slices = [s for s in self._caches.slices.by("node", name) if s["spec"]["driver"] == driver.driver_name]
        return NodeFacts(node=node, slices=slices, pods=self._caches.pods(driver.backend.namespace(driver.spec), name))

    def _capacity(self, scope: Scope) -> list[ProfileCapacity]:
        slices, claims = [], []
        for node in scope.nodes:
            name = node["metadata"]["name"]
            slices += [
                s for s in self._caches.slices.by("node", name) if s["spec"]["driver"] == scope.driver.driver_name
            ]
            claims += list(self._caches.claims.by("pool", scope.driver.backend.pool_name(scope.driver.spec, name)))
        return by_profile(slices, claims, driver=scope.driver.driver_name)

    def _measure(self, scope: Scope, ledger: Sequence[Grant]) -> None:
        for phase in Phase:
            number = sum(r.state.phase is phase for r in scope.records.values())
            NODES.labels(policy=scope.policy.name, phase=phase).set(number)
        IN_FLIGHT.labels(driver=scope.driver.name).set(len(ledger))

    async def _write_status(self, body: Object, policy: Policy, status: PolicyStatus) -> timedelta | None:
        if status == policy.status:
            return None
        now = datetime.now(UTC)
        same_words = _words(status) == _words(policy.status)
        last = self._written.get(policy.uid)
        if same_words and last is not None and now - last < self._settings.summary:
            return self._settings.summary - (now - last)
        try:
            written = await self._client.replace(POLICIES, {**body, "status": dump(status)}, subresource="status")
        except (Conflict, NotFound):
            return SOON
        self._written[policy.uid] = now
        self._policies[policy.name] = written
        before, after = _ready(policy.status), _ready(status)
        if after is not None and (before is None or before.reason != after.reason):
            stalled = any(c.type == "Stalled" for c in status.conditions) or after.reason == "NoMatchingNodes"
            await self._recorder.condition(body, after.reason, after.message, warning=stalled)
            log.info("%s: %s", after.reason, after.message, extra={"policy": policy.name})
        return None

    async def _driver_conditions(self, scope: Scope) -> None:
        """Say on the driver whether its installation is as it must be; written only when that changes."""
        body, problems = scope.driver_body, scope.driver.problems
        status = DriverStatus.model_validate(body.get("status", {}))
        former = next((c for c in status.conditions if c.type == "Ready"), None)
        ok = "False" if problems else "True"
        reason = problems[0].reason if problems else "Ready"
        message = "; ".join(str(p) for p in problems[:3])[:1024] or "nodes can be repartitioned"
        generation = body["metadata"].get("generation", 0)
        if former is not None and (former.status, former.reason, former.message) == (ok, reason, message):
            return
        since = former.last_transition_time if former is not None and former.status == ok else datetime.now(UTC)
        ready = Condition(
            type="Ready",
            status=ok,
            reason=reason,
            message=message,
            observed_generation=generation,
            last_transition_time=since,
        )
        others = [c for c in status.conditions if c.type != "Ready"]
        update: dict[str, Any] = {"conditions": [*others, ready], "observed_generation": generation}
        new = {**body, "status": dump(status.model_copy(update=update))}
        try:
            await self._client.replace(DRIVERS, new, subresource="status")
        except Conflict:
            return


def dump(status: PolicyStatus | DriverStatus) -> dict[str, Any]:
    """As the API server stores it."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def _no_driver(policy: Policy) -> Problem:
    if policy.spec is None:
        return policy.problems[0]
    return Problem(
        reason="DriverNotFound",
        at="spec.driver",
        why=f"there is no GpuPartitionDriver {policy.spec.driver}",
        fix="create it, or name one of `kubectl get gpd`",
    )


def _stopped(scope: Scope) -> str:
    """What broke in the installation after the policy had been accepted; before that, it is simply not accepted."""
    cluster = [p for p in scope.problems if p.turn is Turn.CLUSTER]
    if not cluster or scope.policy.status.accepted_at is None or len(cluster) < len(scope.problems):
        return ""
    return f"{cluster[0].reason}: {cluster[0]}"


def _not_ready_since(node: Object | None) -> datetime | None:
    if node is None:
        return None
    for c in node.get("status", {}).get("conditions", ()):
        if c["type"] == "Ready" and c["status"] != "True" and c.get("lastTransitionTime"):
            return datetime.fromisoformat(c["lastTransitionTime"])
    return None


def _ready(status: PolicyStatus) -> Condition | None:
    return next((c for c in status.conditions if c.type == "Ready"), None)


def _is_ready(status: PolicyStatus) -> bool:
    ready = _ready(status)
    return ready is not None and ready.status == "True"


def _words(status: PolicyStatus) -> Any:
    """The part of a status that people and tools act on: it never waits."""
    return status.observed_generation, [(c.type, c.status, c.reason) for c in status.conditions]


__all__ = ["Config", "PolicyLoop"]
