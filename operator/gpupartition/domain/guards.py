"""What can be true of a node: the conditions under which it leaves a phase. Each is one sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final, Literal

from gpupartition.api.v1alpha1 import DrainMode, OnFailure, OnTimeout, Phase
from gpupartition.domain.backend import Observation
from gpupartition.domain.destination import STRANDED, expected_now, expected_pool, in_vain, lacks_only_gpus
from gpupartition.domain.pool import Pool
from gpupartition.domain.retiring import possible
from gpupartition.domain.steps import assigned, restarted, step_used, still_to_go
from gpupartition.domain.world import State, World

Guard = Callable[[State, World], bool]


def both(one: Guard, other: Guard) -> Guard:
    """Where the one holds and the other."""
    return lambda state, world: one(state, world) and other(state, world)


def not_(guard: Guard) -> Guard:
    """Where it does not hold."""
    return lambda state, world: not guard(state, world)


def clean(guard: Guard) -> Guard:
    """The guard, for hardware that is what was verified last."""
    return lambda state, world: guard(state, world) and not state.dirty


def dirty(guard: Guard) -> Guard:
    """The guard, for hardware of which nothing is verified."""
    return lambda state, world: guard(state, world) and state.dirty


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


def worth_going_back(state: State, world: World) -> bool:
    """A node that would go back to what it was to be is not tried again and again: somebody has to ask. What is given up is not tried."""
    target, previous = state.target, state.previous
    elsewhere = target is not None and previous is not None and target.fingerprint != previous.fingerprint
    given_up = world.abandoned and unwanted(state, world)
    untried = state.reason != STRANDED and (elsewhere or unwanted(state, world))
    return wanted_back(state, world) and untried and not given_up


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


def closed_otherwise(state: State, world: World) -> bool:
    """The same, and the driver has been told of another way to close nodes, as is advised then."""
    return unanswered(state, world) and world.quiesce_by != state.quiesce


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


def acknowledged(state: State, world: World) -> bool:
    """The driver runs with the target's config."""
    return assigned(state, world) and restarted(state, world) and world.observed.ready


def verified(state: State, world: World) -> bool:
    """The node has published exactly the target for long enough."""
    return assigned(state, world) and expected_now(state, world) and world.matched >= world.limits.min_ready


def verified_but_superseded(state: State, world: World) -> bool:
    """The hardware is as this step was to bring it, so going on from here, or giving up, is as safe as from any verified layout."""
    return superseded(state, world) and verified(state, world)


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
        and restarted(state, world)
    )


def former_pool_is_back(state: State, world: World) -> bool:
    """The way back has been walked: same assignment, by this very step, and an equal pool.

    Slices of a plugin that publishes only what it finds at its start may be those of the one before, for a while. A driver that published
    nonsense before the change is back when it publishes what its config says.
    """
    lasts = not world.observed.restarts or world.matched >= world.limits.min_ready
    former = expected_now(state, world) or world.observed.as_told
    return _walked_back(state, world) and world.observed.ready and former and lasts


def hopeless(state: State, world: World) -> bool:
    """Somebody asked to let go of a node that nobody wants, while what has failed before is tried once more."""
    return world.abandoned and unwanted(state, world) and in_vain(state)


def mended(state: State, world: World) -> bool:
    """That way has led there after all, without another write: the driver was only slow, or somebody has mended it."""
    lasts = world.node_ready and world.matched >= world.limits.min_ready
    return in_vain(state) and former_pool_is_back(state, world) and lasts


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


def closed(state: State, _: World) -> bool:
    """It is: for a node that was never closed another layout is another change."""
    return not goes_live(state)


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
