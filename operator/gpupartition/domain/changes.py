"""What changes in a node's record, beside its phase, when it takes an exit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from gpupartition.api.v1alpha1 import Assigned, Blocker, Phase, Restart
from gpupartition.domain.backend import Config, Observation
from gpupartition.domain.destination import expected_pool, lacking
from gpupartition.domain.eviction import standing_of
from gpupartition.domain.guards import depth, unanswered
from gpupartition.domain.quiesce import CORDONS
from gpupartition.domain.retiring import possible, retire
from gpupartition.domain.steps import step_used
from gpupartition.domain.wording import MOST
from gpupartition.domain.world import State, World

Change = Callable[[State, World], State]

MEANWHILE: Final = "; by now "

UNANSWERED: Final = (
    "no controller answers its DeviceTaintRule "
    "(switch on the feature gate DRADeviceTaintRules, or write quiesce: Cordon in the driver)"
)


def judge_anew(state: State, world: World) -> State:
    """What the node published when it was admitted may not have been what it is: a driver that was down, or starting."""
    return state.model_copy(update={"change": depth(world.observed, expected_pool(state))})


def begin_step(state: State, world: World) -> State:
    """A fresh step, and a higher generation for drivers whose slices we write. Whatever the node was, now something is done to it."""
    return _begin(state, world, state.target)


def begin_step_back(state: State, world: World) -> State:
    """The same, towards what the node had before."""
    return _begin(state, world, state.previous)


def _begin(state: State, world: World, to: Assigned | None) -> State:
    # Whoever had a device that the change takes away was waited for, unless devices stay for those who have them.
    stay = state.change in {"None", "Live"} and (world.live or bool(state.retiring))
    update = {
        "step": world.fresh,
        "generation": state.generation + 1,
        "recovering": False,
        "retiring": retire(state, world.observed, to) if stay else "",
    }
    return state.model_copy(update=update)


def begin_undoing(state: State, world: World) -> State:
    """A fresh step, and whatever was asked until now is answered: only another value asks to try again."""
    return answered(begin_step_back(state, world), world)


def answered(state: State, world: World) -> State:
    """It has failed, whatever was asked: only another value asks to try again."""
    return state.model_copy(update={"retry": world.retry})


def failed(state: State, world: World) -> State:
    """The same, of a node that is kept from new claims until somebody has looked at it."""
    return answered(_closed(state, world), world)


def close_first(state: State, world: World) -> State:
    """What was to change under its users is closed to new claims, and they are waited for after all."""
    change = "Repartition" if state.change == "Live" else state.change
    return _closed(state, world).model_copy(update={"change": change})


def _closed(state: State, world: World) -> State:
    return state.model_copy(update={"quiesce": world.quiesce_by}) if state.quiesce == "None" else state


def retarget(state: State, world: World) -> State:
    """Go to what is wanted now. The way back stays the one from before the first touch."""
    wanted = world.wanted
    assert wanted is not None, state
    target = wanted.assigned(world.revision).model_copy(update={"since": world.now})
    return state.model_copy(
        update={"target": target, "change": change_class(state, world, wanted), "recovering": False}
    )


def admitted(state: State, world: World) -> State:
    """The same for a node of which nothing has been closed yet: one that changes under its users need not be."""
    chosen = retarget(state, world)
    return chosen.model_copy(update={"quiesce": "None" if chosen.change == "Live" else world.quiesce_by})


def retarget_verified(state: State, world: World) -> State:
    """As retarget, from a layout that was verified and is now what the node has, however long the next one has to wait."""
    return retarget(state, world).model_copy(update={"current": state.target})


def retarget_dirty(state: State, world: World) -> State:
    """As retarget, from hardware of which nothing is verified: it must not be released by giving up."""
    return retarget(state, world).model_copy(update={"dirty": True})


def released(outcome: Phase) -> Change:
    """Remember what the node will be when its quiesce is gone."""

    def change(state: State, world: World) -> State:
        update: dict[str, Any] = {"outcome": outcome, "boot_id": world.boot_id, **_opening(state, world)}
        if outcome is Phase.UP_TO_DATE:
            update |= {"current": state.target, "attempts": 0}
        if outcome is Phase.ROLLED_BACK:
            update |= {"current": state.previous}
        return state.model_copy(update=update)

    return change


def settle_down(state: State, _: World) -> State:
    """At rest nothing of the attempt is kept but its token, which leaves last, and what it came to."""
    return state.model_copy(
        update={
            "outcome": None,
            "dirty": False,
            "restart": None,
            "previous": None,
            "blockers": [],
            "change": "None",
            "recovering": False,
            "quiesce": "DeviceTaint",
        }
    )


def settle_last(state: State, world: World) -> State:
    """The same, at the end of the queue: nothing has been closed that would have to be opened."""
    return settle_down(state, world).model_copy(update={"attempts": state.attempts + 1})


def give_up(state: State, world: World) -> State:
    """Back to the end of the queue."""
    update = {"outcome": Phase.PENDING, "attempts": state.attempts + 1, **_opening(state, world)}
    return state.model_copy(update=update)


def _opening(state: State, world: World) -> dict[str, Any]:
    """Opening a cordoned node is a step of its own, written even where there is nothing to open: it voids every cordon that comes late."""
    return {"step": world.fresh} if state.quiesce in CORDONS else {}


def with_doubt(state: State, world: World) -> State:
    """The same state, saying why the quiesce may never be confirmed."""
    if not unanswered(state, world) or state.reason == "QuiesceUnconfirmed":
        return state
    return state.model_copy(update={"reason": "QuiesceUnconfirmed", "message": UNANSWERED})


def with_what_lacks(state: State, world: World) -> State:
    """The same state, saying what it waits for, once that takes longer than it usually does. What has failed before stands first."""
    due = world.told >= world.limits.telling and (step_used(state, world) or state.recovering)
    why = lacking(world.observed, expected_pool(state)) if due else ""
    if not why:
        return state
    before = state.phase is Phase.ROLLING_BACK or state.recovering
    message = f"{cause(state)}{MEANWHILE}{why}" if before else why
    return state if message == state.message else state.model_copy(update={"message": message})


def cause(state: State) -> str:
    """Why it is where it is, without what it has waited for meanwhile."""
    return state.message.partition(MEANWHILE)[0]


def stop_undrained(state: State, world: World) -> State:
    """Nothing was changed, and it counts as a failure until somebody asks to try again."""
    return answered(give_up(state, world), world).model_copy(update={"outcome": Phase.ROLLED_BACK})


def wait_again(state: State, world: World) -> State:
    """Back to its place in the queue: nothing was tried."""
    return state.model_copy(update={"outcome": Phase.PENDING, **_opening(state, world)})


def record_restart(state: State, world: World) -> State:
    """Which pod is to be deleted, for this step, before it is."""
    assert world.observed.plugin is not None, state
    return state.model_copy(
        update={"restart": Restart(pod_uid=world.observed.plugin["metadata"]["uid"], step=state.step)}
    )


def record_agent_restart(state: State, world: World) -> State:
    """The same for the pod that acts on the assignment, which has not seen its config."""
    assert world.observed.agent is not None, state
    uid = world.observed.agent["metadata"]["uid"]
    return state.model_copy(update={"restart": Restart(pod_uid=uid, step=state.step, agent=True)})


def change_class(state: State, world: World, wanted: Config) -> str:
    """As in the record's field of that name. A holder in the way of a live change has a device of which nothing is known."""
    live = world.live and not world.holders and possible(state, world.observed, wanted.pool)
    return class_of(world.observed, wanted, live=live)


