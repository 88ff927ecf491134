"""One node's way, as a table: what each phase does, which exits it has, how long it may take.

`advance` gives the record's next state; whoever calls it persists that state under the resourceVersion of the record that was read, and
only then carries out `effects`. So every effect follows from a persisted state, and a crash anywhere is repaired by running it again.

Why it holds against a worker that is stopped between any check and any write (each rule taken away breaks an invariant):
* Objects that will be written are read before the record, facts after it; writes carry the resourceVersion of that earlier read.
* Entering Applying or RollingBack sets a fresh `step`. The assignment carries the step with it in one write, so each step is used once.
* Applying goes back to Draining only after its step was used up without effect. Rolling back always writes its step.
* A grant is taken by the record before it leaves the ledger, and stays in the ledger until the record is at rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from gpupartition.api.v1alpha1 import Assigned, Blocker, DrainMode, Grant, NodeStateStatus, Phase, Restart
from gpupartition.domain.backend import Config, Observation
from gpupartition.domain.holders import Holder
from gpupartition.domain.pool import Pool

State = NodeStateStatus

AT_REST: Final = frozenset({Phase.PENDING, Phase.UP_TO_DATE, Phase.ROLLED_BACK, Phase.SKIPPED})
QUIESCED: Final = frozenset(
    {Phase.QUIESCING, Phase.DRAINING, Phase.APPLYING, Phase.VERIFYING, Phase.ROLLING_BACK, Phase.FAILED}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long each phase may take, and how long a fact must have been true. Every one can be set (settings.py)."""

    admitted: timedelta = timedelta(seconds=60)
    quiescing: timedelta = timedelta(seconds=120)
    draining_when_idle: timedelta = timedelta(seconds=60)
    draining_wait: timedelta = timedelta(seconds=3600)
    applying: timedelta = timedelta(seconds=600)
    verifying: timedelta = timedelta(seconds=300)
    settle: timedelta = timedelta(
        seconds=5
    )  # a scheduler with a backlog bound a pod 0.3 s after the taint; ten times that, and more
    idle_gap: timedelta = timedelta(seconds=5)  # a force-deleted pod frees its claim seconds before its processes end
    min_ready: timedelta = timedelta(seconds=10)
    drift: timedelta = timedelta(seconds=180)  # a kubelet start wipes the slices for up to 42 s


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiesce:
    """The node's DeviceTaintRule as read.

    `active`: its effect is NoSchedule; `proven`: the controller manager has answered for this generation, so the feature is on;
    `watched`: for how long this very operator has itself seen it active (never taken from a clock that another one wrote).
    """

    active: bool
    proven: bool
    watched: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """All that one turn of one node may depend on. Facts were read after the record."""

    now: datetime
    fresh: str  # a random value that was never used before: the step, if this turn begins one
    node_is_there: bool  # the Node exists and is the one that the record is about
    node_ready: bool
    boot_id: str
    wanted: Config | None  # None: nothing is wanted any more, or (refused) nothing new can be
    refused: bool  # the policy as it stands was refused: what was accepted before stands
    revision: str
    grant: Grant | None  # the ledger's entry for this node
    way_back: Config | None
    no_way_back: str  # why there is none
    config_touched: (
        datetime | None
    )  # the oldest last-used time of the config objects of target and way back; None: one is missing
    observed: Observation
    quiesce: Quiesce | None
    holders: Sequence[Holder]  # those that the change would disturb
    idle: timedelta  # how long ago the first of the empty live lists of holders was read
    matched: timedelta  # for how long the pool has been the one that the phase waits for
    differs: timedelta  # for how long a ready node at rest has published something else
    retry: str
    drain: DrainMode
    limits: Limits = field(default_factory=Limits)


Guard = Callable[[State, World], bool]
Change = Callable[[State, World], State]


@dataclass(frozen=True, slots=True)
class Exit:
    """A way out of a phase: taken when `when` holds, unless an earlier one of the row does. `note` is for people."""

    when: Guard
    to: Phase
    note: str
    change: Change = lambda state, _: state


