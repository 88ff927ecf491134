"""A case for every exit of every phase: a node that takes it in this very turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from tests.unit.worlds import (
    EIGHT,
    FORMER_STEP,
    HALVES,
    HALVES_RESTARTED,
    LIMITS,
    NEVER,
    QUARTERS,
    STEP,
    WHOLE,
    cut,
    holder,
    quiesce,
    record,
    seen,
    several,
    world,
)

from gpupartition.api.v1alpha1 import Drain, NodeStateStatus, OnFailure, OnTimeout, Phase, Restart
from gpupartition.domain.backend import Config, Observation
from gpupartition.domain.changes import UNANSWERED
from gpupartition.domain.destination import IN_VAIN
from gpupartition.domain.lifecycle import advance
from gpupartition.domain.phases import PHASES
from gpupartition.domain.pool import Pool
from gpupartition.domain.rest import rest
from gpupartition.domain.world import AT_REST, World

Case = tuple[NodeStateStatus, World]
SECOND: Final = timedelta(seconds=1)
IN_FLIGHT: Final = tuple(PHASES)


def same_assignment(phase: Phase, **more: Any) -> NodeStateStatus:
    """On the way to another config by the same value: only the driver's pod can pick it up."""
    return record(phase, target=HALVES_RESTARTED, previous=HALVES, **more)


def failing(layout: Config, *, agent: str = "agent-1", stale: bool = False) -> Observation:
    """The driver says that it failed; the pod that says so may have seen too little."""
    pod = {"metadata": {"name": agent, "namespace": "gpus", "uid": agent}}
    return replace(seen(layout, step=STEP, ready=False), failed="it failed", acknowledged=False, agent=pod, stale=stale)


def too_early(
    layout: Config = HALVES,
    plugin: str = "pod-1",
    *,
    publishes: Config = WHOLE,
    step: str = FORMER_STEP,
) -> Observation:
    """A plugin that found the GPUs as they were before, and nothing tells it that they have been cut since."""
    return replace(seen(layout, step=step, pool=publishes.pool, plugin=plugin), restarts=True)


def replaced(phase: Phase) -> NodeStateStatus:
    """The pod that had not seen its config was to go in this step."""
    return record(phase, restart=Restart(pod_uid="agent-1", step=STEP, agent=True))


def lost(phase: Phase) -> NodeStateStatus:
    """A verified node that was restarted and is verified again."""
    return record(phase, previous=HALVES, recovering=True, step=FORMER_STEP)


def stayed_away() -> NodeStateStatus:
    """A node whose former layout did not come back."""
    return record(Phase.FAILED, reason=IN_VAIN, message="the former layout did not come back in time")


def gone(phase: Phase) -> Case:
    return record(phase), world(there=False)


GONE: Final = "the node is gone"
UNWANTED: Final = "the policy no longer wants this node"
HALTED: Final = ", and the policy says Halt"
UNVERIFIED: Final = ", and its hardware is unverified"
ALL_ALONG: Final = "the node has had the new target all along"
SUPERSEDED: Final = "the policy wants another layout"
ANEW: Final = "the driver's pod has to start anew"
UNSEEN: Final = "the pod that carries out the assignment has not seen its config"
SEEN: Final = "a new pod has seen the config, and is told again"
OTHERWISE: Final = "no controller answers its DeviceTaintRule, and the driver says another way to close it by now"
SLOW_QUIESCE: Final = "the quiesce was not confirmed in time"
BACK: Final = "the node is back and publishes what it did"
BY_HAND: Final = "the node came back without what was cut by hand, and is to get it as any other node"
AFTER_ALL: Final = "the node publishes its former layout after all"
GIVEN_UP: Final = next(way.note for way in PHASES[Phase.FAILED].exits if way.reason == "Abandoned")
LATE_CONFIG: Final = "the config could not be put in place in time"
SLOW_HOLDERS: Final = "holders did not end in time"

