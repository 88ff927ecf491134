"""What a node at rest may do: say what it waits for, and take a grant. Only admission gives one."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from gpupartition import names
from gpupartition.api.v1alpha1 import Assigned, DrainMode, Phase, Purpose
from gpupartition.domain.backend import Config
from gpupartition.domain.changes import admitted, settle_down, with_blockers
from gpupartition.domain.destination import missing_gpus
from gpupartition.domain.drift import LEFT_ALONE, Waiting, drift_message, given_another_chance, notice, reassigned
from gpupartition.domain.guards import has_wanted, lost_gpus, retried
from gpupartition.domain.leading import before_all, led, taken_over
from gpupartition.domain.phases import CONFIG_LATE, DEGRADED
from gpupartition.domain.problem import Problem
from gpupartition.domain.recovery import recover
from gpupartition.domain.retiring import RETIRING, retired, said
from gpupartition.domain.world import State, Step, World

AS_WANTED: Final = "publishes what is wanted"


def rest(state: State, world: World) -> Step | None:
    """The next state of a node at rest, or None. What it waits for there is a grant, which only admission gives."""
    if world.former is not None and (having := taken_over(state, world.former)) != state:
        return Step(having, "")
    if state.token and (world.grant is None or world.grant.token != state.token):
        return Step(state.model_copy(update={"token": ""}), "")
    if world.grant is not None and world.grant.token != state.token:
        take = recover if world.grant.purpose is Purpose.RECOVERY else _take_grant
        return take(state, world, world.grant.token)
    if state.token or not world.node_is_there:
        return None
    if world.in_use is not None and world.in_use < retired(state).names:
        return _released(state, world, world.in_use)
    if has_wanted(state, world):
        return _adopt(state, world)
    if world.left_out is not None:
        passing = world.left_out.passing
        waiting = _as(Phase.PENDING if passing else Phase.SKIPPED, world.left_out.reason, _said(world.left_out))
        # Of two that have a group's pool, one does not lead it any more: what both have is the other one's.
        handed_over = passing and not world.last_to_know
        return _settle(state, world, waiting, {"current": None, "retiring": ""} if handed_over else {})
    if world.wanted is None:
        return None
    return _wait(state, world)


def _take_grant(state: State, world: World, token: str) -> Step:
    """Enter Admitted, with the way back on record. A grant that became useless is only taken, so that it can be given back.

    Useless is also one that was made for another node of this name, by a policy that is gone, or before a pause: it came too late.
    """
    taken = state.model_copy(update={"token": token})
    if world.drain.mode is DrainMode.WHEN_IDLE and world.holders:
        return Step(with_blockers(taken, world), "")
    useless = (
        not world.grant_stands
        or not world.node_is_there
        or world.wanted is None
        or world.way_back is None
        or has_wanted(state, world)
        or world.skip
        or world.held_back
        or bool(world.at_work or world.not_ours)
    )
    if useless:
        return Step(taken, "")
    before = world.way_back
    assert before is not None, state
    previous = before.assigned().model_copy(update={"since": world.now})
    update: dict[str, Any] = {
        "phase": Phase.ADMITTED,
        "since": world.now,
        "previous": previous,
        "original": state.original or before_all(previous, before.pool.group),
        "boot_id": world.boot_id,
        "gpus": len(world.observed.pool.gpus),
        "repairs": [*state.repairs[-7:], world.now] if state.reason == "Drift" else state.repairs,
        "retry": world.retry,
        "generation": max(state.generation, world.observed.pool.generation) + bool(before.pool.group),
        "reason": "",
        "message": "admitted",
    }
    return Step(admitted(taken, world).model_copy(update=update), "admitted")


def _released(state: State, world: World, in_use: frozenset[str]) -> Step:
    """Retired devices that nobody has go; the record says so before the slices do."""
    kept = retired(state).keep(in_use)
    update = {"retiring": kept.to_json() if kept.devices else "", "generation": state.generation + 1}
    if state.phase is Phase.UP_TO_DATE:
        reason, message = _of_retired(state, world)
        update |= {"reason": reason, "message": message}
    return Step(state.model_copy(update=update), "")


def _adopt(state: State, world: World) -> Step | None:
    wanted = world.wanted
    assert wanted is not None, state
    as_seen = Config(fingerprint=wanted.fingerprint, assignment=world.observed.assignment, pool=wanted.pool).assigned(
        world.revision
    )
    on_record = (
        state.phase is Phase.UP_TO_DATE and same_layout(state.current, as_seen) and same_layout(state.target, as_seen)
    )
    reason, message = _of_retired(state, world)
    if on_record and not state.blockers and state.reason == reason and message in {state.message, AS_WANTED}:
        return None
    if on_record and RETIRING in {state.reason, reason}:
        return Step(state.model_copy(update={"reason": reason, "message": message}), message)
    current = as_seen.model_copy(update={"since": world.now})
    told = state.generation if led(state) == wanted.pool.group else 0  # of that pool
    update: dict[str, Any] = {
        "phase": Phase.UP_TO_DATE,
        "since": world.now,
        "target": current,
        "current": current,
        "boot_id": world.boot_id,
        "generation": max(told, world.observed.pool.generation),
        "attempts": 0,
        "blockers": [],
        "reason": reason,
        "message": message,
    }
    if world.observed.retired.devices:  # that somebody else has retired
        update["retiring"] = retired(state).beside(world.observed.retired).to_json()
    return Step(settle_down(state.model_copy(update=update), world), message)


def _of_retired(state: State, world: World) -> tuple[str, str]:
    """Reason and message of a node that has what is wanted."""
    if world.in_use:
        return RETIRING, said(world.in_use)
    unknown = world.in_use is None and bool(state.retiring) and state.reason == RETIRING
    return (state.reason, state.message) if unknown else ("", AS_WANTED)


def released_at(state: State) -> datetime | None:
    """When a node at rest was brought to what it has; None for one that had it already (its target is as old as its adoption)."""
    target = state.target
    if state.phase is not Phase.UP_TO_DATE or state.original is None or target is None or target.since == state.since:
        return None
    return state.since


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
        update["attempts"] = 0
    return _settle(state, world, _waiting_as(state, world, new_target=new_target), update)


def _settle(state: State, world: World, waiting: Waiting, update: dict[str, Any]) -> Step | None:
    if waiting.phase is not state.phase:
        update |= {"since": world.now}
    update |= {"phase": waiting.phase, "reason": waiting.reason, "message": waiting.message, **waiting.remembers}
    changed = state.model_copy(update=update)
    pending = waiting.phase is Phase.PENDING
    changed = with_blockers(changed, world) if pending else changed.model_copy(update={"blockers": []})
    return None if changed == state else Step(changed, waiting.message)


def _waiting_as(state: State, world: World, *, new_target: bool) -> Waiting:
    unchanged = _as(state.phase, state.reason, state.message)
    if state.phase is Phase.ROLLED_BACK and not new_target and not retried(state, world):
        return unchanged
    drifted = state.phase is Phase.UP_TO_DATE and not new_target
    if drifted and not reassigned(state, world):
        if world.differs < world.limits.drift:
            return unchanged
        if lost_gpus(state, world):
            return _as(Phase.UP_TO_DATE, DEGRADED, missing_gpus(world.observed.pool, _wanted(world).pool))
    kept_out = _kept_out(world)
    if kept_out is not None:
        return kept_out
    return notice(state, world) if drifted else _pending(state, world, new_target=new_target)


def _pending(state: State, world: World, *, new_target: bool) -> Waiting:
    unchanged = _as(state.phase, state.reason, state.message)
    if state.phase is Phase.SKIPPED and state.reason in LEFT_ALONE and not new_target:
        if not given_another_chance(state, world):
            return unchanged
        return _as(Phase.PENDING, "Drift", drift_message(world), repairs=[], contests=[])
    if state.phase is Phase.PENDING and state.reason in {"Drift", CONFIG_LATE} and not new_target:
        return unchanged
    if world.at_work:
        return _as(Phase.PENDING, "ForeignMaintenance", f"waits until others are done: {world.at_work}")
    return _as(Phase.PENDING, "", "waits to be admitted")


def _kept_out(world: World) -> Waiting | None:
    """Why the node is not to be changed at all; None when it may be."""
    if world.skip:
        return _as(Phase.SKIPPED, "SkipRequested", f"it carries the label {names.SKIP}; remove that to have it changed")
    if world.not_ours:
        return _as(Phase.SKIPPED, "NameTaken", f"somebody else's {world.not_ours}; find out whose it is, and delete it")
    if world.observed.lost_gpus:
        there = len(world.observed.pool.gpus)
        message = f"publishes {there} of {there + world.observed.lost_gpus} GPUs; mend the hardware, or tell its driver of fewer GPUs"
        return _as(Phase.SKIPPED, DEGRADED, message)
    return None if world.way_back is not None else _as(Phase.SKIPPED, "NoWayBack", world.no_way_back)


def _as(phase: Phase, reason: str, message: str, **remembers: Any) -> Waiting:
    return Waiting(phase=phase, reason=reason, message=message, remembers=remembers)


def _said(problem: Problem) -> str:
    return f"{problem.why}; {problem.fix}"


def _wanted(world: World) -> Config:
    assert world.wanted is not None, world
    return world.wanted