@dataclass(frozen=True, slots=True)
class Row:
    """A phase: its exits in order, its time limit, and where it goes when that is over. No limit: it may wait for ever."""

    exits: tuple[Exit, ...]
    limit: Callable[[State, World], timedelta] | None = None
    late: Exit | None = None


# -------------------------------------------------------------------------------------------------------------------- guards


def gone(_: State, world: World) -> bool:
    """The Node is deleted, or another one has its name: nothing that we know of it is true any more."""
    return not world.node_is_there


def unwanted(_: State, world: World) -> bool:
    """Nobody wants a layout here any more: the policy is being deleted, or the node has left it."""
    return world.wanted is None and not world.refused


def superseded(state: State, world: World) -> bool:
    """The policy wants another layout than the one this node is on its way to."""
    return (
        world.wanted is not None and state.target is not None and world.wanted.fingerprint != state.target.fingerprint
    )


def has_wanted(_: State, world: World) -> bool:
    """The node publishes what is wanted, and runs the very config: whoever put it there, nothing is to be done."""
    wanted, seen = world.wanted, world.observed
    return (
        world.node_is_there
        and wanted is not None
        and seen.running == wanted.fingerprint
        and seen.ready
        and seen.pool.equals(wanted.pool)
    )


def superseded_by_what_is_there(state: State, world: World) -> bool:
    """The new target is what the node has had all along."""
    return superseded(state, world) and has_wanted(state, world)


def quiesced(_: State, world: World) -> bool:
    """New claims are kept away, as far as can be seen."""
    return world.quiesce is not None and world.quiesce.active


def settled(state: State, world: World) -> bool:
    """Every scheduler has had the time to see the taint."""
    quiesce = world.quiesce
    return quiesced(state, world) and quiesce is not None and quiesce.proven and quiesce.watched >= world.limits.settle


def config_there(state: State, world: World) -> bool:
    """The config objects exist and were touched after this record named them: none can be collected under our hands."""
    named = state.target.since if state.target else None
    return world.config_touched is not None and (named is None or world.config_touched >= named)


def drained(state: State, world: World) -> bool:
    """Two live lists of holders, some seconds apart, were empty."""
    return not world.holders and world.idle >= world.limits.idle_gap and config_there(state, world)


def step_used(state: State, world: World) -> bool:
    """The node carries this very step: its one write has been done."""
    return bool(state.step) and world.observed.step == state.step


def assigned(state: State, world: World) -> bool:
    """This step has brought the node the assignment of the target."""
    return step_used(state, world) and state.target is not None and world.observed.assignment == state.target.assignment


def cancelled(state: State, world: World) -> bool:
    """This step was used up without assigning anything."""
    return step_used(state, world) and not assigned(state, world)


def assigned_under_a_holder(state: State, world: World) -> bool:
    """Somebody got a device in spite of the taint (a toleration, a rule deleted by hand)."""
    return assigned(state, world) and bool(world.holders)


def needs_restart(state: State, to: Assigned | None) -> bool:
    """The value on the node does not change, so nothing makes the driver start anew unless its pod is deleted."""
    came_from = state.previous if to is state.target else state.target
    return to is not None and came_from is not None and came_from.assignment == to.assignment


def restart_due(state: State, world: World, to: Assigned | None) -> bool:
    """A plugin pod has to go, and which one is not yet on record for this step."""
    recorded = state.restart is not None and state.restart.step == state.step
    return (
        step_used(state, world)
        and world.observed.assignment == (to.assignment if to else None)
        and world.observed.plugin is not None
        and needs_restart(state, to)
        and not recorded
        and not world.holders
    )


def restarted(state: State, world: World, to: Assigned | None) -> bool:
    """The pod that was to go in this step is gone and another one is up; or none had to."""
    plugin = world.observed.plugin
    if plugin is None or not needs_restart(state, to):
        return True
    return (
        state.restart is not None
        and state.restart.step == state.step
        and plugin["metadata"]["uid"] != state.restart.pod_uid
    )


def acknowledged(state: State, world: World) -> bool:
    """The driver runs with the target's config."""
    return assigned(state, world) and restarted(state, world, state.target) and world.observed.ready


