"""Level-triggered, one node at a time: read, decide, persist, then write what follows from what was persisted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from gpupartition import names
from gpupartition.api.v1alpha1 import DrainMode, DriverSpec, NodeStateStatus, Phase
from gpupartition.controller.actuator import carry_out
from gpupartition.controller.caches import Caches
from gpupartition.controller.events import WARNINGS, Recorder
from gpupartition.controller.evictor import Evictor
from gpupartition.controller.ledger import Ledger
from gpupartition.controller.metrics import TRANSITIONS
from gpupartition.controller.reading import Reading, written
from gpupartition.controller.records import NODE_STATES, Record, with_state
from gpupartition.controller.stopwatch import Stopwatch
from gpupartition.controller.world import Moved, Reader
from gpupartition.domain.destination import is_expected
from gpupartition.domain.effects import (
    CreateSlice,
    DeleteHolder,
    DeleteTaintRule,
    Effect,
    EvictPod,
    PatchNode,
    PutSlice,
    SliceWrite,
)
from gpupartition.domain.eviction import rests
from gpupartition.domain.lifecycle import advance
from gpupartition.domain.phases import time_left
from gpupartition.domain.pool import Pool
from gpupartition.domain.problem import Refused
from gpupartition.domain.rest import rest
from gpupartition.domain.world import AT_REST, Step, World
from gpupartition.domain.writes import effects
from gpupartition.kube import DEVICE_TAINT_RULES, Client, Conflict, Invalid, NotFound, Object

log = logging.getLogger(__name__)

SOON = timedelta(seconds=0.2)  # something moved while it was read, or a write was refused
WATCHED = timedelta(seconds=5)  # a watch event is expected to come first; this only covers the case that it does not
AWAY = timedelta(seconds=60)  # a node that is not Ready may stay away for ever; that it is back is an event
HELD = timedelta(seconds=10)  # holders may take hours: claims are listed for the whole cluster, so not every second


Turned = Reading | timedelta | None
"""What has to be decided next, as it was read on; or when to look again, None: when something changes."""


class NodeLoop:
    """Brings one node one turn further. `reconcile` returns when to look again, or None: when something changes."""

    def __init__(
        self,
        client: Client,
        caches: Caches,
        reader: Reader,
        recorder: Recorder,
        watches: Stopwatch,
        ledger: Ledger,
        evictor: Evictor,
        *,
        policies: dict[str, Object],
        drivers: dict[str, Object],
        on_progress: Callable[[str], None],
        on_refused: Callable[[DriverSpec, str], None],
    ) -> None:
        self._client = client
        self._caches = caches
        self._reader = reader
        self._recorder = recorder
        self._watches = watches
        self._ledger = ledger
        self._evictor = evictor
        self._policies = policies
        self._drivers = drivers
        self._on_progress = on_progress
        self._on_refused = on_refused

    async def reconcile(self, name: str) -> timedelta | None:
        """One turn."""
        record = self._caches.records.get(name)
        if record is None:
            self._watches.forget(name)
            return await self._sweep(name, own="")
        if record.unreadable:
            log.warning("%s", record.state.message, extra={"node": name, "policy": record.spec.policy_ref.name})
            return None  # what keeps new claims away, if anything does, stays until somebody has mended it
        swept = await self._sweep(name, own=names.taint_rule(name, record.spec.node_uid))
        if swept is not None:
            return swept
        try:
            if record.state.phase in AT_REST:
                glance = await self._reader.glance(name, self._policies, self._drivers)
                if glance is not None and not _due(glance):
                    return _deadline(glance)
            turned: Turned = await self._reader.read(record, self._drivers)
            while isinstance(turned, Reading):
                turned = await self._turn(turned)
        except Moved:
            return SOON
        except NotFound:
            return None
        except Refused:
            return AWAY  # its policy says why the driver cannot be read
        return turned

    async def _sweep(self, name: str, *, own: str) -> timedelta | None:
        """A rule of no record, or of that of the node before, was created by a worker that woke up too late: it has no effect, and goes."""
        for cached in self._caches.rules_of(name):
            if cached["metadata"]["name"] == own:
                continue
            rules = replace(DEVICE_TAINT_RULES, api_version=cached["apiVersion"])
            rule = await self._client.find(rules, cached["metadata"]["name"])
            if rule is None:
                continue
            meta, body = rule["metadata"], await self._client.find(NODE_STATES, name)
            if body is not None and _has_rule(Record.read(body), meta["name"]):
                return SOON
            late = DeleteTaintRule(
                name=meta["name"],
                uid=meta["uid"],
                resource_version=meta["resourceVersion"],
                api_version=rules.api_version,
            )
            await carry_out(self._client, late)
        return None

    async def _turn(self, reading: Reading) -> Turned:
        state, world = reading.record.state, reading.world
        if _stopped(reading) or reading.record.unreadable:
            return (
                WATCHED  # the installation is not as it must be, or the record: nothing is written until it is mended
            )
        step = decide(reading)
        if step is not None:
            return await self._persist(reading, step)
        if state.phase in AT_REST:
            return await self._close(reading)
        for effect in effects(state, world, reading.subject):
            if isinstance(effect, EvictPod | DeleteHolder):
                await self._evictor.end(reading, effect)
                return SOON
            return await self._write(reading, effect)
        return _next_look(state, world)

    async def _write(self, reading: Reading, effect: Effect) -> Turned:
        """Carry out. A pool's slices follow one another, each of them only while the record is still the one that was read."""
        try:
            done = await carry_out(self._client, effect)
        except Invalid as error:
            if isinstance(effect, CreateSlice | PutSlice):
                self._on_refused(reading.driver.spec, error.message)
                self._on_progress(reading.record.spec.policy_ref.name)
            raise
        if done is None:
            return SOON
        log.info("wrote %s", type(effect).__name__, extra=_about(reading))
        if not isinstance(effect, SliceWrite):
            return SOON
        reading = written(reading, effect, done.metadata)
        if not await self._reader.stands(reading):
            return SOON
        for following in effects(reading.record.state, reading.world, reading.subject):
            return await self._write(reading, following) if isinstance(following, SliceWrite) else SOON
        return await self._reader.read_on(reading, self._drivers, reading.body)

    async def _persist(self, reading: Reading, step: Step) -> Turned:
        try:
            body = await self._client.replace(NODE_STATES, with_state(reading.body, step.state))
        except (Conflict, NotFound):
            return SOON
        before, after = reading.record.state, step.state
        policy = reading.record.spec.policy_ref.name
        if after.phase is not before.phase:
            log.info("%s -> %s: %s", before.phase, after.phase, step.note, extra=_about(reading))
            TRANSITIONS.labels(policy=policy, phase=after.phase).inc()
            await self._announce(reading, step)
        known = {(b.claim, b.device) for b in before.blockers}
        uids = {pod: uid for h in reading.world.holders for pod, uid in zip(h.pods, h.uids, strict=False)}
        for blocker in after.blockers:
            if (blocker.claim, blocker.device) not in known:
                evicts = reading.world.drain.mode is DrainMode.EVICT
                await self._recorder.wanted(blocker, uids.get(blocker.pod, ""), policy, evicts=evicts)
        self._on_progress(policy)
        if not after.token and not before.retiring:
            return timedelta(0)  # at rest, as far as anybody knows
        return await self._reader.read_on(reading, self._drivers, body)

    async def _announce(self, reading: Reading, step: Step) -> None:
        body = self._policies.get(reading.record.spec.policy_ref.name)
        first_look = reading.record.state.phase is Phase.PENDING and step.state.phase is Phase.UP_TO_DATE
        if body is not None and not first_look:
            loud = step.state.phase in WARNINGS or bool(step.state.reason)
            await self._recorder.phase(reading.body, body, step.state.phase, step.note, warning=loud)

    async def _close(self, reading: Reading) -> Turned:
        """At rest: give back the grant, remove what is left over, and let go of a node that nobody wants any more."""
        state, world = reading.record.state, reading.world
        for effect in effects(state, world, reading.subject):
            return await self._write(reading, effect)
        if world.grant is not None and world.grant.token == state.token:
            await self._ledger.give_back(reading.record)
            return await self._reader.read_on(reading, self._drivers, reading.body)
        if _abandoned(reading):
            return await self._let_go(reading)
        return _deadline(reading)

    async def _let_go(self, reading: Reading) -> timedelta | None:
        """Annotations first, then the record under UID and resourceVersion: nothing of ours stays behind, nor what was asked of it."""
        meta = reading.subject.node["metadata"] if reading.subject.node is not None else {}
        ours = {key: None for key in (names.STEP, names.ABANDON) if key in meta.get("annotations", {})}
        if ours:
            forget: Effect = PatchNode(node=meta["name"], resource_version=meta["resourceVersion"], annotations=ours)
            await carry_out(self._client, forget)
            return SOON
        record = reading.record
        try:
            await self._client.delete(
                NODE_STATES, record.name, uid=record.uid, resource_version=record.resource_version
            )
        except (Conflict, NotFound):
            return SOON
        log.info("the policy no longer has this node", extra=_about(reading))
        self._on_progress(record.spec.policy_ref.name)
        return None


