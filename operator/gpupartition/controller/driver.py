"""Level-triggered, one driver at a time: say whether its installation is as it must be, and keep it for as long as somebody needs it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta

from gpupartition.api.v1alpha1 import Condition, DriverStatus
from gpupartition.controller import clock
from gpupartition.controller.declared import unreadable_ledger
from gpupartition.controller.finalizer import hold, is_held, let_go
from gpupartition.controller.intent import Intents
from gpupartition.controller.probe import GRANTED
from gpupartition.controller.records import DRIVERS, NODE_STATES, POLICIES, dump
from gpupartition.controller.scope import ledger_of
from gpupartition.domain.problem import Problem, Refused
from gpupartition.domain.wording import few
from gpupartition.kube import Client, NotFound, Object

log = logging.getLogger(__name__)

WHILE_DELETING = timedelta(seconds=5)  # nothing names a driver in an event when the last record of it goes


class DriverLoop:
    """Brings one driver one turn further. Without it nothing that is in flight could ever end, so it stays while somebody names it."""

    def __init__(self, client: Client, intents: Intents, *, holds: bool = True) -> None:
        """Without `holds` finalizers are left alone: where nothing is ever in flight, a driver may vanish."""
        self._client = client
        self._intents = intents
        self._holds = holds

    async def reconcile(self, name: str) -> timedelta | None:
        """One turn. Raises Conflict when the driver has changed meanwhile: then the turn begins again."""
        try:
            body = await self._client.get(DRIVERS, name)
        except NotFound:
            return None
        if wrong := unreadable_ledger(body):
            log.warning("%s: %s; none of its nodes is touched until then", wrong.reason, wrong, extra={"driver": name})
            return GRANTED  # nothing is written: what is in the ledger would be lost
        needed_by, deleting = await self._needed_by(name, body), "deletionTimestamp" in body["metadata"]
        if self._holds and is_held(body) and not needed_by:
            await let_go(self._client, DRIVERS, body)
            if deleting:
                return None
        elif self._holds and needed_by and not deleting:
            await hold(self._client, DRIVERS, body)
        if deleting:
            await self._say(body, "False", "Terminating", f"waits until nothing names it any more: {needed_by}")
            return WHILE_DELETING if needed_by else None
        problems = await self._problems(body)
        if problems:
            await self._say(body, "False", problems[0].reason, "; ".join(str(p) for p in problems[:3]))
            return GRANTED
        await self._say(body, "True", "Ready", "nodes can be repartitioned")
        return None

    async def _needed_by(self, name: str, body: Object) -> str:
        """Who names the driver, in words; "" when nobody does."""
        policies = [p for p in (await self._client.list(POLICIES)).items if p["spec"].get("driver") == name]
        if policies:
            return _some("policy", [p["metadata"]["name"] for p in policies])
        records = [r for r in (await self._client.list(NODE_STATES)).items if r["spec"].get("driver") == name]
        if records:
            return _some("the record of node", [r["metadata"]["name"] for r in records])
        ledger = ledger_of(body)
        return _some("the grant of node", [g.node for g in ledger]) if ledger else ""

    async def _problems(self, body: Object) -> Sequence[Problem]:
        try:
            return (await self._intents.driver(body)).problems
        except Refused as refused:
            return refused.problems

    async def _say(self, body: Object, holds: str, reason: str, message: str) -> None:
        generation = body["metadata"].get("generation", 0)
        status = DriverStatus.model_validate(body.get("status", {}))
        former = next((c for c in status.conditions if c.type == "Ready"), None)
        said = (former.status, former.reason, former.message) if former else None
        if said == (holds, reason, message[:1024]) and status.observed_generation == generation:
            return
        since = former.last_transition_time if former is not None and former.status == holds else clock.now()
        ready = Condition(
            type="Ready",
            status=holds,
            reason=reason,
            message=message[:1024],
            observed_generation=generation,
            last_transition_time=since,
        )
        conditions = [*(c for c in status.conditions if c.type != "Ready"), ready]
        new = status.model_copy(update={"conditions": conditions, "observed_generation": generation})
        await self._client.replace(DRIVERS, {**body, "status": dump(new)}, subresource="status")


def _some(what: str, names: list[str]) -> str:
    """`policy a, b and 3 more`."""
    return f"{what} {few(sorted(names))}"