def verified(state: State, world: World) -> bool:
    """The node has published exactly the target for long enough, and the target is still the one that is wanted."""
    return (
        assigned(state, world)
        and not superseded(state, world)
        and expected_now(state, world)
        and world.matched >= world.limits.min_ready
    )


def former_pool_is_back(state: State, world: World) -> bool:
    """The way back has been walked: same assignment, by this very step, and an equal pool."""
    return (
        step_used(state, world)
        and state.previous is not None
        and world.observed.assignment == state.previous.assignment
        and restarted(state, world, state.previous)
        and world.observed.ready
        and expected_now(state, world)
    )


def expected_pool(state: State) -> Pool:
    """What the node has to publish before it may leave its phase."""
    rolling_back = state.phase is Phase.ROLLING_BACK
    assigned_layout = state.previous if rolling_back else state.target
    return Pool.from_json(assigned_layout.pool if assigned_layout else "")


def expected_now(state: State, world: World) -> bool:
    """The pool is exactly what the phase waits for."""
    return world.observed.pool.equals(expected_pool(state))


def unquiesced(_: State, world: World) -> bool:
    """Our rule is gone."""
    return world.quiesce is None


def retried(state: State, world: World) -> bool:
    """Somebody asked to try again since this node failed."""
    return bool(world.retry) and world.retry != state.retry


# ------------------------------------------------------------------------------------------------------------------- changes


def begin_step(state: State, world: World) -> State:
    """A fresh step, and a higher generation for drivers whose slices we write."""
    return state.model_copy(update={"step": world.fresh, "generation": state.generation + 1})


def answer_retry(state: State, world: World) -> State:
    """A fresh step, and the request is answered: only another value asks again."""
    return begin_step(state, world).model_copy(update={"retry": world.retry})


def retarget(state: State, world: World) -> State:
    """Go to what is wanted now. The way back stays the one from before the first touch."""
    wanted = world.wanted
    assert wanted is not None, state
    target = wanted.assigned(world.revision).model_copy(update={"since": world.now})
    return state.model_copy(update={"target": target, "change": change_class(world.observed, wanted)})


def retarget_dirty(state: State, world: World) -> State:
    """As retarget, from hardware of which nothing is verified: it must not be released by giving up."""
    return retarget(state, world).model_copy(update={"dirty": True})


def released(outcome: Phase) -> Change:
    """Remember what the node will be when its quiesce is gone."""

    def change(state: State, _: World) -> State:
        update: dict[str, Any] = {"outcome": outcome}
        if outcome is Phase.UP_TO_DATE:
            update |= {"current": state.target, "attempts": 0}
        if outcome is Phase.ROLLED_BACK:
            update |= {"current": state.previous}
        return state.model_copy(update=update)

    return change


def settle_down(state: State, _: World) -> State:
    """At rest nothing of the attempt is kept but its token, which leaves last, and what it came to."""
    return state.model_copy(
        update={"outcome": None, "dirty": False, "restart": None, "previous": None, "blockers": [], "change": "None"}
    )


def give_up(state: State, _: World) -> State:
    """Back to the end of the queue."""
    return state.model_copy(update={"outcome": Phase.PENDING, "attempts": state.attempts + 1})


def record_restart(state: State, world: World) -> State:
    """Which pod is to be deleted, for this step, before it is."""
    assert world.observed.plugin is not None, state
    return state.model_copy(
        update={"restart": Restart(pod_uid=world.observed.plugin["metadata"]["uid"], step=state.step)}
    )


def change_class(observed: Observation, wanted: Config) -> str:
    """None: it is there. Restart: the same devices from another config. Repartition: devices change."""
    if not observed.pool.equals(wanted.pool):
        return "Repartition"
    return "None" if observed.running == wanted.fingerprint else "Restart"


# --------------------------------------------------------------------------------------------------------------------- table


def _limit(name: str) -> Callable[[State, World], timedelta]:
    return lambda _, world: getattr(world.limits, name)


def _draining(_: State, world: World) -> timedelta:
    return world.limits.draining_wait if world.drain is DrainMode.WAIT else world.limits.draining_when_idle


def _not(guard: Guard) -> Guard:
    return lambda state, world: not guard(state, world)


