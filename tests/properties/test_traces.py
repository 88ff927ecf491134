"""The operator comes through where "check, then act" goes wrong, and without any one of its rules it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
from tests.properties.cluster import BACKEND, DRIVER
from tests.properties.stories import Told, calm_down, tell
from tests.properties.traces import TRACES, Trace
from tests.unit.worlds import FORMER_STEP, HALVES, HALVES_RESTARTED, LONG, STEP, quiesce, record, seen, world

from gpupartition import names
from gpupartition.api.v1alpha1 import Phase, Restart
from gpupartition.domain.backend import NodeFacts
from gpupartition.domain.effects import DeletePod, PatchNode
from gpupartition.domain.lifecycle import advance
from gpupartition.domain.world import World
from gpupartition.domain.writes import Subject, effects


def told(trace: Trace, *, without: str = "") -> Told:
    """What comes of a story."""
    return tell(replace(trace.rollout, bug=without), trace.lines)


@pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)
def test_the_operator_comes_through(trace: Trace) -> None:
    story = told(trace)
    assert story.all_broken == set()
    assert (story.refused or ("",))[0] == trace.refused
    _, broken = calm_down(trace.rollout, story.state)
    assert broken == set()


@pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)
def test_without_its_rule_it_does_not(trace: Trace) -> None:
    story = told(trace, without=trace.without)
    assert story.refused == ()
    assert trace.breaks in story.broke[-1].split()


# Drivers that change their hardware first and publish later: their pool says nothing until they have answered for this very step.


@pytest.mark.parametrize(("ready", "after"), [(False, None), (True, Phase.RELEASING)])
def test_a_roll_back_does_not_believe_the_former_pool_before_the_driver_has_answered(
    ready: bool, after: Phase | None
) -> None:
    back = record(Phase.ROLLING_BACK, target=HALVES_RESTARTED, previous=HALVES, change="Repartition")
    back = back.model_copy(update={"restart": Restart(pod_uid="pod-0", step=STEP)})
    turn = world(rule=quiesce(), observed=seen(HALVES, step=STEP, ready=ready), matched=LONG)
    step = advance(back, turn)
    assert (step.state.phase if step else None) is after


@pytest.mark.parametrize(
    ("recorded_in", "after"), [(FORMER_STEP, Phase.ROLLING_BACK), (STEP, Phase.RELEASING)], ids=["earlier", "this"]
)
def test_a_restart_that_an_earlier_step_recorded_does_not_count(recorded_in: str, after: Phase) -> None:
    back = record(Phase.ROLLING_BACK, target=HALVES_RESTARTED, previous=HALVES)
    back = back.model_copy(update={"restart": Restart(pod_uid="pod-0", step=recorded_in)})
    step = advance(back, world(rule=quiesce(), observed=seen(HALVES, step=STEP, plugin="pod-1"), matched=LONG))
    assert step is not None
    assert step.state.phase is after
    assert step.state.restart == Restart(pod_uid="pod-0" if after is Phase.RELEASING else "pod-1", step=STEP)


# ------------------------------------------------------------------ a node that is given up as it is, with nothing of ours under way

SUBJECT: Final = Subject(
    node_name="n",
    node_uid="u",
    driver=DRIVER,
    driver_name="d",
    backend=BACKEND,
    facts=NodeFacts(node={"metadata": {"name": "n", "resourceVersion": "1"}}),
    rule=None,
)


def given_up(*, step: str = STEP, plugin: str = "pod-1") -> World:
    """Nobody wants the node any more, and somebody asked to let go of it."""
    turn = world(wanted=None, rule=quiesce(), observed=seen(HALVES, step=step, plugin=plugin), holders=[])
    return replace(turn, abandoned=True)


def test_a_failed_node_that_is_given_up_is_not_tried_again_but_its_step_is_used_up_first() -> None:
    failed = record(Phase.FAILED)
    assert advance(failed, given_up(step=FORMER_STEP)) is None
    (cancel,) = effects(failed, given_up(step=FORMER_STEP), SUBJECT)
    assert isinstance(cancel, PatchNode)
    assert (cancel.labels, cancel.annotations) == ({}, {names.STEP: STEP})
    step = advance(failed, given_up())
    assert step is not None
    assert step.state.phase is Phase.ABORTING


def test_a_failed_node_that_is_given_up_waits_for_the_pod_that_was_to_go() -> None:
    failed = record(Phase.FAILED, target=HALVES_RESTARTED, previous=HALVES)
    failed = failed.model_copy(update={"restart": Restart(pod_uid="pod-1", step=FORMER_STEP)})
    assert advance(failed, given_up()) is None
    assert effects(failed, given_up(), SUBJECT) == (DeletePod(namespace="gpus", name="pod-1", uid="pod-1"),)
    step = advance(failed, given_up(plugin="pod-2"))
    assert step is not None
    assert step.state.phase is Phase.ABORTING
