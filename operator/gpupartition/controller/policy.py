"""Level-triggered, one policy at a time: accept, take nodes on, admit, sum up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Final

from gpupartition.api.v1alpha1 import PolicySpec
from gpupartition.controller.caches import Caches
from gpupartition.controller.collect import Collector
from gpupartition.controller.declared import Driver, Policy
from gpupartition.controller.finalizer import hold, let_go
from gpupartition.controller.intent import Intents
from gpupartition.controller.ledger import Ledger
from gpupartition.controller.metrics import forget
from gpupartition.controller.preparing import Preparing
from gpupartition.controller.probe import GRANTED, Probe
from gpupartition.controller.records import DRIVERS, NODE_STATES, POLICIES, Record, new_record, with_state
from gpupartition.controller.remembered import Recent
from gpupartition.controller.scope import FAILURES, Scope, ledger_of, read_scope
from gpupartition.controller.summary import Summary, sooner
from gpupartition.domain.backend import Config
from gpupartition.domain.entries import is_there
from gpupartition.domain.problem import Problem, Refused, Turn
from gpupartition.domain.world import AT_REST
from gpupartition.kube import Client, Conflict, NotFound, Object

AT_ONCE: Final = 16  # records of new nodes: one by one a large cluster waits for half a minute for its first look


class PolicyLoop:
    """Brings one policy one turn further. `reconcile` returns when to look again, or None: when something changes."""

    def __init__(
        self,
        client: Client,
        caches: Caches,
        intents: Intents,
        ledger: Ledger,
        summary: Summary,
        probe: Probe,
        *,
        policies: dict[str, Object],
        on_node: Callable[[str], None],
    ) -> None:
        self._client = client
        self._caches = caches
        self._intents = intents
        self._ledger = ledger
        self._summary = summary
        self._probe = probe
        self._policies = policies
        self._on_node = on_node
        self._collector = Collector(client, caches)
        self._preparing = Preparing(client, intents)

    async def reconcile(self, name: str) -> timedelta | None:
        """One turn."""
        try:
            body = self._policies[name] = await self._client.get(POLICIES, name)
        except NotFound:
            self._policies.pop(name, None)
            forget(name)
            self._summary.forget(name)
            for record in self._caches.records.by("policy", name):
                self._on_node(record.name)
            for node in await self._ledger.sweep(name):
                self._on_node(node)
            return None
        policy = Policy.read(body)
        if policy.spec is None:
            return await self._summary.refuse(body, policy, policy.problems)
        try:
            driver_body = await self._client.get(DRIVERS, policy.spec.driver)
            driver = await self._intents.driver(driver_body)
        except NotFound:
            if policy.deleting and await self._end_without_driver(body, policy):
                return None
            return await self._summary.refuse(body, policy, [_no_driver(policy.spec.driver)])
        except Refused as refused:
            again = await self._summary.refuse(body, policy, refused.problems)
            return _until_granted(again)
        scope = await read_scope(
            body, policy, driver, driver_body, caches=self._caches, intents=self._intents, policies=self._policies
        )
        lacking = () if policy.deleting or policy.observes else await self._lacking(policy.spec)
        again = await self._turn(replace(scope, problems=(*scope.problems, *lacking)))
        return _until_granted(again) if lacking or driver.problems or driver.cluster.dropped else again

    async def _lacking(self, spec: PolicySpec) -> Sequence[Problem]:
        return await self._probe.evictions(spec.rollout.drain)

    async def _turn(self, scope: Scope) -> timedelta | None:
        policy = scope.policy
        if policy.spec is not None and not (policy.deleting or policy.observes or scope.problems):
            await self._take_on(scope)
            if policy.spec.deletion_policy == "Revert":
                await self._pin(scope)
        lacks = Recent(partial(_lacks_objects, scope.driver))
        for record in scope.records.values():
            if _behind(scope, record, lacks):
                self._on_node(record.name)
        await self._preparing.catch_up(scope)
        admission = await self._ledger.admit(scope, self._pin, self._preparing.prepare)
        if policy.deleting and await self._finish(scope):
            return None
        again = await self._summary.policy(scope, admission)
        if not admission.reason and not admission.grants and not policy.deleting:
            await self._unpin(scope)
            await self._collector.collect(scope.driver)
        if admission.reason == "ConfigWaits":
            again = _until_granted(again)  # it may be a right that is missing
        return sooner(again, admission.until)

    async def _take_on(self, scope: Scope) -> None:
        """Make the record of every node that has none: whoever creates it first has the node."""
        new = [n for n in scope.nodes.values() if n["metadata"]["name"] not in scope.records]
        there = [n["metadata"] for n in new if "deletionTimestamp" not in n["metadata"]]
        for first in range(0, len(there), AT_ONCE):
            made = await asyncio.gather(*(self._take(scope, meta) for meta in there[first : first + AT_ONCE]))
            scope.records.update({record.name: record for record in made if record is not None})

    async def _take(self, scope: Scope, meta: Object) -> Record | None:
        policy, driver = scope.policy, scope.driver.name
        body = new_record(
            node=meta["name"], node_uid=meta["uid"], policy=policy.name, policy_uid=policy.uid, driver=driver
        )
        try:
            return Record.read(await self._client.create(NODE_STATES, body))
        except Conflict:
            return None

    async def _pin(self, scope: Scope) -> None:
        """A policy with nodes in flight must not vanish under them, nor one that takes its nodes back at its end."""
        if not scope.policy.deleting:
            await hold(self._client, POLICIES, scope.body)

    async def _unpin(self, scope: Scope) -> None:
        """Nothing is in flight: the policy may be deleted without us, unless deleting it means work."""
        busy = any(r.state.phase not in AT_REST or r.state.token for r in scope.records.values())
        if not busy and scope.policy.spec is not None and scope.policy.spec.deletion_policy == "Retain":
            await let_go(self._client, POLICIES, scope.body)

    async def _finish(self, scope: Scope) -> bool:
        """Let a deleted policy go once no record is its own and the ledger holds none of its nodes."""
        live = await self._caches.records_now()
        mine = [r for r in live if r.spec.policy_ref.uid == scope.policy.uid]
        ledger = ledger_of(await self._client.get(DRIVERS, scope.driver.name))
        for record in mine:
            self._on_node(record.name)
        if mine or any(g.policy == scope.policy.name for g in ledger):
            return False
        await let_go(self._client, POLICIES, scope.body)
        return True

    async def _end_without_driver(self, body: Object, policy: Policy) -> bool:
        """Somebody forced the driver away, and its ledger with it: let go of nodes at rest; what is in flight needs the driver back."""
        bodies = (await self._client.list(NODE_STATES)).items
        mine = [(b, r) for b, r in ((b, Record.read(b)) for b in bodies) if r.spec.policy_ref.uid == policy.uid]
        if any(r.state.phase not in AT_REST for _, r in mine):
            return False
        for record_body, record in mine:
            unpinned = with_state(record_body, record.state.model_copy(update={"token": ""}))
            await self._client.replace(NODE_STATES, unpinned)
            await self._client.delete(NODE_STATES, record.name, uid=record.uid)
        await let_go(self._client, POLICIES, body)
        return True


def _until_granted(again: timedelta | None) -> timedelta:
    """When to look again, at the latest, where something may be granted meanwhile: no event tells."""
    return min(again or GRANTED, GRANTED)


def _behind(scope: Scope, record: Record, lacks: Callable[[Config], bool]) -> bool:
    """Whether a record does not say what is wanted now, or a config that it names is not there; no event about those names nodes.

    Nodes in flight look again by themselves, and hear of their own events: a policy is looked at far more often than each of them has to be.
    """
    intent, state = scope.intents.get(record.name), record.state
    if record.unreadable:
        return False
    if intent is None:
        return True
    if state.phase in FAILURES and scope.policy.retry_of(record.name) != state.retry:
        return True
    if intent.left_out is not None:
        return state.phase in AT_REST and state.reason != intent.left_out.reason
    if intent.wanted is None:
        return False
    if state.target is None or state.target.fingerprint != intent.wanted.fingerprint:
        return True
    if state.target.assignment != intent.wanted.assignment:
        return False
    return lacks(intent.wanted)


def _lacks_objects(driver: Driver, wanted: Config) -> bool:
    return any(not is_there(body, driver.cluster.present(body)) for body in wanted.objects)


def _no_driver(name: str) -> Problem:
    return Problem(
        reason="DriverNotFound",
        at="spec.driver",
        why=f"there is no GpuPartitionDriver {name}",
        fix="create it, or delete this policy and make it anew with one of `kubectl get gpd`: the field cannot be changed",
        turn=Turn.CLUSTER,
    )