def _clean(guard: Guard) -> Guard:
    return lambda state, world: guard(state, world) and not state.dirty


def _dirty(guard: Guard) -> Guard:
    return lambda state, world: guard(state, world) and state.dirty


def _due(which: str) -> Guard:
    return lambda state, world: restart_due(state, world, getattr(state, which))


_GONE: Final = Exit(gone, Phase.ABORTING, "the node is gone", give_up)
_UNWANTED: Final = (
    Exit(_clean(unwanted), Phase.ABORTING, "the policy no longer wants this node", give_up),
    Exit(_dirty(unwanted), Phase.FAILED, "the policy no longer wants this node, whose hardware is unverified"),
    Exit(_clean(superseded_by_what_is_there), Phase.ABORTING, "the node has had the new target all along", give_up),
)

PHASES: Final[dict[Phase, Row]] = {
    Phase.ADMITTED: Row(
        (
            _GONE,
            *_UNWANTED,
            Exit(superseded, Phase.ADMITTED, "the policy wants another layout", retarget),
            Exit(config_there, Phase.QUIESCING, "the way back is on record and the config is in place"),
        ),
        _limit("admitted"),
        Exit(lambda *_: True, Phase.PENDING, "the config could not be put in place in time", settle_down),
    ),
    Phase.QUIESCING: Row(
        (
            _GONE,
            *_UNWANTED,
            Exit(superseded, Phase.QUIESCING, "the policy wants another layout", retarget),
            Exit(settled, Phase.DRAINING, "no new claim is allocated here"),
        ),
        _limit("quiescing"),
        Exit(lambda *_: True, Phase.ABORTING, "the quiesce was not confirmed in time", give_up),
    ),
    Phase.DRAINING: Row(
        (
            _GONE,
            *_UNWANTED,
            Exit(superseded, Phase.DRAINING, "the policy wants another layout", retarget),
            Exit(_not(quiesced), Phase.QUIESCING, "the quiesce was taken away"),
            Exit(drained, Phase.APPLYING, "no holder is left", begin_step),
        ),
        _draining,
        Exit(lambda *_: True, Phase.ABORTING, "holders did not end in time", give_up),
    ),
    Phase.APPLYING: Row(
        (
            _GONE,
            Exit(cancelled, Phase.DRAINING, "a claim was allocated at the last moment"),
            Exit(assigned_under_a_holder, Phase.ROLLING_BACK, "a claim slipped past the quiesce", begin_step),
            Exit(_due("target"), Phase.APPLYING, "the driver's pod has to start anew", record_restart),
            Exit(acknowledged, Phase.VERIFYING, "the driver runs with the new config"),
        ),
        _limit("applying"),
        Exit(lambda *_: True, Phase.ROLLING_BACK, "the driver did not take the new config in time", begin_step),
    ),
    Phase.VERIFYING: Row(
        (
            _GONE,
            Exit(superseded, Phase.DRAINING, "the policy wants another layout", retarget),
            Exit(
                verified,
                Phase.RELEASING,
                "the node publishes exactly what is wanted",
                released(Phase.UP_TO_DATE),
            ),
        ),
        _limit("verifying"),
        Exit(lambda *_: True, Phase.ROLLING_BACK, "the node does not publish what is wanted", begin_step),
    ),
    Phase.RELEASING: Row(
        (
            Exit(
                lambda s, w: unquiesced(s, w) and s.outcome is Phase.ROLLED_BACK,
                Phase.ROLLED_BACK,
                "back on its former layout",
                settle_down,
            ),
            Exit(unquiesced, Phase.UP_TO_DATE, "open for claims with the new layout", settle_down),
        ),
    ),
    Phase.ROLLING_BACK: Row(
        (
            _GONE,
            Exit(_due("previous"), Phase.ROLLING_BACK, "the driver's pod has to start anew", record_restart),
            Exit(
                former_pool_is_back,
                Phase.RELEASING,
                "the node publishes its former layout again",
                released(Phase.ROLLED_BACK),
            ),
        ),
        lambda _, world: world.limits.applying + world.limits.verifying,
        Exit(lambda *_: True, Phase.FAILED, "the former layout did not come back in time"),
    ),
    Phase.FAILED: Row(
        (
            _GONE,
            Exit(retried, Phase.ROLLING_BACK, "somebody asked to try again", answer_retry),
            Exit(unwanted, Phase.ROLLING_BACK, "the policy no longer wants this node", begin_step),
            Exit(superseded, Phase.DRAINING, "the policy wants another layout", retarget_dirty),
        ),
    ),
    Phase.ABORTING: Row((Exit(unquiesced, Phase.PENDING, "open for claims again, unchanged", settle_down),)),
}


