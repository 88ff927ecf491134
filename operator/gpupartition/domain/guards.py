"""What can be true of a node: the conditions under which it leaves a phase. Each is one sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final, Literal

from gpupartition.api.v1alpha1 import Assigned, DrainMode, OnFailure, OnTimeout, Phase
from gpupartition.domain.backend import Object, Observation
from gpupartition.domain.pool import Pool
from gpupartition.domain.retiring import possible, retired
from gpupartition.domain.world import State, World

Guard = Callable[[State, World], bool]

IN_VAIN: Final = f"{Phase.ROLLING_BACK}Failed"
STRANDED: Final = "Stranded"  # the same, and nothing else was wanted of the node: only people can say what leads on


def gone(_: State, world: World) -> bool:
    """The Node is deleted, or another one has its name: nothing that we know of it is true any more."""
    return not world.node_is_there


def unwanted(_: State, world: World) -> bool:
    """Nobody wants a layout here any more: the policy is being deleted, or the node has left it."""
    return world.wanted is None and not world.refused


def wanted_back(state: State, world: World) -> bool:
    """All that is wanted, if anything, is what the node goes back to anyway."""
    wanted, previous = world.wanted, state.previous
    return unwanted(state, world) or (
        wanted is not None and previous is not None and wanted.fingerprint == previous.fingerprint
    )


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


def unanswered(state: State, world: World) -> bool:
    """The rule has long been there, and no controller manager has said so: one that knows the feature answers within a second."""
    quiesce = world.quiesce
    return (
        quiesced(state, world) and quiesce is not None and not quiesce.proven and quiesce.watched >= world.limits.settle
    )


def config_there(state: State, world: World) -> bool:
    """The config objects exist, were touched after this record named them (none can be collected under our hands), and pods see them.

    And no GPU of the group is in another pool.
    """
    named = state.target.since if state.target else None
    touched = world.config_touched is not None and (named is None or world.config_touched >= named)
    return (
        touched
        and not world.elsewhere
        and (world.config_written is None or world.now - world.config_written >= world.limits.config_age)
    )


def drained(state: State, world: World) -> bool:
    """Two live lists of holders, some seconds apart, were empty, and nobody could have begun to hold a device in between.

    Draining can be entered with a rule that was put back only just now (somebody had deleted it), so this asks whether it is settled too.
    """
    return (
        settled(state, world)
        and not world.holders
        and world.idle >= world.limits.idle_gap
        and config_there(state, world)
        and not (world.monitors and world.no_eviction)
    )


DRAINING: Final[Mapping[DrainMode, str]] = {
    DrainMode.WHEN_IDLE: "draining_when_idle",
    DrainMode.WAIT: "draining_wait",
    DrainMode.EVICT: "draining_evict",
}


def drain_time(world: World) -> timedelta:
    """For how long holders are waited for, or evicted."""
    seconds = world.drain.timeout_seconds
    limit: timedelta = getattr(world.limits, DRAINING[world.drain.mode])
    return limit if seconds is None else timedelta(seconds=seconds)


def forced(state: State, world: World) -> bool:
    """The drain's time is over, and the policy wants those deleted whose eviction was refused."""
    late = state.since is not None and world.now - state.since >= drain_time(world)
    return late and world.drain.on_timeout is OnTimeout.FORCE_DELETE


def halts_undrained(_: State, world: World) -> bool:
    """The policy wants to hear of holders that did not end. Where it was what kept them from being evicted, it knows."""
    asked = world.drain.on_timeout is OnTimeout.HALT
    return asked and not (world.drain.mode is DrainMode.EVICT and world.no_eviction)


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


def needs_restart(state: State, world: World, to: Assigned | None) -> bool:
    """Nothing makes the driver start anew unless its pod is deleted: it never does by itself, or the value on the node does not change."""
    came_from = state.previous if to is state.target else state.target
    same_value = to is not None and came_from is not None and came_from.assignment == to.assignment
    return same_value or world.observed.restarts