def _has_rule(record: Record, rule: str) -> bool:
    """Whether it may be that of this record."""
    return bool(record.unreadable) or names.taint_rule(record.name, record.spec.node_uid) == rule


def decide(reading: Reading) -> Step | None:
    """The next state, whatever the phase."""
    state, world = reading.record.state, reading.world
    return rest(state, world) if state.phase in AT_REST else advance(state, world)


def _stopped(reading: Reading) -> bool:
    """Whether the driver's installation is broken in a way that makes every effect unsafe. Closing is always safe."""
    closing = {Phase.RELEASING, Phase.ABORTING} | AT_REST
    return bool(reading.driver.problems) and reading.record.state.phase not in closing


def _due(reading: Reading) -> bool:
    """Whether a node at rest has anything to do, as far as the caches know."""
    state, world = reading.record.state, reading.world
    return (
        decide(reading) is not None
        or bool(effects(state, world, reading.subject))
        or world.grant is not None
        or _abandoned(reading)
    )


def _abandoned(reading: Reading) -> bool:
    world = reading.world
    nobody_wants = reading.leaving and world.wanted is None
    let_go = (nobody_wants and not world.last_to_know) or not world.node_is_there
    return let_go and world.grant is None and not reading.record.state.token


def _deadline(reading: Reading) -> timedelta | None:
    """When something at rest will have lasted long enough; None: nothing is on its way."""
    waits = [wait for wait in (_drift_deadline(reading), _retiring_deadline(reading)) if wait is not None]
    return min(waits, default=None)