@dataclass(frozen=True, slots=True)
class Step:
    """What a turn came to: the state to persist, and the sentence that says why it differs."""

    state: State
    note: str


def advance(state: State, world: World) -> Step | None:
    """The next state of a node in flight, or None while it stays as it is. Success beats lateness: never undo what has just worked."""
    row = PHASES[state.phase]
    for way in row.exits:
        if way.when(state, world):
            return _take(way, state, world)
    late = row.limit is not None and state.since is not None and world.now - state.since >= row.limit(state, world)
    if late and row.late is not None:
        way = row.late
        if state.dirty and way.to is Phase.ABORTING:
            way = Exit(way.when, Phase.FAILED, way.note)
        return _take(way, state, world)
    return None


def _take(way: Exit, state: State, world: World) -> Step:
    changed = way.change(state, world)
    same_phase = way.to is state.phase
    reason, message = reason_of(way, state), why_late(way, state, world)
    return Step(
        changed.model_copy(
            update={
                "phase": way.to,
                "since": state.since if same_phase and changed.target == state.target else world.now,
                "reason": reason,
                "message": message,
            }
        ),
        message,
    )


def reason_of(way: Exit, state: State) -> str:
    """One CamelCase word for the record: what a phase was left for, kept while a failure is being undone."""
    if way.to in {Phase.ROLLING_BACK, Phase.FAILED}:
        return f"{state.phase}Failed"
    if way.to in {Phase.RELEASING, Phase.ROLLED_BACK} and state.reason.endswith("Failed"):
        return state.reason
    return ""


def why_late(way: Exit, state: State, world: World) -> str:
    """The exit's note, and where a node fails, what is really there."""
    failure_goes_on = state.reason.endswith("Failed") and way.to in {Phase.RELEASING, Phase.ROLLED_BACK}
    if failure_goes_on:
        return state.message
    if way.to not in {Phase.ROLLING_BACK, Phase.FAILED}:
        return way.note
    seen = world.observed
    facts = [
        "" if seen.ready else "its driver pod is not ready",
        seen.pool.problem,
        _difference(seen.pool, expected_pool(state)),
    ]
    return f"{way.note}: " + "; ".join(f for f in facts if f) if any(facts) else way.note


def _difference(seen: Pool, wanted: Pool) -> str:
    have, want = {d.name for d in seen.devices}, {d.name for d in wanted.devices}
    parts = []
    if want - have:
        parts.append(f"{len(want - have)} of {len(want)} devices are missing, such as {min(want - have)}")
    if have - want:
        parts.append(f"{len(have - want)} are there that should be gone, such as {min(have - want)}")
    return " and ".join(parts)


# ------------------------------------------------------------------------------------------------------------------- at rest


def rest(state: State, world: World) -> Step | None:
    """The next state of a node at rest, or None. What it waits for there is a grant, which only admission gives."""
    if state.token and (world.grant is None or world.grant.token != state.token):
        return Step(state.model_copy(update={"token": ""}), "")
    if world.grant is not None and world.grant.token != state.token:
        return _take_grant(state, world, world.grant.token)
    if state.token or not world.node_is_there:
        return None
    if has_wanted(state, world):
        return _adopt(state, world)
    if world.wanted is None:
        return None
    return _wait(state, world)


