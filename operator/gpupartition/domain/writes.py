"""Which writes follow from a persisted state: the other half of the phase table. Each may be repeated until it is seen done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gpupartition import names
from gpupartition.api.v1alpha1 import Assigned, DrainMode, DriverSpec, NodeStateStatus, Phase
from gpupartition.domain.backend import Backend, NodeFacts
from gpupartition.domain.effects import (
    TAINT_RULES,
    ActivateTaintRule,
    CreateTaintRule,
    DeleteHolder,
    DeletePod,
    DeleteTaintRule,
    Effect,
    EnsureConfig,
    EvictPod,
    PatchNode,
    RemoveTaint,
)
from gpupartition.domain.entries import is_there, used, waits_for_rest
from gpupartition.domain.eviction import Occupant, next_to_go
from gpupartition.domain.groups import Group
from gpupartition.domain.guards import forced, goes_live, quiesced, unwanted
from gpupartition.domain.objects import Object
from gpupartition.domain.quiesce import CORDONS, holds
from gpupartition.domain.retiring import published
from gpupartition.domain.steps import restart_recorded, step_used, to_go
from gpupartition.domain.world import AT_REST, World


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The objects that may be written for one node, as they were read before its record."""

    node_name: str
    node_uid: str
    driver: DriverSpec
    driver_name: str
    backend: Backend
    facts: NodeFacts | None  # None: the Node is gone
    rule: Object | None
    taint_rules: str = TAINT_RULES  # the version of their API
    configs: Sequence[tuple[Object, Object | None]] = ()  # the config object as it must be, and as it is
    group: Group | None = None

    @property
    def node(self) -> Object | None:
        """The Node, unless it is gone."""
        return self.facts.node if self.facts is not None else None


Writes = Callable[[NodeStateStatus, World, Subject], Sequence[Effect]]


def effects(state: NodeStateStatus, world: World, subject: Subject) -> Sequence[Effect]:
    """The writes of this turn, in order; none for most turns of most nodes."""
    if state.phase in AT_REST:
        return _leftovers(state, world, subject)
    return PHASE_WRITES[state.phase](state, world, subject)


def _leftovers(state: NodeStateStatus, world: World, subject: Subject) -> Sequence[Effect]:
    left = _open(state, world, subject)
    if left:
        return left
    lost = _lost_config(state, world, subject) if state.phase is Phase.UP_TO_DATE and not state.token else ()
    if lost:
        return lost
    opened = _open_for_pods(state, subject)
    if opened is not None:
        return (opened,)
    # Whatever a node at rest waits for, its users have what it was verified with until it is taken.
    if not state.token and state.current is not None and subject.facts is not None and not world.elsewhere:
        repair = _repair(state, subject, subject.facts, state.current)
        return (repair,) if repair else ()
    return ()


def _repair(
    state: NodeStateStatus, subject: Subject, facts: NodeFacts, to: Assigned, step: str | None = None
) -> Effect | None:
    return subject.backend.repair(subject.driver, facts, published(state, to), step, state.generation)


def _lost_config(state: NodeStateStatus, world: World, subject: Subject) -> Sequence[Effect]:
    """Somebody deleted what the node's driver runs from. Its content is known, and what it is named after, so it is put back as it was."""
    wanted, has = world.wanted, state.target
    if wanted is None or has is None or (has.fingerprint, has.assignment) != (wanted.fingerprint, wanted.assignment):
        return ()
    return tuple(
        EnsureConfig(kind=str(body["kind"]), body=body, present=present)
        for body, present in subject.configs
        if not is_there(body, present)
    )


def _open_for_pods(state: NodeStateStatus, subject: Subject) -> Effect | None:
    """A node may be born with a taint that keeps pods away until its first layout is verified."""
    if state.phase is not Phase.UP_TO_DATE or subject.facts is None:
        return None
    node = subject.facts.node
    taints = node.get("spec", {}).get("taints", ())
    place = next((i for i, taint in enumerate(taints) if taint["key"] == names.STARTUP_TAINT), None)
    if place is None:
        return None
    version = node["metadata"].get("resourceVersion", "")
    return RemoveTaint(node=subject.node_name, resource_version=version, place=place)