def class_of(observed: Observation, wanted: Config, *, live: bool) -> str:
    """The same, once it is known whether the change can be live."""
    told = observed.assignment == wanted.assignment  # else its driver starts anew, if only to publish the same
    if told and observed.running == wanted.fingerprint and observed.pool.equals(wanted.pool):
        return "None"
    return "Live" if live else depth(observed, wanted.pool)


def blockers_of(state: State, world: World) -> list[Blocker]:
    """The holders, at most ten, each with the time since when it has been in the way."""
    known = {(b.claim, b.device): b.since for b in state.blockers}
    places = {device.name: device.place.get("nodeName") for device in world.observed.pool.devices}
    named = []
    for holder in sorted(world.holders, key=lambda h: (h.claim, h.device))[:10]:
        pod, reason, budgets = standing_of(holder, world.occupants, world.drain, quiet=bool(world.no_eviction))
        since = known.get((holder.claim, holder.device)) or world.now
        blocker = Blocker(
            node=places.get(holder.device) or holder.node,  # of a group, on which of its nodes
            claim=holder.claim,
            pod=pod,
            pdb=budgets[:512],
            device=holder.device,
            reason=reason,
            since=since,
        )
        named.append(blocker)
    return named


def with_blockers(state: State, world: World) -> State:
    """The same state, naming who is in the way now."""
    now = blockers_of(state, world)
    return state if _words(now) == _words(state.blockers) else state.model_copy(update={"blockers": now})


def in_the_way(state: State, world: World) -> str:
    """Who they are, in words: the first three, and how many there are beside them, be it more than a record names."""
    words = [in_words(blocker) for blocker in blockers_of(state, world)[:MOST]]
    more = [f"{len(world.holders) - MOST} more"] if len(world.holders) > MOST else []
    return " and ".join(words + more) or "nobody is in the way any more"


def in_words(blocker: Blocker) -> str:
    """Who is in the way, and why."""
    by = f" of pod {blocker.pod}" if blocker.pod else ""
    budgets = f" by PodDisruptionBudget {blocker.pdb}" if blocker.pdb else ""
    return f"claim {blocker.claim}{by} ({blocker.reason}{budgets})"


def _words(blockers: list[Blocker]) -> list[tuple[str, ...]]:
    return [(b.claim, b.device, b.pod, b.reason, b.pdb) for b in blockers]