def _take_grant(state: State, world: World, token: str) -> Step:
    """Enter Admitted, with the way back on record. A grant that became useless is only taken, so that it can be given back."""
    taken = state.model_copy(update={"token": token})
    useless = not world.node_is_there or world.wanted is None or world.way_back is None or has_wanted(state, world)
    if useless:
        return Step(taken, "")
    before = world.way_back
    assert before is not None, state
    previous = before.assigned().model_copy(update={"since": world.now})
    update: dict[str, Any] = {
        "phase": Phase.ADMITTED,
        "since": world.now,
        "previous": previous,
        "original": state.original or previous,
        "boot_id": world.boot_id,
        "retry": world.retry,
        "generation": max(state.generation, world.observed.pool.generation),
        "blockers": [],
        "reason": "",
        "message": "admitted",
    }
    return Step(retarget(taken, world).model_copy(update=update), "admitted")


def _adopt(state: State, world: World) -> Step | None:
    wanted = world.wanted
    assert wanted is not None, state
    as_seen = Config(fingerprint=wanted.fingerprint, assignment=world.observed.assignment, pool=wanted.pool).assigned(
        world.revision
    )
    on_record = (
        state.phase is Phase.UP_TO_DATE and same_layout(state.current, as_seen) and same_layout(state.target, as_seen)
    )
    if on_record and not state.blockers:
        return None
    current = as_seen.model_copy(update={"since": world.now})
    update: dict[str, Any] = {
        "phase": Phase.UP_TO_DATE,
        "since": world.now,
        "target": current,
        "current": current,
        "generation": max(state.generation, world.observed.pool.generation),
        "attempts": 0,
        "blockers": [],
        "reason": "",
        "message": "publishes what is wanted",
    }
    return Step(settle_down(state.model_copy(update=update), world), "publishes what is wanted")


def same_layout(one: Assigned | None, other: Assigned) -> bool:
    """The same config, assigned by the same value."""
    return one is not None and (one.fingerprint, one.assignment) == (other.fingerprint, other.assignment)


def _wait(state: State, world: World) -> Step | None:
    """Say what the node waits for: that is all a node at rest may do."""
    wanted = world.wanted
    assert wanted is not None, state
    new_target = state.target is None or state.target.fingerprint != wanted.fingerprint
    update: dict[str, Any] = {}
    if new_target:
        update["target"] = wanted.assigned(world.revision).model_copy(update={"since": world.now})
    phase, reason, message = _waiting_as(state, world, new_target=new_target)
    blockers = blockers_of(state, world) if phase is Phase.PENDING else []
    if phase is not state.phase:
        update |= {"since": world.now}
    update |= {"phase": phase, "reason": reason, "message": message}
    if [(b.claim, b.pod) for b in blockers] != [(b.claim, b.pod) for b in state.blockers]:
        update["blockers"] = blockers
    changed = state.model_copy(update=update)
    return None if changed == state else Step(changed, message)


def _waiting_as(state: State, world: World, *, new_target: bool) -> tuple[Phase, str, str]:
    unchanged = state.phase, state.reason, state.message
    if state.phase is Phase.ROLLED_BACK and not new_target and not retried(state, world):
        return unchanged
    if world.way_back is None:
        return Phase.SKIPPED, "NoWayBack", world.no_way_back
    if state.phase is Phase.UP_TO_DATE and not new_target:
        if world.differs < world.limits.drift:
            return unchanged
        return Phase.PENDING, "Drift", drift_message(world)
    if state.phase is Phase.PENDING and state.reason == "Drift" and not new_target:
        return unchanged
    return Phase.PENDING, "", "waits to be admitted"


def drift_message(world: World) -> str:
    """What a node publishes instead of what it was verified with."""
    wanted = world.wanted.pool if world.wanted else Pool()
    return f"published the wanted layout and no longer does: {_difference(world.observed.pool, wanted) or world.observed.pool.problem}"


def blockers_of(state: State, world: World) -> list[Blocker]:
    """The holders, at most ten, each with the time since when it has been in the way."""
    known = {(b.claim, b.device): b.since for b in state.blockers}
    return [
        Blocker(
            node=holder.node,
            claim=holder.claim,
            pod=holder.pods[0] if holder.pods else "",
            device=holder.device,
            reason=holder.reason,
            since=known.get((holder.claim, holder.device)) or world.now,
        )
        for holder in sorted(world.holders, key=lambda h: (h.claim, h.device))[:10]
    ]