def to_go(state: State, world: World) -> Object | None:
    """The pod that was to go, in whichever step, and is still there: whoever was about to delete it may yet come."""
    pods = (world.observed.plugin, world.observed.agent)
    uid = state.restart.pod_uid if state.restart is not None else ""
    return next((pod for pod in pods if pod is not None and pod["metadata"]["uid"] == uid), None)


def still_to_go(state: State, world: World) -> bool:
    """There is such a pod."""
    return to_go(state, world) is not None


def restart_due(state: State, world: World, to: Assigned | None) -> bool:
    """A plugin pod has to go, and which one is not yet on record for this step."""
    recorded = state.restart is not None and state.restart.step == state.step
    return (
        step_used(state, world)
        and world.observed.assignment == (to.assignment if to else None)
        and world.observed.plugin is not None
        and world.observed.acknowledged
        and (needs_restart(state, world, to) or still_to_go(state, world))
        and not recorded
        and not world.holders
    )


def restarted(state: State, world: World, to: Assigned | None) -> bool:
    """The pod that was to go in this step is gone and another one is up; or none had to, and none is left that had to in an earlier one."""
    if still_to_go(state, world):
        return False
    if world.observed.plugin is None or not needs_restart(state, world, to):
        return True
    return state.restart is not None and state.restart.step == state.step


def looked_too_early(state: State, world: World, to: Assigned | None) -> bool:
    """The driver has done what it was told, and its plugin still publishes what it found when it started, some time ago.

    What a driver says may be about what it was told before, or before a reboot: so this may come more than once.
    """
    seen = world.observed
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
    anew = state.restart is not None and state.restart.step == state.step and not state.restart.agent
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
    return state.restart is not None and state.restart.step == state.step and state.restart.agent


def acknowledged(state: State, world: World) -> bool:
    """The driver runs with the target's config."""
    return assigned(state, world) and restarted(state, world, state.target) and world.observed.ready


def verified(state: State, world: World) -> bool:
    """The node has published exactly the target for long enough."""
    return assigned(state, world) and expected_now(state, world) and world.matched >= world.limits.min_ready


def verified_but_superseded(state: State, world: World) -> bool:
    """The hardware is as this step was to bring it, so going on from here, or giving up, is as safe as from any verified layout."""
    return superseded(state, world) and verified(state, world)


def lacks_only_gpus(state: State, world: World) -> bool:
    """GPUs are missing, and the others are exactly as the phase waits for."""
    seen = world.observed
    return seen.ready and seen.pool.equals_but_for_lost_gpus(expected_pool(state))


def verified_but_for_lost_gpus(state: State, world: World) -> bool:
    """GPUs are missing, and the others are exactly as wanted: going back would not bring them."""
    assigned_here = assigned(state, world) or (state.recovering and world.node_ready)
    return assigned_here and lacks_only_gpus(state, world) and not superseded(state, world)


def former_pool_is_back_but_for_lost_gpus(state: State, world: World) -> bool:
    """GPUs are missing, and the others are exactly as they were before the change."""
    return _walked_back(state, world) and lacks_only_gpus(state, world)


def lost_gpus(state: State, world: World) -> bool:
    """A verified node lacks GPUs, and the others are exactly as they were verified."""
    return state.phase is Phase.UP_TO_DATE and lacks_only_gpus(state, world)


def _walked_back(state: State, world: World) -> bool:
    return (
        step_used(state, world)
        and state.previous is not None
        and world.observed.assignment == state.previous.assignment
        and restarted(state, world, state.previous)
    )


def former_pool_is_back(state: State, world: World) -> bool:
    """The way back has been walked: same assignment, by this very step, and an equal pool.

    Slices of a plugin that publishes only what it finds at its start may be those of the one before, for a while. A driver that published
    nonsense before the change is back when it publishes what its config says.
    """
    lasts = not world.observed.restarts or world.matched >= world.limits.min_ready
    former = expected_now(state, world) or world.observed.as_told
    return _walked_back(state, world) and world.observed.ready and former and lasts


def in_vain(state: State) -> bool:
    """The way back was walked, and did not lead there (it may be being walked once more): what the node had would still make it whole."""
    return state.phase in {Phase.FAILED, Phase.ROLLING_BACK} and state.reason in {IN_VAIN, STRANDED}