CASES: Final[Mapping[tuple[Phase, str], Case]] = {
    (Phase.ADMITTED, GONE): gone(Phase.ADMITTED),
    (Phase.ADMITTED, UNWANTED): (record(Phase.ADMITTED), world(wanted=None)),
    (Phase.ADMITTED, ALL_ALONG): (record(Phase.ADMITTED), world(wanted=WHOLE)),
    (Phase.ADMITTED, SUPERSEDED): (record(Phase.ADMITTED), world(wanted=QUARTERS)),
    (Phase.ADMITTED, "devices in use stay, and all others change beside them"): (
        record(Phase.ADMITTED, change="Live", quiesce="None"),
        world(),
    ),
    (Phase.ADMITTED, "the way back is on record and the config is in place"): (record(Phase.ADMITTED), world()),
    (Phase.ADMITTED, LATE_CONFIG): (
        record(Phase.ADMITTED),
        world(after=LIMITS.admitted, configs=False),
    ),
    (Phase.QUIESCING, GONE): gone(Phase.QUIESCING),
    (Phase.QUIESCING, UNWANTED): (record(Phase.QUIESCING), world(wanted=None)),
    (Phase.QUIESCING, ALL_ALONG): (record(Phase.QUIESCING), world(wanted=WHOLE)),
    (Phase.QUIESCING, UNWANTED + UNVERIFIED): (record(Phase.QUIESCING, dirty=True), world(wanted=None)),
    (Phase.QUIESCING, "no new claim is allocated here"): (
        record(Phase.QUIESCING),
        world(rule=quiesce(watched=LIMITS.settle)),
    ),
    (Phase.QUIESCING, "closed to new claims, and compared with what it was"): (
        lost(Phase.QUIESCING),
        world(observed=seen(HALVES), rule=quiesce(watched=NEVER)),
    ),
    (Phase.QUIESCING, OTHERWISE): (
        record(Phase.QUIESCING, reason="QuiesceUnconfirmed"),
        replace(world(rule=quiesce(proven=False)), quiesce_by="Cordon"),
    ),
    (Phase.QUIESCING, UNANSWERED): (
        record(Phase.QUIESCING, reason="QuiesceUnconfirmed"),
        world(after=LIMITS.quiescing, rule=quiesce(proven=False)),
    ),
    (Phase.QUIESCING, UNANSWERED + UNVERIFIED): (
        record(Phase.QUIESCING, reason="QuiesceUnconfirmed", dirty=True),
        world(after=LIMITS.quiescing, rule=quiesce(proven=False)),
    ),
    (Phase.QUIESCING, SLOW_QUIESCE): (record(Phase.QUIESCING), world(after=LIMITS.quiescing)),
    (Phase.QUIESCING, SLOW_QUIESCE + UNVERIFIED): (
        record(Phase.QUIESCING, dirty=True),
        world(after=LIMITS.quiescing),
    ),
    (Phase.DRAINING, GONE): gone(Phase.DRAINING),
    (Phase.DRAINING, UNWANTED): (record(Phase.DRAINING), world(wanted=None, rule=quiesce())),
    (Phase.DRAINING, ALL_ALONG): (record(Phase.DRAINING), world(wanted=WHOLE, rule=quiesce())),
    (Phase.DRAINING, UNWANTED + UNVERIFIED): (record(Phase.DRAINING, dirty=True), world(wanted=None, rule=quiesce())),
    (Phase.DRAINING, SUPERSEDED): (record(Phase.DRAINING), world(wanted=QUARTERS, rule=quiesce())),
    (Phase.DRAINING, "the quiesce was taken away"): (record(Phase.DRAINING), world(rule=None)),
    (Phase.DRAINING, "what changes is not what it was when the node was admitted"): (
        record(Phase.DRAINING),
        world(rule=quiesce(), observed=seen(HALVES)),
    ),
    (Phase.DRAINING, "no holder is left"): (
        record(Phase.DRAINING),
        world(rule=quiesce(), idle=LIMITS.idle_gap),
    ),
    (Phase.DRAINING, SLOW_HOLDERS + HALTED): (
        record(Phase.DRAINING),
        world(
            after=LIMITS.draining_when_idle,
            rule=quiesce(),
            holders=[holder()],
            drain=Drain(on_timeout=OnTimeout.HALT),
        ),
    ),
    (Phase.DRAINING, SLOW_HOLDERS): (
        record(Phase.DRAINING),
        world(after=LIMITS.draining_when_idle, rule=quiesce(), holders=[holder()]),
    ),
    (Phase.DRAINING, SLOW_HOLDERS + UNVERIFIED): (
        record(Phase.DRAINING, dirty=True),
        world(after=LIMITS.draining_when_idle, rule=quiesce(), holders=[holder()]),
    ),
    (Phase.APPLYING, GONE): gone(Phase.APPLYING),
    (Phase.APPLYING, "a claim was allocated at the last moment"): (
        record(Phase.APPLYING),
        world(observed=seen(WHOLE, step=STEP), rule=quiesce(), holders=[holder()]),
    ),
    (Phase.APPLYING, "a claim slipped past the quiesce"): (
        record(Phase.APPLYING),
        world(observed=seen(HALVES, step=STEP), rule=quiesce(), holders=[holder()]),
    ),
    (Phase.APPLYING, UNSEEN): (record(Phase.APPLYING), world(observed=failing(HALVES, stale=True))),
    (Phase.APPLYING, SEEN): (replaced(Phase.APPLYING), world(observed=failing(HALVES, agent="agent-2"))),
    (Phase.APPLYING, "the driver failed to take the new config"): (
        record(Phase.APPLYING),
        world(after=LIMITS.min_ready, observed=failing(HALVES)),
    ),
    (Phase.APPLYING, "the driver failed to take the new config" + HALTED): (
        record(Phase.APPLYING),
        replace(world(after=LIMITS.min_ready, observed=failing(HALVES)), on_failure=OnFailure.HALT),
    ),
    (Phase.APPLYING, ANEW): (
        same_assignment(Phase.APPLYING),
        world(wanted=HALVES_RESTARTED, observed=seen(HALVES, step=STEP)),
    ),
    (Phase.APPLYING, "the driver runs with the new config"): (
        record(Phase.APPLYING),
        world(observed=seen(HALVES, step=STEP)),
    ),
    (Phase.APPLYING, "the driver's pod has to count the GPUs anew"): (
        record(Phase.APPLYING),
        world(
            after=LIMITS.applying,
            observed=replace(seen(HALVES, step=STEP, ready=False), restarts=True, acknowledged=False),
        ),
    ),
    (Phase.APPLYING, "the driver did not take the new config in time"): (
        record(Phase.APPLYING),
        world(after=LIMITS.applying, observed=seen(HALVES, step=STEP, ready=False)),
    ),
    (Phase.APPLYING, "the driver did not take the new config in time" + HALTED): (
        record(Phase.APPLYING),
        replace(world(after=LIMITS.applying, observed=seen(HALVES, step=STEP, ready=False)), on_failure=OnFailure.HALT),
    ),
    (Phase.VERIFYING, GONE): gone(Phase.VERIFYING),
    (Phase.VERIFYING, "the policy wants another layout by now"): (
        record(Phase.VERIFYING),
        world(wanted=QUARTERS, observed=seen(HALVES, step=STEP), matched=LIMITS.min_ready),
    ),
    (Phase.VERIFYING, "the node publishes exactly what is wanted"): (
        record(Phase.VERIFYING),
        world(observed=seen(HALVES, step=STEP), matched=LIMITS.min_ready),
    ),
    (Phase.VERIFYING, ANEW): (lost(Phase.VERIFYING), world(observed=too_early())),
    (Phase.ROLLING_BACK, ANEW + " once more"): (
        record(Phase.ROLLING_BACK, restart=Restart(pod_uid="pod-0", step=STEP)),
        world(observed=too_early(WHOLE, publishes=HALVES, step=STEP)),
    ),
    (Phase.VERIFYING, UNWANTED): (lost(Phase.VERIFYING), world(wanted=None, observed=seen(HALVES))),
    (Phase.VERIFYING, BACK): (lost(Phase.VERIFYING), world(observed=seen(HALVES), matched=LIMITS.min_ready)),
    (Phase.VERIFYING, BACK + ", and the policy wants another layout by now"): (
        lost(Phase.VERIFYING),
        world(wanted=QUARTERS, observed=seen(HALVES), matched=LIMITS.min_ready),
    ),
    (Phase.VERIFYING, "the node did not come back with what it published"): (
        lost(Phase.VERIFYING),
        world(after=LIMITS.verifying, observed=seen(HALVES, pool=Pool())),
    ),
    (Phase.VERIFYING, BY_HAND): (
        record(Phase.VERIFYING, target=WHOLE, previous=WHOLE, recovering=True, step=FORMER_STEP),
        world(after=LIMITS.verifying, wanted=WHOLE, observed=seen(WHOLE, pool=cut(2))),
    ),
    (Phase.VERIFYING, "GPUs are missing, and the others publish exactly what is wanted"): (
        record(Phase.VERIFYING, target=EIGHT),
        world(after=LIMITS.verifying, wanted=EIGHT, observed=seen(EIGHT, step=STEP, pool=several(7))),
    ),
    (Phase.VERIFYING, "the node does not publish what is wanted"): (
        record(Phase.VERIFYING),
        world(after=LIMITS.verifying, observed=seen(HALVES, step=STEP, pool=cut(4))),
    ),
    (Phase.VERIFYING, "the node does not publish what is wanted" + HALTED): (
        record(Phase.VERIFYING),
        replace(
            world(after=LIMITS.verifying, observed=seen(HALVES, step=STEP, pool=cut(4))), on_failure=OnFailure.HALT
        ),
    ),
    (Phase.RELEASING, "back on its former layout"): (record(Phase.RELEASING, outcome=Phase.ROLLED_BACK), world()),
    (Phase.RELEASING, "open for claims with the new layout"): (
        record(Phase.RELEASING),
        world(observed=seen(HALVES, step=STEP)),
    ),
    (Phase.ROLLING_BACK, GONE): gone(Phase.ROLLING_BACK),
    (Phase.ROLLING_BACK, UNSEEN): (record(Phase.ROLLING_BACK), world(observed=failing(WHOLE, stale=True))),
    (Phase.ROLLING_BACK, SEEN): (replaced(Phase.ROLLING_BACK), world(observed=failing(WHOLE, agent="agent-2"))),
    (Phase.ROLLING_BACK, "the driver failed to take the former config"): (
        record(Phase.ROLLING_BACK),
        world(after=LIMITS.min_ready, observed=failing(WHOLE)),
    ),
    (Phase.ROLLING_BACK, ANEW): (
        same_assignment(Phase.ROLLING_BACK),
        world(wanted=HALVES_RESTARTED, observed=seen(HALVES_RESTARTED, step=STEP)),
    ),
    (Phase.ROLLING_BACK, "the node publishes its former layout again"): (
        record(Phase.ROLLING_BACK),
        world(observed=seen(WHOLE, step=STEP)),
    ),
    (Phase.ROLLING_BACK, "GPUs are missing after another look too, and the others publish the former layout again"): (
        record(Phase.ROLLING_BACK, previous=EIGHT, restart=Restart(pod_uid="pod-0", step=STEP)),
        world(observed=replace(too_early(EIGHT, step=STEP), pool=several(7))),
    ),
    (Phase.ROLLING_BACK, "somebody asked to let go of it as it is"): (
        record(Phase.ROLLING_BACK, reason=IN_VAIN),
        replace(world(wanted=None), abandoned=True),
    ),
    (Phase.ROLLING_BACK, "GPUs are missing, and the others publish the former layout again"): (
        record(Phase.ROLLING_BACK, previous=EIGHT),
        world(after=LIMITS.applying + LIMITS.verifying, observed=seen(EIGHT, step=STEP, pool=several(7))),
    ),
    (Phase.ROLLING_BACK, "the former layout did not come back in time"): (
        record(Phase.ROLLING_BACK),
        world(after=LIMITS.applying + LIMITS.verifying, observed=seen(HALVES, step=STEP)),
    ),
    (Phase.FAILED, GONE): gone(Phase.FAILED),
    (Phase.FAILED, GIVEN_UP): (
        record(Phase.FAILED),
        replace(world(wanted=None, observed=seen(HALVES, step=STEP)), abandoned=True),
    ),
    (Phase.FAILED, UNWANTED): (lost(Phase.FAILED), world(wanted=None, observed=seen(HALVES))),
    (Phase.FAILED, BACK): (lost(Phase.FAILED), world(observed=seen(HALVES), matched=LIMITS.min_ready)),
    (Phase.FAILED, AFTER_ALL): (stayed_away(), world(observed=seen(WHOLE, step=STEP), matched=LIMITS.min_ready)),
    (Phase.FAILED, "somebody asked to try again"): (record(Phase.FAILED, retry="monday"), world(retry="tuesday")),
    (Phase.FAILED, "nothing is wanted but what the node goes back to"): (record(Phase.FAILED), world(wanted=None)),
    (Phase.FAILED, SUPERSEDED): (record(Phase.FAILED), world(wanted=QUARTERS)),
    (Phase.ABORTING, "open for claims again, unchanged, and counts as failed"): (
        record(Phase.ABORTING, outcome=Phase.ROLLED_BACK),
        world(),
    ),
    (Phase.ABORTING, "open for claims again, unchanged"): (record(Phase.ABORTING), world()),
}
EXITS: Final = {(phase, way.note): way for phase, row in PHASES.items() for way in (*row.exits, *row.late)}


def must(state: NodeStateStatus, turn: World) -> NodeStateStatus:
    """The record after this turn, which has to change it."""
    step = advance(state, turn) if state.phase not in AT_REST else rest(state, turn)
    assert step is not None, f"nothing happens in {state.phase}"
    return step.state
