"""How new claims are kept off a node: what each way writes, when it counts as done, and what it leaves alone."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import pytest
from tests.unit.worlds import FORMER_STEP, HALVES, LONG, NODE, STEP, TOKEN, UID, quiesce, record, seen, world

from gpupartition import names
from gpupartition.api.v1alpha1 import DriverSpec, NodeStateStatus, Phase
from gpupartition.backends.example import ExampleDriver
from gpupartition.domain.backend import NodeFacts
from gpupartition.domain.effects import CreateTaintRule, DeleteTaintRule, Effect, PatchNode
from gpupartition.domain.quiesce import chosen, holds, in_force
from gpupartition.domain.quiesce import quiesce as read
from gpupartition.domain.world import AT_REST
from gpupartition.domain.writes import Subject, effects

DRIVER: Final = DriverSpec.model_validate(
    {"type": "ExampleDriver", "exampleDriver": {"daemonSet": {"namespace": "gpus", "name": "base"}, "gpusPerNode": 1}}
)
RULE: Final[dict[str, Any]] = {
    "metadata": {"name": "gpp-node-a-x", "uid": "rule-1", "resourceVersion": "5", "generation": 2},
    "spec": {"taint": {"effect": "NoSchedule"}},
    "status": {"conditions": [{"type": "EvictionInProgress", "observedGeneration": 2}]},
}
OLD: Final = "token-0"
OPENING: Final = [Phase.RELEASING, Phase.ABORTING]


def node(*, cordoned: bool = False, by: str = "", step: str = FORMER_STEP) -> dict[str, Any]:
    notes = {names.STEP: step} | ({names.CORDONED: by} if by else {})
    meta = {"name": NODE, "uid": UID, "resourceVersion": "7", "labels": {}, "annotations": notes}
    return {"metadata": meta, "spec": {"unschedulable": True} if cordoned else {}}


def written(state: NodeStateStatus, body: Any, rule: Any = None, *, stands: Any = None) -> list[Effect]:
    subject = Subject(
        node_name=NODE,
        node_uid=UID,
        driver=DRIVER,
        driver_name="gpu.example.com",
        backend=ExampleDriver(),
        facts=NodeFacts(node=body) if body else None,
        rule=rule,
        taint_rules="resource.k8s.io/v1beta2",
    )
    turn = world(observed=seen(HALVES, step=STEP), rule=stands, there=body is not None)
    return list(effects(state, turn, subject))


def patch(**more: Any) -> PatchNode:
    return PatchNode(node=NODE, resource_version="7", **more)


CORDON: Final = patch(unschedulable=True, annotations={names.CORDONED: TOKEN})
UNCORDON: Final = patch(unschedulable=False, annotations={names.CORDONED: None, names.STEP: STEP})
STEP_ALONE: Final = patch(annotations={names.CORDONED: None, names.STEP: STEP})


# ------------------------------------------------------------------------------------------------------------------------ choosing


@pytest.mark.parametrize(
    ("asked", "served", "way"),
    [
        ("Auto", True, "DeviceTaint"),
        ("Auto", False, "Cordon"),
        ("DeviceTaint", False, "DeviceTaint"),
        ("Cordon", True, "Cordon"),
        ("Both", True, "Both"),
    ],
)
def test_auto_is_the_taint_where_there_are_taint_rules(asked: str, way: str, *, served: bool) -> None:
    assert chosen(asked, served=served) == way


# --------------------------------------------------------------------------------------------------------------------- the cordon


@pytest.mark.parametrize("phase", [Phase.QUIESCING, Phase.VERIFYING, Phase.ROLLING_BACK, Phase.FAILED])
@pytest.mark.parametrize("body", [node(), node(by=TOKEN), node(cordoned=True, by=OLD)], ids=["open", "reopened", "old"])
def test_a_node_is_cordoned_in_one_write_that_says_for_whom(phase: Phase, body: Any) -> None:
    assert written(record(phase, quiesce="Cordon"), body) == [CORDON]


def test_cordoning_in_the_middle_of_a_step_does_not_use_it_up() -> None:
    assert names.STEP not in CORDON.annotations
    assert written(record(Phase.ROLLING_BACK, quiesce="Cordon"), node()) == [CORDON]


@pytest.mark.parametrize("phase", [Phase.QUIESCING, Phase.VERIFYING, Phase.FAILED])
@pytest.mark.parametrize("by", [TOKEN, ""], ids=["ours", "somebody else's"])
def test_a_cordon_that_is_up_is_left_alone_whoever_put_it_up(phase: Phase, by: str) -> None:
    state = record(phase, quiesce="Cordon")
    body = node(cordoned=True, by=by)
    assert written(state, body, stands=quiesce()) == []
    assert in_force(holds(state, body, None)) is not None


def test_a_cordon_needs_no_proof_but_the_same_time() -> None:
    state = record(Phase.QUIESCING, quiesce="Cordon")
    first, again = (holds(state, node(cordoned=True, by=by), None) for by in (TOKEN, ""))
    assert read(first, LONG) == quiesce(watched=LONG)
    assert in_force(first) != in_force(again), "another cordon is waited for anew"
    assert in_force(holds(state, node(), None)) is None


@pytest.mark.parametrize("phase", OPENING)
def test_only_what_was_cordoned_by_us_is_uncordoned(phase: Phase) -> None:
    state = record(phase, quiesce="Cordon", step=STEP)
    assert written(state, node(cordoned=True, by=TOKEN)) == [UNCORDON]
    assert written(state, node(cordoned=True, by=OLD)) == [UNCORDON]
    assert written(state, node(cordoned=True)) == [STEP_ALONE], "it stays as somebody else left it"


@pytest.mark.parametrize("phase", OPENING)
def test_opening_is_written_even_where_nothing_is_cordoned_so_that_a_late_cordon_is_refused(phase: Phase) -> None:
    state = record(phase, quiesce="Cordon", step=STEP)
    assert written(state, node()) == [STEP_ALONE]
    assert read(holds(state, node(), None), LONG) is not None
    assert written(state, node(step=STEP)) == []
    assert read(holds(state, node(step=STEP), None), LONG) is None


@pytest.mark.parametrize("phase", OPENING)
def test_a_node_that_is_gone_has_nothing_to_open(phase: Phase) -> None:
    state = record(phase, quiesce="Cordon", step=STEP)
    assert written(state, None) == []
    assert read(holds(state, None, None), LONG) is None


@pytest.mark.parametrize("phase", sorted(AT_REST))
def test_a_cordon_that_was_left_over_goes(phase: Phase) -> None:
    left = patch(unschedulable=False, annotations={names.CORDONED: None})
    assert written(record(phase), node(cordoned=True, by=OLD)) == [left]
    assert written(record(phase), node(cordoned=True)) == []


# -------------------------------------------------------------------------------------------------------------------- both, and one


def test_both_means_both_on_and_off() -> None:
    state = record(Phase.QUIESCING, quiesce="Both")
    rule, cordon = written(state, node())
    assert isinstance(rule, CreateTaintRule)
    assert rule.api_version == "resource.k8s.io/v1beta2"
    assert cordon == CORDON
    assert written(state, node(), RULE) == [CORDON]
    assert in_force(holds(state, node(), RULE)) is None
    assert in_force(holds(state, node(cordoned=True, by=TOKEN), None)) is None
    assert read(holds(state, node(cordoned=True, by=TOKEN), RULE), LONG) == quiesce(watched=LONG)
    delete, uncordon = written(record(Phase.RELEASING, quiesce="Both"), node(cordoned=True, by=TOKEN), RULE)
    assert isinstance(delete, DeleteTaintRule)
    assert delete.api_version == "resource.k8s.io/v1beta2"
    assert uncordon == UNCORDON


def test_a_rule_counts_when_the_controller_manager_has_answered_for_what_it_is_now() -> None:
    state = record(Phase.QUIESCING)
    moved = {**RULE, "metadata": {**RULE["metadata"], "generation": 3}}
    stands = [read(holds(state, node(), rule), timedelta(0)) for rule in (RULE, moved)]
    assert [each.proven for each in stands if each] == [True, False]


def test_with_the_taint_alone_nobody_elses_cordon_matters() -> None:
    state = record(Phase.QUIESCING)
    for body in (node(), node(cordoned=True)):
        assert written(state, body, RULE) == []
        assert read(holds(state, body, RULE), LONG) == quiesce(watched=LONG)
    assert read(holds(record(Phase.RELEASING), node(cordoned=True), None), LONG) is None
