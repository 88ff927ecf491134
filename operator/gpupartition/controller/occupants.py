"""Reads the pods of holders for those who may evict them, and whether anybody may be evicted now."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from gpupartition.api.v1alpha1 import Drain, Phase
from gpupartition.controller import clock
from gpupartition.controller.caches import is_frozen
from gpupartition.controller.declared import Policy
from gpupartition.controller.records import NODE_STATES, POLICIES, Record
from gpupartition.controller.refusals import Refusals
from gpupartition.domain import windows
from gpupartition.domain.admission import resolve
from gpupartition.domain.backend import Observation
from gpupartition.domain.eviction import Occupant, monitoring
from gpupartition.domain.holders import Holder
from gpupartition.domain.world import State
from gpupartition.kube import PODS, Client

EVICTING: Final = frozenset({Phase.DRAINING, Phase.APPLYING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The holders that are waited for, their pods, those that only look on, and why nobody is evicted now."""

    holders: tuple[Holder, ...]
    occupants: tuple[Occupant, ...] = ()
    monitors: tuple[Occupant, ...] = ()
    no_eviction: str = ""


class Occupants:
    """Reads live; `namespace` is the operator's own."""

    def __init__(self, client: Client, refusals: Refusals, *, namespace: str) -> None:
        self._client = client
        self._refusals = refusals
        self._namespace = namespace

    async def read(
        self, held: tuple[Holder, ...], observed: Observation, state: State, policy: Policy | None, now: datetime
    ) -> Seen:
        """Read everybody who is in the way of a node that is being drained, or is about to change."""
        assert policy is not None, "only a policy says Evict"
        assert policy.spec is not None, "only a policy says Evict"
        # After the assignment nobody only looks on any more: whoever has a device has slipped past the quiesce.
        used = bool(state.step) and observed.step == state.step
        seen = await self.look(held, observed, policy.spec.rollout.drain, lookers=not used)
        return replace(seen, no_eviction=await self._no_eviction(policy, now) if held else "")

    async def look(
        self, held: tuple[Holder, ...], observed: Observation, drain: Drain, *, lookers: bool = True
    ) -> Seen:
        """Read the pods of holders, and tell those that only look on, if any may."""
        pods = await self._pods(held, observed)
        looking = monitoring(held, pods, drain) if lookers else ()
        holders = tuple(h for h in held if h not in looking)
        return Seen(holders=holders, occupants=_of(holders, pods), monitors=_of(looking, pods))

    async def stands(self, record: Record, policy: Policy | None) -> bool:
        """Whether record and policy are still those that were read, and nobody has said stop since."""
        now = await self._client.find(NODE_STATES, record.name)
        if now is None or now["metadata"]["resourceVersion"] != record.resource_version:
            return False
        body = await self._client.find(POLICIES, record.spec.policy_ref.name)
        latest = Policy.read(body) if body else None
        if latest is None or policy is None or (latest.uid, latest.generation) != (policy.uid, policy.generation):
            return False
        return not await self._no_eviction(latest, clock.now())

    async def _pods(self, held: tuple[Holder, ...], observed: Observation) -> tuple[Occupant, ...]:
        """The pods of these holders, as long as they are the very ones that their claims are reserved for."""
        uids = {pod: h.uids for h in held for pod in h.pods}
        named = sorted(uids)
        found = await asyncio.gather(
            *(self._client.find(PODS, p.partition("/")[2], namespace=p.partition("/")[0]) for p in named)
        )
        bodies = [b for p, b in zip(named, found, strict=True) if b is not None and b["metadata"]["uid"] in uids[p]]
        plugin = observed.plugin["metadata"]["uid"] if observed.plugin else ""
        return tuple(
            Occupant(
                body=body,
                protected=body["metadata"]["namespace"] == self._namespace or body["metadata"]["uid"] == plugin,
                refusal=self._refusals.of(body["metadata"]["uid"]),
            )
            for body in bodies
        )

    async def _no_eviction(self, policy: Policy | None, now: datetime) -> str:
        """Why nobody is evicted now, whatever the drain mode says; "" when somebody may be."""
        if policy is None or policy.spec is None or policy.problems:
            return "the policy is gone or refused"
        rollout, status = policy.spec.rollout, policy.status
        if policy.paused(now) or policy.observes:
            return "the policy is paused"
        if not windows.open_at(rollout.windows, now):
            return f"it is outside of the window: {windows.announce(rollout.windows, now)}"
        allowed = resolve(rollout.max_failed, status.nodes.matched) if rollout.max_failed else 0
        if status.observed_generation == policy.generation and status.nodes.failed > allowed:
            return "too many nodes have failed"
        return "everything is frozen" if await is_frozen(self._client, self._namespace) else ""


def _of(held: tuple[Holder, ...], pods: tuple[Occupant, ...]) -> tuple[Occupant, ...]:
    named = {pod for h in held for pod in h.pods}
    return tuple(pod for pod in pods if pod.name in named)
