"""Which writes follow from a persisted state, and the proof that each of them carries."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import pytest
from tests.unit.worlds import (
    FORMER_STEP,
    HALVES,
    HALVES_RESTARTED,
    NODE,
    STEP,
    T0,
    UID,
    WHOLE,
    holder,
    quiesce,
    record,
    seen,
    world,
)
from tests.unit.writing import INERT, subject, written

from gpupartition import names
from gpupartition.api.v1alpha1 import NodeStateStatus, Phase, Restart
from gpupartition.domain.effects import (
    ActivateTaintRule,
    CreateTaintRule,
    DeletePod,
    DeleteTaintRule,
    EnsureConfig,
    PatchNode,
)
from gpupartition.domain.entries import Document
from gpupartition.domain.phases import PHASES
from gpupartition.domain.world import AT_REST, World
from gpupartition.domain.writes import touched_since

CREATE: Final = CreateTaintRule(
    name=names.taint_rule(NODE, UID), node=NODE, uid=UID, driver="gpu.example.com", pool=NODE
)
DELETE: Final = DeleteTaintRule(name="gpp-node-a-x", uid="rule-1", resource_version="5")


def patch(*, step: str = STEP, **labels: str | None) -> PatchNode:
    changed = {names.LAYOUT: labels["layout"]} if "layout" in labels else {}
    return PatchNode(node=NODE, resource_version="7", labels=changed, annotations={names.STEP: step})


QUIET: Final = world(rule=quiesce())


# ---------------------------------------------------------------------------------------------------------------------- the rule


@pytest.mark.parametrize("phase", [Phase.QUIESCING, Phase.APPLYING, Phase.VERIFYING, Phase.ROLLING_BACK, Phase.FAILED])
def test_the_quiesce_is_put_up_in_two_writes_and_put_back_when_somebody_takes_it_away(phase: Phase) -> None:
    turn = world(observed=seen(HALVES, step=STEP))
    about = subject(label="halves", step=STEP)
    assert written(record(phase), turn, replace(about, rule=None)) == [CREATE]
    inert = replace(turn, quiesce=quiesce(active=False))
    assert written(record(phase), inert, replace(about, rule=INERT)) == [ActivateTaintRule(rule=INERT)]


@pytest.mark.parametrize("phase", [Phase.RELEASING, Phase.ABORTING, *sorted(AT_REST)])
def test_a_rule_that_is_no_longer_needed_is_deleted_as_it_was_read(phase: Phase) -> None:
    for turn in (QUIET, world(rule=quiesce(active=False)), world(there=False, rule=quiesce())):
        assert written(record(phase), turn, subject(there=turn.node_is_there)) == [DELETE]


@pytest.mark.parametrize("phase", [Phase.RELEASING, Phase.ABORTING, *sorted(AT_REST)])
def test_without_a_rule_there_is_nothing_to_delete(phase: Phase) -> None:
    assert written(record(phase), world(), subject(rule=None)) == []


@pytest.mark.parametrize("phase", [Phase.QUIESCING, Phase.VERIFYING, Phase.FAILED])
def test_a_quiesce_that_is_up_is_left_alone(phase: Phase) -> None:
    assert written(record(phase), QUIET, subject()) == []


# ------------------------------------------------------------------------------------------------------------------ the assignment


def test_applying_writes_label_and_step_at_once_under_the_version_that_was_read() -> None:
    assert written(record(Phase.APPLYING), QUIET, subject()) == [patch(layout="halves")]


def test_a_step_is_written_once() -> None:
    turn = world(rule=quiesce(), observed=seen(HALVES, step=STEP))
    assert written(record(Phase.APPLYING), turn, subject(label="halves", step=STEP)) == []


@pytest.mark.parametrize(
    "turn",
    [world(rule=quiesce(), holders=[holder()]), world(rule=None), world(rule=quiesce(active=False))],
    ids=["a holder", "no rule", "an inert rule"],
)
def test_at_the_last_moment_a_step_is_cancelled_by_using_it_up(turn: World) -> None:
    assert written(record(Phase.APPLYING), turn, subject()) == [patch()]


def test_rolling_back_writes_its_step_even_when_the_label_looks_right() -> None:
    assert written(record(Phase.ROLLING_BACK), QUIET, subject()) == [patch(layout=None)]
    back_to_halves = record(Phase.ROLLING_BACK, target=WHOLE, previous=HALVES)
    assert written(back_to_halves, QUIET, subject(label="halves")) == [patch(layout="halves")]


def test_rolling_back_waits_for_holders_that_it_would_disturb() -> None:
    assert written(record(Phase.ROLLING_BACK), world(rule=quiesce(), holders=[holder()]), subject()) == []


@pytest.mark.parametrize("phase", sorted(set(PHASES) - {Phase.APPLYING, Phase.ROLLING_BACK}))
def test_in_no_other_phase_is_a_node_written(phase: Phase) -> None:
    for turn in (QUIET, world(), world(rule=quiesce(), holders=[holder()])):
        for about in (subject(), subject(rule=None), subject(label="halves", step=STEP)):
            assert not any(isinstance(e, PatchNode | DeletePod) for e in written(record(phase), turn, about))


# ------------------------------------------------------------------------------------------------------------------------ the pod


def same_assignment(phase: Phase, restart: Restart | None) -> NodeStateStatus:
    return record(phase, target=HALVES_RESTARTED, previous=HALVES, restart=restart)


@pytest.mark.parametrize("phase", [Phase.APPLYING, Phase.ROLLING_BACK])
@pytest.mark.parametrize(
    ("restart", "plugin", "gone"),
    [
        (Restart(pod_uid="pod-1", step=STEP), "pod-1", [DeletePod(namespace="gpus", name="pod-1", uid="pod-1")]),
        (Restart(pod_uid="pod-1", step=STEP), "pod-2", []),
        (Restart(pod_uid="pod-1", step=FORMER_STEP), "pod-1", []),
        (Restart(pod_uid="pod-1", step=STEP), "", []),
        (None, "pod-1", []),
    ],
    ids=["on record", "another one runs", "of an earlier step", "none runs", "not on record"],
)
def test_only_the_very_pod_that_is_on_record_for_this_step_is_deleted(
    phase: Phase, restart: Restart | None, plugin: str, gone: list[DeletePod]
) -> None:
    turn = world(rule=quiesce(), observed=seen(HALVES, step=STEP, plugin=plugin))
    assert written(same_assignment(phase, restart), turn, subject(label="halves", step=STEP)) == gone


def test_no_driver_pod_goes_while_a_holder_needs_it() -> None:
    turn = world(rule=quiesce(), observed=seen(HALVES, step=STEP), holders=[holder(terminating=True)])
    state = same_assignment(Phase.APPLYING, Restart(pod_uid="pod-1", step=STEP))
    assert written(state, turn, subject(label="halves", step=STEP)) == []


# ------------------------------------------------------------------------------------------------------------------------- configs


def config(touched: timedelta | None) -> dict[str, Any]:
    annotations = {} if touched is None else {names.LAST_USED: (T0 + touched).isoformat()}
    return {"kind": "DaemonSet", "metadata": {"name": "base-halves", "namespace": "gpus", "annotations": annotations}}


@pytest.mark.parametrize("phase", [Phase.ADMITTED, Phase.DRAINING])
@pytest.mark.parametrize(
    ("present", "writes"),
    [(None, True), (config(None), True), (config(-timedelta(seconds=1)), True), (config(timedelta(0)), False)],
    ids=["missing", "never used", "used before it was named", "used since"],
)
def test_a_config_is_created_or_touched_after_the_record_names_it(phase: Phase, present: Any, *, writes: bool) -> None:
    body = config(None)
    ensure = EnsureConfig(kind="DaemonSet", body=body, present=present)
    about = subject(configs=[(body, present)])
    assert written(record(phase), QUIET, about) == ([ensure] if writes else [])


@pytest.mark.parametrize("phase", [Phase.ADMITTED, Phase.DRAINING])
def test_an_entry_whose_edit_has_to_wait_until_nothing_moves_is_not_written_by_a_node_that_moves(phase: Phase) -> None:
    file = Document(namespace="gpus", name="c", file="c.json", under="e", frame={"e": {}}, reruns=True)
    body, there = file.entry("a", [1]), file.with_entry(None, "a", [1], T0 - timedelta(seconds=1))
    assert written(record(phase), QUIET, subject(configs=[(body, None)])) == []
    ensure = EnsureConfig(kind=str(body["kind"]), body=body, present=there)
    assert written(record(phase), QUIET, subject(configs=[(body, there)])) == [ensure], "to use it is no edit"


def test_a_config_of_which_nobody_ever_said_when_it_was_used_is_not_touched_since() -> None:
    assert not touched_since(config(None), None, None)
    assert touched_since(config(None), config(None), None)
    assert not touched_since(config(None), config(None), T0)