def _retiring_deadline(reading: Reading) -> timedelta | None:
    """When it can be told which of the retired devices are free."""
    state, world = reading.record.state, reading.world
    return world.limits.settle if state.retiring and world.in_use is None else None


def _drift_deadline(reading: Reading) -> timedelta | None:
    """When a difference will have lasted long enough to be drift; None where there is none."""
    state, world = reading.record.state, reading.world
    if state.phase is not Phase.UP_TO_DATE or state.target is None:
        return None
    if world.observed.pool.same_shape(Pool.from_json(state.target.pool)):
        return None
    return max(world.limits.drift - world.differs, SOON)


def _next_look(state: NodeStateStatus, world: World) -> timedelta:
    """When a duration or the phase's limit may be over; for everything else an event is expected."""
    left = time_left(state, world)
    waits = _waits(state, world)
    return waits if left is None else min(waits, max(left, SOON))


def _waits(state: NodeStateStatus, world: World) -> timedelta:
    limits, quiesce = world.limits, world.quiesce
    if state.phase is Phase.QUIESCING and quiesce is not None and quiesce.active:
        return max(limits.settle - quiesce.watched, SOON)
    if state.phase is Phase.DRAINING:
        if world.holders:
            return min(HELD, max(rests(world.occupants, world.drain) or HELD, SOON))
        return max(limits.idle_gap - world.idle, SOON)
    if state.recovering and not world.node_ready:
        return AWAY
    matches = world.observed.ready and is_expected(state, world.observed)
    if (state.phase is Phase.VERIFYING or state.recovering) and matches:
        return max(limits.min_ready - world.matched, SOON)
    if state.phase is Phase.ROLLING_BACK and matches and world.matched < limits.min_ready:
        return max(limits.min_ready - world.matched, SOON)
    return WATCHED if state.phase is not Phase.VERIFYING else timedelta(seconds=1)


def _about(reading: Reading) -> dict[str, str]:
    return {"node": reading.record.name, "policy": reading.record.spec.policy_ref.name}
