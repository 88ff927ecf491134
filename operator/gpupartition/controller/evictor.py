"""Ends pods that hold a device which would change: asked for, told beforehand, and taken for an answer when refused."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from gpupartition.controller.actuator import carry_out
from gpupartition.controller.events import Recorder
from gpupartition.controller.occupants import Occupants
from gpupartition.controller.reading import Reading
from gpupartition.controller.refusals import Refusals
from gpupartition.domain.effects import DeleteHolder, EvictPod
from gpupartition.domain.eviction import BLOCKED, Pod, budgets_of
from gpupartition.kube import POD_DISRUPTION_BUDGETS, ApiError, Client, Forbidden, Object, TooManyRequests

REFUSED: Final = {400, 403, 422}  # no right, or an admission policy or a webhook said no, each in its own way

log = logging.getLogger(__name__)


class Evictor:
    """One pod at a time; what was refused is remembered, so that the record says who is waited for and why."""

    def __init__(self, client: Client, occupants: Occupants, recorder: Recorder, refusals: Refusals) -> None:
        self._client = client
        self._occupants = occupants
        self._recorder = recorder
        self._refusals = refusals

    async def end(self, reading: Reading, effect: EvictPod | DeleteHolder) -> None:
        """Look once more whether it still holds, tell the pod, then ask. Raises ApiError for what is no answer about this pod.

        An eviction carries no proof but the pod's UID. So the record is read once more right before it: what a worker that is stopped just
        then has decided is one pod, which held a device of a node that was being drained.
        """
        if not await self._occupants.stands(reading.record, reading.policy):
            return
        name = f"{effect.namespace}/{effect.name}"
        if self._refusals.of(effect.uid) is None:
            devices = sorted({h.device for h in reading.world.holders if name in h.pods})
            policy = reading.record.spec.policy_ref.name
            await self._recorder.evicted(name, effect.uid, node=reading.record.name, policy=policy, devices=devices)
        try:
            if await carry_out(self._client, effect):
                log.info("%s: %s", type(effect).__name__, name, extra={"node": reading.record.name})
        except ApiError as error:
            await self._understand(reading, effect, error)

    async def _understand(self, reading: Reading, effect: EvictPod | DeleteHolder, error: ApiError) -> None:
        causes = {cause.get("reason", "") for cause in error.details.get("causes") or ()}
        budgets: tuple[str, ...] = ()
        if error.status in REFUSED:
            reason = "NamespaceTerminating" if "NamespaceTerminating" in causes else "EvictionForbidden"
        else:
            reason = BLOCKED
            refused = isinstance(error, TooManyRequests) and "DisruptionBudget" in causes
            if not refused and error.status != 500:
                raise error
            pods = (p.body for p in (*reading.world.occupants, *reading.world.monitors))
            pod = next(p for p in pods if p["metadata"]["uid"] == effect.uid)
            budgets = budgets_of(pod, await self._budgets(pod))
            if not refused and len(budgets) < 2:  # the Eviction API answers 500 where two budgets are about one pod
                raise error
        self._refusals.add(effect.uid, reason, budgets)
        log.info("%s: %s", reason, error, extra={"node": reading.record.name})

    async def _budgets(self, pod: Pod) -> Sequence[Object]:
        try:
            return (await self._client.list(POD_DISRUPTION_BUDGETS, namespace=pod["metadata"]["namespace"])).items
        except Forbidden:
            return ()
