"""What has come of a step: the one write that carries it, and the pods of the driver that have to start anew."""

from __future__ import annotations

from gpupartition.domain.destination import destination, expected_now
from gpupartition.domain.objects import Object
from gpupartition.domain.world import State, World


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
    """Somebody got a device in spite of the taint (a toleration, a rule deleted by hand).

    A Restart changes no device: pods that end meanwhile only wait for the driver to be up again.
    """
    return state.change != "Restart" and assigned(state, world) and bool(world.holders)


def needs_restart(state: State, world: World) -> bool:
    """Nothing makes the driver start anew unless its pod is deleted: it never does by itself, or the value on the node does not change."""
    one, other = state.target, state.previous
    return (one is not None and other is not None and one.assignment == other.assignment) or world.observed.restarts


def to_go(state: State, world: World) -> Object | None:
    """The pod that was to go, in whichever step, and is still there: whoever was about to delete it may yet come."""
    pods = (world.observed.plugin, world.observed.agent)
    uid = state.restart.pod_uid if state.restart is not None else ""
    return next((pod for pod in pods if pod is not None and pod["metadata"]["uid"] == uid), None)


def still_to_go(state: State, world: World) -> bool:
    """There is such a pod."""
    return to_go(state, world) is not None


def restart_recorded(state: State) -> bool:
    """Which pod is to go in this step stands in the record."""
    return state.restart is not None and state.restart.step == state.step


def restart_due(state: State, world: World) -> bool:
    """A plugin pod has to go, and which one is not yet on record for this step."""
    to, seen = destination(state), world.observed
    return (
        step_used(state, world)
        and seen.assignment == (to.assignment if to else None)
        and seen.plugin is not None
        and seen.acknowledged
        and (needs_restart(state, world) or still_to_go(state, world))
        and not restart_recorded(state)
        and not world.holders
    )


def restarted(state: State, world: World) -> bool:
    """The pod that was to go in this step is gone and another one is up; or none had to, and none is left that had to in an earlier one."""
    if still_to_go(state, world):
        return False
    return world.observed.plugin is None or not needs_restart(state, world) or restart_recorded(state)


def looked_too_early(state: State, world: World) -> bool:
    """The driver has done what it was told, and its plugin still publishes what it found when it started, some time ago.

    What a driver says may be about what it was told before, or before a reboot: so this may come more than once.
    """
    to, seen = destination(state), world.observed
    if not (seen.restarts and seen.ready and _has_had_time(world)):
        return False
    told = step_used(state, world) and to is not None and seen.assignment == to.assignment
    free = world.node_ready if state.recovering else not world.holders
    return told and free and not still_to_go(state, world) and not expected_now(state, world)


def _has_had_time(world: World) -> bool:
    """The plugin began so long ago that it would publish by now what it found.

    By the clock with which this very operator has seen it: when it was created is told by the API server's, which may be minutes off, and
    would have each new pod replaced before it is up, or GPUs given up that it is about to find.
    """
    return world.plugin_seen >= world.limits.start_anew


def looked_again(state: State, world: World) -> bool:
    """The plugin has started anew in this step, after the driver was done, and publishes what it found then: no GPU comes by waiting."""
    anew = restart_recorded(state) and not _recorded_agent(state)
    return anew and world.observed.restarts and not still_to_go(state, world) and _has_had_time(world)


def gave_up(state: State, world: World) -> bool:
    """The driver says that it has failed at what this step told it, and knew what it was told.

    It may have said so late, of what it was told before: it gets a moment to take that back.
    """
    says_so = step_used(state, world) and bool(world.observed.failed)
    late = state.since is not None and world.now - state.since >= world.limits.min_ready
    return says_so and late and not world.observed.stale and not _recorded_agent(state)


def knew_too_little(state: State, world: World) -> bool:
    """The driver says that it has failed, and may not have seen the config: it is older than that, and sees such things late."""
    seen = world.observed
    failed = step_used(state, world) and bool(seen.failed) and seen.stale and seen.agent is not None
    return failed and not _recorded_agent(state) and not world.holders


def knows_now(state: State, world: World) -> bool:
    """The pod that knew too little is gone, and another one is there."""
    return _recorded_agent(state) and not still_to_go(state, world) and world.observed.agent is not None


def _recorded_agent(state: State) -> bool:
    return restart_recorded(state) and state.restart is not None and state.restart.agent


def uncounted(state: State, world: World) -> bool:
    """The plugin publishes what it found before this step: perhaps that fails because a GPU has died since."""
    looks = world.observed.restarts and world.observed.plugin is not None
    return assigned(state, world) and looks and not restart_recorded(state) and not world.holders