def _configs(state: NodeStateStatus, _: World, subject: Subject) -> Sequence[Effect]:
    named = state.target.since if state.target else None
    return tuple(
        EnsureConfig(kind=str(body["kind"]), body=body, present=present)
        for body, present in subject.configs
        if not touched_since(body, present, named) and not waits_for_rest(body, present)
    )


def touched_since(body: Object, present: Object | None, named: datetime | None) -> bool:
    """Whether a config object is there and was touched after the record named it."""
    touched = used(body, present)
    return is_there(body, present) and (named is None or (touched is not None and touched >= named))


def _close(state: NodeStateStatus, _: World, subject: Subject) -> Sequence[Effect]:
    """Whatever of the quiesce is in use and not in force."""
    taint, cordon = holds(state, subject.node, subject.rule)
    return (() if taint.active else _taint(subject)) + (() if cordon.active else _cordon(state, subject))


def _taint(subject: Subject) -> tuple[Effect, ...]:
    if subject.rule is None:
        rule = CreateTaintRule(
            name=names.taint_rule(subject.node_name, subject.node_uid),
            node=subject.node_name,
            uid=subject.node_uid,
            driver=subject.driver_name,
            pool=subject.backend.pool_name(subject.driver, subject.node_name, subject.group),
            api_version=subject.taint_rules,
        )
        return (rule,)
    return (ActivateTaintRule(rule=subject.rule),)


def _cordon(state: NodeStateStatus, subject: Subject) -> tuple[Effect, ...]:
    return (_patch(subject.node, unschedulable=True, **{names.CORDONED: state.token}),) if subject.node else ()


def _open(state: NodeStateStatus, _: World, subject: Subject) -> Sequence[Effect]:
    """Whatever of ours is left."""
    taint, cordon = holds(state, subject.node, subject.rule)
    return (_delete_rule(subject) if taint.there else ()) + (_uncordon(state, subject) if cordon.there else ())


def _delete_rule(subject: Subject) -> tuple[Effect, ...]:
    assert subject.rule is not None, subject.node_name
    meta = subject.rule["metadata"]
    effect = DeleteTaintRule(
        name=meta["name"],
        uid=meta["uid"],
        resource_version=meta["resourceVersion"],
        api_version=subject.taint_rules,
    )
    return (effect,)


def _uncordon(state: NodeStateStatus, subject: Subject) -> tuple[Effect, ...]:
    """Only what we have cordoned is uncordoned; in the phases that open a node the step is written in any case."""
    assert subject.node is not None, subject.node_name
    ours = names.CORDONED in subject.node["metadata"].get("annotations", {})
    step = {names.STEP: state.step} if state.quiesce in CORDONS else {}
    return (_patch(subject.node, unschedulable=False if ours else None, **{names.CORDONED: None}, **step),)


def _patch(node: Object, *, unschedulable: bool | None, **annotations: str | None) -> PatchNode:
    # The cache's copies of nodes have no version: they only tell that there is something to do.
    name, version = node["metadata"]["name"], node["metadata"].get("resourceVersion", "")
    return PatchNode(node=name, resource_version=version, annotations=annotations, unschedulable=unschedulable)


def _drain(state: NodeStateStatus, world: World, subject: Subject) -> Sequence[Effect]:
    return _configs(state, world, subject) or _evict(state, world, subject)


def _evict(state: NodeStateStatus, world: World, _: Subject) -> Sequence[Effect]:
    """The next pod, and only while new claims are kept away: it would come back to this node.

    However late it is, a pod is asked to go, and refused, before it is deleted: a pause may have taken all the time.
    """
    evicts = world.drain.mode is DrainMode.EVICT and not world.no_eviction and world.wanted is not None
    if not evicts or not world.holders or not quiesced(state, world):
        return ()
    late = forced(state, world)
    pod = next_to_go(world.occupants, world.drain, forced=late)
    if pod is None:
        return ()
    return (_delete_holder(pod) if late and pod.kept else _evict_pod(pod, world),)


