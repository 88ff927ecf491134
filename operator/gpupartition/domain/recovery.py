"""A verified node that was restarted, or was away: closed at once, compared again, and opened when it is what it was.

Nothing of it is changed meanwhile, so its grant does not count against a limit: the node is unavailable anyway.
"""

from __future__ import annotations

from datetime import timedelta

from gpupartition.api.v1alpha1 import Phase
from gpupartition.domain.destination import expected_now
from gpupartition.domain.guards import Guard, superseded, unwanted
from gpupartition.domain.steps import still_to_go
from gpupartition.domain.world import State, Step, World


def lost(state: State, world: World) -> bool:
    """Whether what a node was verified to be is no longer known: it was restarted, or has not been Ready for too long.

    Nodes that are not Ready for a moment cost nothing: no pod is bound to them meanwhile.
    """
    verified = state.phase is Phase.UP_TO_DATE and state.target is not None and world.node_is_there
    if not verified or world.skip:
        return False
    return restarted_since(state.boot_id, world.boot_id) or world.away >= world.limits.not_ready


def restarted_since(before: str, now: str) -> bool:
    """Whether these boot IDs are of two boots; one that is not known says nothing."""
    return bool(before) and bool(now) and before != now


def recover(state: State, world: World, token: str) -> Step:
    """Take a grant for that. One that is not needed any more is only taken, so that it can be given back."""
    taken = state.model_copy(update={"token": token})
    if not world.grant_stands or not lost(state, world) or unwanted(state, world):
        return Step(taken, "")
    cause = "was restarted" if restarted_since(state.boot_id, world.boot_id) else "is not Ready"
    update = {
        "phase": Phase.QUIESCING,
        "since": world.now,
        "previous": state.target,
        "recovering": True,
        "quiesce": world.quiesce_by,
        "step": world.observed.step,
        "change": "None",
        "reason": "",
        "message": f"{cause}, so it is closed to new claims until it is verified again",
    }
    return Step(taken.model_copy(update=update), str(update["message"]))


def steady(guard: Guard) -> Guard:
    """The guard, for nodes that are being changed."""
    return lambda state, world: not state.recovering and guard(state, world)


def recovering(guard: Guard) -> Guard:
    """The guard, for nodes that are being verified again."""
    return lambda state, world: state.recovering and guard(state, world)


def recovered(state: State, world: World) -> bool:
    """The node is Ready and has published what it was verified with for long enough."""
    return (
        state.recovering
        and world.node_ready
        and world.observed.ready
        and state.target is not None
        and world.observed.assignment == state.target.assignment
        and expected_now(state, world)
        and world.matched >= world.limits.min_ready
        and not still_to_go(state, world)
    )


def recovered_and_wanted(state: State, world: World) -> bool:
    """It is what it was, and that is what is wanted."""
    return recovered(state, world) and not superseded(state, world)


def left(state: State, world: World) -> bool:
    """Nobody wants the node any more, and nothing of it was touched."""
    return state.recovering and unwanted(state, world)


def unassigned(state: State, world: World) -> bool:
    """What the node had was never assigned: somebody cut it by hand, and nobody does that again when it is restarted."""
    by_hand = state.recovering and state.target is not None and state.target.assignment is None
    return by_hand and world.observed.ready and world.observed.pool.usable and bool(world.observed.pool.devices)


def clock_of(state: State, world: World, limit: timedelta) -> timedelta | None:
    """How long verifying may take, counted from `since`: a node that is lost has until so long after it is Ready. None: it is not."""
    if not state.recovering or state.since is None:
        return limit
    if not world.node_ready:
        return None
    ready = max(world.ready_since or state.since, state.since)
    return limit + (ready - state.since)