def hopeless(state: State, world: World) -> bool:
    """Somebody asked to let go of a node that nobody wants, while what has failed before is tried once more."""
    return world.abandoned and unwanted(state, world) and in_vain(state)


def mended(state: State, world: World) -> bool:
    """That way has led there after all, without another write: the driver was only slow, or somebody has mended it."""
    lasts = world.node_ready and world.matched >= world.limits.min_ready
    return in_vain(state) and former_pool_is_back(state, world) and lasts


def expected_pool(state: State) -> Pool:
    """What the node has to publish before it may leave its phase."""
    goes_back = state.phase is Phase.ROLLING_BACK or in_vain(state)
    assigned_layout = state.previous if goes_back else state.target
    return Pool.from_json(assigned_layout.pool if assigned_layout else "")


def expected_now(state: State, world: World) -> bool:
    """The pool is exactly what the phase waits for, and whatever is retired is there for those who have it."""
    return is_expected(state, world.observed)


def is_expected(state: State, seen: Observation) -> bool:
    """The same of what was seen."""
    return seen.pool.equals(expected_pool(state)) and seen.retired.equals(retired(state))


def depth(seen: Observation, then: Pool) -> Literal["Restart", "Repartition"]:
    """How deep a change goes for a node whose users are waited for, by what it publishes now."""
    return "Restart" if seen.pool.equals(then) and not seen.retired.devices else "Repartition"


def misjudged(state: State, world: World) -> bool:
    """The change goes less deep than was thought, or deeper."""
    return state.change in {"Restart", "Repartition"} and state.change != depth(world.observed, expected_pool(state))


def under_its_users(state: State, world: World) -> bool:
    """The node is changed under its users, and that is still possible."""
    return goes_live(state) and not world.holders and possible(state, world.observed, expected_pool(state))


def goes_live(state: State) -> bool:
    """Nobody is kept from the node while it is changed."""
    return state.quiesce == "None"


def unquiesced(_: State, world: World) -> bool:
    """Our rule is gone."""
    return world.quiesce is None


def unquiesced_after_failure(state: State, world: World) -> bool:
    """Our rule is gone, and what is open for claims again is the former layout: it was restored, or never left."""
    return unquiesced(state, world) and state.outcome is Phase.ROLLED_BACK


def retried(state: State, world: World) -> bool:
    """Somebody asked to try again since this node failed."""
    return bool(world.retry) and world.retry != state.retry


def let_go(state: State, world: World) -> bool:
    """Nobody wants the node, and somebody asked to let go of it as it is. What somebody may still be about to do has been done."""
    return world.abandoned and unwanted(state, world) and step_used(state, world) and not still_to_go(state, world)


def halts(_: State, world: World) -> bool:
    """The policy wants a node that fails left as it is, for somebody to look at."""
    return world.on_failure is OnFailure.HALT


def missing_gpus(seen: Pool, wanted: Pool) -> str:
    """What a person would say of GPUs that are not there."""
    missing = sorted(wanted.gpus - seen.gpus)
    return f"{len(missing)} of {len(wanted.gpus)} GPUs are missing, such as {missing[0] if missing else '?'}; the others publish what is wanted"


def lacking(seen: Observation, wanted: Pool) -> str:
    """What a person would say keeps a node from being what it is to be; "" when nothing is known to."""
    facts = (seen.failed or seen.complaint, seen.pool.problem, difference(seen.pool, wanted))
    return "; ".join(filter(None, facts))


def difference(seen: Pool, wanted: Pool) -> str:
    """What a person would say is wrong with the published devices; "" when the names are right."""
    missing, gone = wanted.vanishing_names(seen), seen.vanishing_names(wanted)
    parts = []
    if missing:
        parts.append(f"{len(missing)} of {len(wanted.devices)} devices are missing, such as {min(missing)}")
    if gone:
        parts.append(f"{len(gone)} are there that should be gone, such as {min(gone)}")
    return " and ".join(parts)