def _evict_pod(pod: Occupant, world: World) -> EvictPod:
    meta, grace = pod.body["metadata"], world.drain.grace_period_seconds
    return EvictPod(namespace=meta["namespace"], name=meta["name"], uid=meta["uid"], grace_seconds=grace)


def _delete_holder(pod: Occupant) -> DeleteHolder:
    meta = pod.body["metadata"]
    return DeleteHolder(namespace=meta["namespace"], name=meta["name"], uid=meta["uid"])


def _apply(state: NodeStateStatus, world: World, subject: Subject) -> Sequence[Effect]:
    assert state.target is not None and subject.facts is not None, state  # noqa: PT018
    closed = goes_live(state) or quiesced(state, world)
    too_late = bool(world.holders) or bool(world.elsewhere) or not closed or bool(world.monitors and world.no_eviction)
    if not step_used(state, world) and too_late:
        cancel = subject.backend.cancel(subject.driver, subject.facts, state.step)
        return (cancel,) if cancel else ()
    if not step_used(state, world) and world.monitors:
        last = next((p for p in world.monitors if "deletionTimestamp" not in p.body["metadata"]), None)
        return (_evict_pod(last, world),) if last else ()
    # A rule that somebody deletes after the assignment is put back: the driver is at work on this node.
    return _close(state, world, subject) or _assign(state, world, subject, state.target)


def _roll_back(state: NodeStateStatus, world: World, subject: Subject) -> Sequence[Effect]:
    assert state.previous is not None, state
    closing = _close(state, world, subject)
    if closing or world.holders:
        return closing
    return _assign(state, world, subject, state.previous)


def _assign(state: NodeStateStatus, world: World, subject: Subject, to: Assigned) -> Sequence[Effect]:
    assert subject.facts is not None, state
    write = subject.backend.assign(subject.driver, subject.facts, published(state, to), state.step, state.generation)
    if write is not None:
        return (write,)
    goes = _delete_plugin(state, world) if restart_recorded(state) else ()
    return goes or (_lost_config(state, world, subject) if to is state.target else ())


def _delete_plugin(state: NodeStateStatus, world: World) -> Sequence[Effect]:
    """The pod that is to go by the record."""
    pod = to_go(state, world)
    if pod is None or (world.holders and not state.recovering):
        return ()  # (after a reboot, whoever holds a device waits for it to be published again)
    meta = pod["metadata"]
    return (DeletePod(namespace=meta["namespace"], name=meta["name"], uid=meta["uid"]),)


def _verify(state: NodeStateStatus, world: World, subject: Subject) -> Sequence[Effect]:
    """Closed. A kubelet that starts wipes all slices of its node: those of our own nobody else would restore."""
    closing = _close(state, world, subject)
    if closing or state.target is None or subject.facts is None:
        return closing
    repair = _repair(state, subject, subject.facts, state.target, None if state.recovering else state.step)
    return (repair,) if repair else _delete_plugin(state, world)


def _failed(state: NodeStateStatus, world: World, subject: Subject) -> Sequence[Effect]:
    """Closed, and otherwise left as it is. Before it is let go so, all is done that somebody may be about to do: then he comes too late."""
    if world.abandoned and unwanted(state, world) and subject.facts is not None:
        if not step_used(state, world):
            cancel = subject.backend.cancel(subject.driver, subject.facts, state.step)
            return (cancel,) if cancel else ()
        goes = _delete_plugin(state, world)
        if goes:
            return goes
    if state.recovering:
        return _verify(state, world, subject)
    return _close(state, world, subject) or _delete_plugin(state, world)


PHASE_WRITES: Final[dict[Phase, Writes]] = {
    Phase.ADMITTED: _configs,
    Phase.QUIESCING: _close,
    Phase.DRAINING: _drain,
    Phase.APPLYING: _apply,
    Phase.VERIFYING: _verify,
    Phase.RELEASING: _open,
    Phase.ROLLING_BACK: _roll_back,
    Phase.FAILED: _failed,
    Phase.ABORTING: _open,
}
