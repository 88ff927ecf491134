"""Writes what is true of a policy, and only when that changes."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from gpupartition.api.v1alpha1 import Condition, Phase, PolicyStatus
from gpupartition.controller import clock
from gpupartition.controller.caches import Caches
from gpupartition.controller.census import Census
from gpupartition.controller.declared import Policy
from gpupartition.controller.events import Recorder
from gpupartition.controller.intent import revision
from gpupartition.controller.packed import packed
from gpupartition.controller.planner import Observer
from gpupartition.controller.records import DRIVERS, POLICIES, dump
from gpupartition.controller.scope import Scope, Standings, ledger_of
from gpupartition.domain.admission import Admission, as_granted
from gpupartition.domain.backend import NodeFacts
from gpupartition.domain.conditions import summarise
from gpupartition.domain.phases import DEGRADED
from gpupartition.domain.plan import Plan
from gpupartition.domain.plan_summary import sentence
from gpupartition.domain.pool import Pool
from gpupartition.domain.problem import Problem
from gpupartition.domain.rollout import Rollout
from gpupartition.kube import RESOURCE_SLICES, Client, Conflict, NotFound, Object
from gpupartition.kube.reflector import Reflector
from gpupartition.settings import Settings

log = logging.getLogger(__name__)

SOON = timedelta(seconds=0.2)
WATCHED = timedelta(seconds=1)  # slices that come back are no event for a policy
OF_NODES = ("progress", "nodes", "capacity", "blocked_by", "failed_nodes", "drift")
"""The fields of a status that tell of nodes."""
A_MOMENT = timedelta(seconds=0.05)  # added to a wait for the clock: better a moment late than a moment too early


class Summary:
    """Status writer. `policies` are the copies that the rest of the operator reads: what is written is put there at once."""

    def __init__(
        self,
        client: Client,
        caches: Caches,
        standings: Standings,
        recorder: Recorder,
        settings: Settings,
        observer: Observer,
        policies: dict[str, Object],
    ) -> None:
        self._client = client
        self._caches = caches
        self._census = Census(caches)
        self._standings = standings
        self._recorder = recorder
        self._settings = settings
        self._observer = observer
        self._policies = policies
        self._written: dict[str, float] = {}

    async def refuse(self, body: Object, policy: Policy, problems: Sequence[Problem]) -> timedelta | None:
        """Say why a policy cannot even be looked at: its driver is missing or unreadable. What is known of its nodes stays."""
        rollout = Rollout(
            spec=policy.spec, nodes=(), records={}, admission=Admission(), problems=problems, deleting=policy.deleting
        )
        status, stalls = summarise(
            rollout,
            before=policy.status,
            generation=policy.generation,
            now=clock.now(),
            revision="",
            arriving=self._settings.limits.arriving,
        )
        if policy.status.accepted_at is not None:
            status = status.model_copy(update={known: getattr(policy.status, known) for known in OF_NODES})
        return sooner(await self._write(body, policy, status), stalls)

    async def policy(self, scope: Scope, admission: Admission) -> timedelta | None:
        """Sum up; returns when to do so again, if it was too early."""
        policy = scope.policy
        ledger = ledger_of(scope.driver_body)
        mine = scope.nodes.keys() | scope.records.keys()
        granted = frozenset(g.node for g in ledger if g.node in mine) | frozenset(admission.grants)
        nodes = await self._standings.of(scope, ((n, scope.records.get(n), node) for n, node in scope.nodes.items()))
        plan, look_again = await self._plan(scope)
        rollout = Rollout(
            spec=policy.spec,
            nodes=as_granted(nodes, ledger),
            records={n: r.state for n, r in scope.records.items()},
            admission=admission,
            problems=() if scope.stopped else scope.problems,
            conflicts=scope.contested,
            rivals=scope.rivals,
            would_change=plan.changing if plan else await self._census.would_change(scope),
            planned=sentence(plan) if plan else "",
            granted=granted,
            deleting=policy.deleting,
            accept_drift=policy.accept_drift,
            hint=scope.hint,
        )
        now = clock.now()
        sum_up = partial(
            summarise,
            before=policy.status,
            generation=policy.generation,
            now=now,
            revision=revision([i.wanted.fingerprint for i in scope.intents.values() if i.wanted]),
            arriving=self._settings.limits.arriving,
            capacity=await self._census.capacity(scope),
        )
        status, stalls = sum_up(rollout)
        said_before = _is_ready(policy.status) and policy.status.observed_generation == policy.generation
        if _is_ready(status) and not said_before:
            if not await self._really(scope):
                return SOON
            astray = await self._astray(scope)
            if astray:
                look_again = WATCHED
                status, stalls = sum_up(replace(rollout, astray=astray))
        again = sooner(await self._write(scope.body, policy, status), stalls)
        return sooner(again, now + look_again if look_again else None)

    def forget(self, policy: str) -> None:
        """A policy is gone."""
        self._written.pop(policy, None)
        self._observer.forget(policy)

    async def _plan(self, scope: Scope) -> tuple[Plan | None, timedelta | None]:
        """For a policy that observes: what it would do."""
        if not scope.policy.observes or scope.problems:
            return None, None
        return await self._observer.of(scope)

    async def _write(self, body: Object, policy: Policy, status: PolicyStatus) -> timedelta | None:
        if status == policy.status:
            return None
        now, last = time.monotonic(), self._written.get(policy.name)
        wait = self._settings.summary - timedelta(seconds=now - last) if last is not None else timedelta(0)
        if _words(status) == _words(policy.status) and wait > timedelta(0):
            return wait
        try:
            written = await self._client.replace(POLICIES, {**body, "status": dump(status)}, subresource="status")
        except (Conflict, NotFound):
            return SOON
        self._written[policy.name] = now
        self._policies[policy.name] = written
        body["metadata"] = written["metadata"]
        before, after = _ready(policy.status), _ready(status)
        given_up = _is_stalled(status) and not _is_stalled(policy.status)
        if after is not None and (before is None or before.reason != after.reason or given_up):
            warning = _is_stalled(status) or after.reason == "NoMatchingNodes"
            await self._recorder.condition(body, after.reason, after.message, warning=warning)
            log.info("%s: %s", after.reason, after.message, extra={"policy": policy.name})
        return None

    async def _really(self, scope: Scope) -> bool:
        """Ready is only said after all records were read live, at the current target, with the ledger holding none of them."""
        live = {r.name: r for r in await self._caches.records_now()}
        ledger = ledger_of(await self._client.get(DRIVERS, scope.driver.name))
        ours = {n for n, r in live.items() if r.spec.policy_ref.uid == scope.policy.uid}
        if any(g.node in ours for g in ledger):
            return False
        return all(live.get(n) == r for n, r in scope.records.items())

    async def _astray(self, scope: Scope) -> tuple[str, ...]:
        """The verified nodes that publish something else by now: all slices are read at one instant.

        A policy that is Ready stays so until a difference has lasted long enough to be drift; one that is not does not become so meanwhile.
        """
        driver, states = (
            scope.driver,
            {name: record.state for name, record in scope.records.items() if name in scope.nodes},
        )
        verified = {name: s.target for name, s in states.items() if s.phase is Phase.UP_TO_DATE and s.target}
        if not verified:
            return ()
        published = Reflector(
            self._client,
            RESOURCE_SLICES,
            packed,
            field_selector=f"spec.driver={driver.driver_name}",
            indexes={"unit": lambda each: (each.node or each.group or each.pool,)},
        )
        await published.read()
        astray = []
        for name, target in verified.items():
            group = scope.groups.get(name)
            slices = [each.body() for each in published.by("unit", group.name if group is not None else name)]
            facts = NodeFacts(node=scope.nodes[name], slices=slices, pods=[], group=group)
            seen = driver.backend.observe(driver.spec, facts, driver.cluster)
            if not seen.pool.same_shape(Pool.from_json(target.pool)) and states[name].reason != DEGRADED:
                astray.append(name)
        return tuple(astray)


def sooner(again: timedelta | None, at: datetime | None) -> timedelta | None:
    """When to look again, if something is over by itself at `at`: no event tells."""
    if at is None:
        return again
    wait = max(at - clock.now(), timedelta(0)) + A_MOMENT
    return wait if again is None else min(again, wait)


def _ready(status: PolicyStatus) -> Condition | None:
    return next((c for c in status.conditions if c.type == "Ready"), None)


def _is_ready(status: PolicyStatus) -> bool:
    ready = _ready(status)
    return ready is not None and ready.status == "True"


def _is_stalled(status: PolicyStatus) -> bool:
    return any(c.type == "Stalled" for c in status.conditions)


def _words(status: PolicyStatus) -> Any:
    """The part of a status that people and tools act on: it never waits."""
    return status.observed_generation, status.suspended, [(c.type, c.status, c.reason) for c in status.conditions]
