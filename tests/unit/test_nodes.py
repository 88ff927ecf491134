"""What nodes do by themselves: they reboot, vanish, join, lose GPUs, drift, and others work on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import pytest
from tests.properties.cluster import DRIVER
from tests.unit.worlds import (
    EIGHT,
    FORMER_STEP,
    HALVES,
    LIMITS,
    LONG,
    NEVER,
    QUARTERS,
    STEP,
    T0,
    TOKEN,
    WHOLE,
    cut,
    granted,
    quiesce,
    record,
    seen,
    several,
    world,
)

from gpupartition.api.v1alpha1 import DriftBrake, Grant, NodeStateStatus, Phase, Purpose
from gpupartition.backends.example import ExampleDriver
from gpupartition.domain.admission import Admission, Rules, Standing, admit
from gpupartition.domain.backend import NodeFacts
from gpupartition.domain.drift import REPAIRS, brake, brake_message
from gpupartition.domain.effects import RemoveTaint
from gpupartition.domain.lifecycle import advance, way_out
from gpupartition.domain.others import at_work, skips, writer
from gpupartition.domain.phases import time_left
from gpupartition.domain.pool import Pool
from gpupartition.domain.rest import rest
from gpupartition.domain.world import AT_REST, World
from gpupartition.domain.writes import Subject, effects
from gpupartition.names import LAYOUT, STARTUP_TAINT

SECOND: Final = timedelta(seconds=1)
HOUR: Final = timedelta(hours=1)


def must(state: NodeStateStatus, turn: World) -> NodeStateStatus:
    """The record after this turn, which has to change it."""
    step = rest(state, turn) if state.phase in AT_REST else advance(state, turn)
    assert step is not None, f"nothing happens in {state.phase}"
    return step.state


# ------------------------------------------------------------------------------------------------------------ rebooted, or away

FOR_RECOVERY: Final = granted().model_copy(update={"purpose": Purpose.RECOVERY})
VERIFIED: Final = record(Phase.UP_TO_DATE, boot_id="boot-1")


def back(**more: Any) -> World:
    """A turn of a verified node after its reboot, with a grant for that."""
    return replace(world(observed=seen(HALVES), grant=FOR_RECOVERY), boot_id="boot-2", **more)


def recovering(phase: Phase) -> NodeStateStatus:
    return record(phase, previous=HALVES, recovering=True, step=FORMER_STEP)


def test_a_node_that_was_restarted_is_closed_and_verified_again_without_any_step() -> None:
    state = must(VERIFIED, back())
    assert (state.phase, state.token, state.recovering) == (Phase.QUIESCING, TOKEN, True)
    state = must(state, back(quiesce=quiesce(watched=NEVER)))
    assert state.phase is Phase.VERIFYING, "no settling, no draining: nothing is about to change"
    state = must(state, back(quiesce=quiesce(), matched=LIMITS.min_ready))
    assert (state.phase, state.boot_id) == (Phase.RELEASING, "boot-2")
    state = must(state, back())
    assert (state.phase, state.recovering, state.previous) == (Phase.UP_TO_DATE, False, None)
    assert state.current == VERIFIED.current


@pytest.mark.parametrize(
    "turn",
    [
        replace(back(), boot_id="boot-1"),
        replace(back(), boot_id="boot-1", away=LIMITS.not_ready - SECOND),
        replace(back(), boot_id=""),
        replace(back(), skip=True),
        replace(back(), wanted=None),
        replace(back(), grant_stands=False),
    ],
    ids=[
        "is back",
        "was away for a moment",
        "boot unknown",
        "left alone by request",
        "unwanted",
        "a grant for another",
    ],
)
def test_a_grant_that_is_not_needed_for_that_is_only_taken_to_be_given_back(turn: World) -> None:
    assert must(VERIFIED, turn) == VERIFIED.model_copy(update={"token": TOKEN})


def test_a_node_that_is_not_ready_for_long_is_verified_again_when_it_is_back() -> None:
    away = replace(back(), boot_id="boot-1", node_ready=False, away=LIMITS.not_ready)
    state = must(VERIFIED, away)
    assert state.message == "is not Ready, so it is closed to new claims until it is verified again"


def test_without_a_grant_a_restarted_node_writes_nothing() -> None:
    assert rest(VERIFIED, replace(back(), grant=None)) is None


def test_a_grant_for_verifying_again_is_never_used_for_a_change() -> None:
    state = must(record(Phase.PENDING, target=QUARTERS), replace(back(), wanted=QUARTERS))
    assert (state.phase, state.token) == (Phase.PENDING, TOKEN)


def test_the_clock_of_a_lost_node_waits_until_it_is_ready() -> None:
    state = recovering(Phase.VERIFYING)
    away = replace(world(after=LONG, observed=seen(HALVES, pool=Pool())), node_ready=False)
    assert time_left(state, away) is None
    assert advance(state, away) is None
    again = replace(away, node_ready=True, ready_since=away.now - SECOND)
    assert time_left(state, again) == LIMITS.verifying - SECOND
    late = must(state, replace(again, now=again.now + LIMITS.verifying))
    assert (late.phase, late.reason) == (Phase.FAILED, "VerifyingFailed"), (
        "never RollingBack: there is nothing to roll back"
    )


def test_a_lost_node_that_failed_opens_by_itself_when_it_is_what_it_was() -> None:
    state = recovering(Phase.FAILED)
    assert advance(state, world(observed=seen(HALVES, pool=Pool()))) is None, "and does not go round in circles"
    after = must(state, world(observed=seen(HALVES), matched=LIMITS.min_ready))
    assert (after.phase, after.reason) == (Phase.RELEASING, "")


def test_a_lost_node_for_which_something_else_is_wanted_waits_for_its_turn() -> None:
    turn = world(wanted=QUARTERS, observed=seen(HALVES), matched=LIMITS.min_ready)
    state = must(must(recovering(Phase.VERIFYING), turn), turn)
    assert (state.phase, state.attempts) == (Phase.PENDING, 0)


def test_retrying_a_lost_node_that_failed_starts_its_driver_anew() -> None:
    state = must(recovering(Phase.FAILED), world(retry="now", observed=seen(HALVES, pool=Pool())))
    assert state.phase is Phase.ROLLING_BACK
    state = must(state, world(observed=seen(HALVES, step=state.step, pool=Pool())))
    assert state.restart is not None


def test_a_node_that_is_adopted_or_released_remembers_its_boot() -> None:
    assert must(NodeStateStatus(), world(observed=seen(HALVES))).boot_id == "boot-1"
    turn = replace(world(observed=seen(HALVES, step=STEP), matched=LIMITS.min_ready), boot_id="boot-7")
    assert must(record(Phase.VERIFYING), turn).boot_id == "boot-7"


# ------------------------------------------------------------------------------------------------------------------- lost GPUs

SEVEN: Final = seen(EIGHT, pool=several(7))


def test_a_node_that_lost_a_gpu_midway_is_released_with_the_others_and_says_so() -> None:
    turn = world(after=LIMITS.verifying, wanted=EIGHT, observed=replace(SEVEN, step=STEP))
    state = must(record(Phase.VERIFYING, target=EIGHT), turn)
    assert (state.phase, state.reason) == (Phase.RELEASING, "HardwareDegraded")
    state = must(state, turn)
    assert (state.phase, state.reason) == (Phase.UP_TO_DATE, "HardwareDegraded")
    assert state.message.startswith("1 of 8 GPUs are missing, such as gpu-7")
    state = state.model_copy(update={"token": ""})
    assert rest(state, replace(turn, differs=LONG)) is None, "no repair"


def test_a_verified_node_that_loses_a_gpu_is_not_repaired() -> None:
    turn = world(wanted=EIGHT, observed=SEVEN, differs=LIMITS.drift)
    state = must(record(Phase.UP_TO_DATE, target=EIGHT), turn)
    assert (state.phase, state.reason) == (Phase.UP_TO_DATE, "HardwareDegraded")
    whole = must(state, world(wanted=EIGHT, observed=seen(EIGHT)))
    assert (whole.phase, whole.reason) == (Phase.UP_TO_DATE, "")


def test_a_node_without_all_of_its_gpus_is_not_begun_with() -> None:
    state = must(record(Phase.PENDING), world(observed=replace(seen(WHOLE), lost_gpus=1)))
    assert (state.phase, state.reason) == (Phase.SKIPPED, "HardwareDegraded")
    assert must(state, world()).phase is Phase.PENDING


@pytest.mark.parametrize(
    ("there", "whole", "lacks"),
    [
        (several(7), several(8), True),
        (several(8), several(8), False),
        (several(9), several(8), False),
        (Pool(), several(8), False),
        (cut(2), several(8), False),
        (replace(several(7), problem="1 of 2 slices"), several(8), False),
    ],
)
def test_only_whole_gpus_that_are_missing_count_as_lost(there: Pool, whole: Pool, lacks: bool) -> None:
    assert there.equals_but_for_lost_gpus(whole) is lacks


# ----------------------------------------------------------------------------------------------------------------------- drift

DRIFTED: Final = world(observed=seen(HALVES, pool=cut(4)), differs=LIMITS.drift)


def test_drift_is_repaired_three_times_a_day_and_then_left_alone() -> None:
    state = record(Phase.UP_TO_DATE)
    for hour in range(REPAIRS):
        now = T0 + hour * HOUR
        state = must(state, replace(DRIFTED, now=now))
        assert (state.phase, state.reason) == (Phase.PENDING, "Drift")
        state = must(state, replace(DRIFTED, now=now, grant=granted(), grant_stands=True))
        assert state.phase is Phase.ADMITTED
        state = record(Phase.UP_TO_DATE, repairs=state.repairs)
    state = must(state, replace(DRIFTED, now=T0 + 4 * HOUR))
    assert (state.phase, state.reason) == (Phase.SKIPPED, "DriftUnrepaired")
    assert "left alone until 02 Mar 12:00 UTC" in state.message
    assert rest(state, replace(DRIFTED, now=T0 + 5 * HOUR)) is None
    assert must(state, replace(DRIFTED, now=T0 + 25 * HOUR)).phase is Phase.PENDING, "the day is over"
    asked = must(state, replace(DRIFTED, now=T0 + 5 * HOUR, retry="mended"))
    assert (asked.phase, asked.reason, asked.repairs) == (Phase.PENDING, "Drift", [])
    assert must(state, world(observed=seen(HALVES))).phase is Phase.UP_TO_DATE, "it healed"


def contested(now: timedelta) -> World:
    observed = replace(seen(QUARTERS), writer="kubectl-label")
    return replace(world(observed=observed), now=T0 + now)


def test_an_assignment_that_somebody_else_wrote_is_drift_at_once_and_twice_in_an_hour_contested() -> None:
    state = must(record(Phase.UP_TO_DATE), contested(SECOND))
    assert (state.phase, state.reason) == (Phase.PENDING, "Drift")
    assert state.message.startswith("kubectl-label changed its label from halves to quarters")
    again = record(Phase.UP_TO_DATE, contests=state.contests)
    assert must(again, contested(2 * HOUR)).phase is Phase.PENDING, "that was long ago"
    state = must(again, contested(HOUR / 2))
    assert (state.phase, state.reason) == (Phase.SKIPPED, "AssignmentContested")
    assert "twice in an hour kubectl-label changed" in state.message
    assert rest(state, contested(5 * HOUR)) is None
    assert must(state, replace(contested(HOUR), retry="settled")).reason == "Drift"


def drifting(count: int, of: int, *, at: timedelta = NEVER) -> dict[str, NodeStateStatus]:
    fallen = {f"n{i}": record(Phase.PENDING, reason="Drift", drifted=T0 + at) for i in range(count)}
    return fallen | {f"n{i}": record(Phase.UP_TO_DATE) for i in range(count, of)}


def on(
    records: Mapping[str, NodeStateStatus],
    *,
    before: DriftBrake | None = None,
    asked: str = "",
    after: timedelta = SECOND,
) -> DriftBrake | None:
    return brake(records, before=before, asked=asked, matched=len(records), now=T0 + after)


@pytest.mark.parametrize(
    ("count", "of", "braked"),
    [(1, 1, False), (1, 5, False), (2, 5, True), (2, 19, True), (2, 20, False), (3, 20, True)],
)
def test_two_nodes_and_more_than_a_tenth_that_drift_together_are_a_brake(count: int, of: int, braked: bool) -> None:
    assert bool(brake_message(on(drifting(count, of)))) is braked


def test_nodes_that_drift_one_after_the_other_are_no_brake() -> None:
    assert on(drifting(3, 5), after=timedelta(minutes=11)) is None


def test_the_brake_stays_on_until_it_is_accepted_by_a_new_value_or_nothing_drifts_any_more() -> None:
    braked = on(drifting(2, 5))
    assert on(drifting(2, 5), before=braked, after=LONG) == braked
    accepted = on(drifting(2, 5), before=braked, asked="yes", after=2 * SECOND)
    assert accepted == DriftBrake(accepted="yes", accepted_at=T0 + 2 * SECOND)
    assert on(drifting(2, 5), before=accepted, asked="yes", after=3 * SECOND) == accepted, "that drift was accepted"
    later = on(drifting(2, 5, at=HOUR), before=accepted, asked="yes", after=HOUR + SECOND)
    assert brake_message(later), "another drift asks for another value"
    assert on(drifting(0, 5), before=braked) is None


# -------------------------------------------------------------------------------------------------------------- others at work


@pytest.mark.parametrize(
    ("spec", "labels", "said"),
    [
        ({}, {}, ""),
        ({"taints": [{"key": "example.com/gpu"}]}, {}, ""),
        ({"unschedulable": True}, {}, "it is cordoned"),
        (
            {"taints": [{"key": "karpenter.sh/disrupted"}]},
            {},
            "Karpenter is about to remove it (taint karpenter.sh/disrupted)",
        ),
        ({"taints": [{"key": "ToBeDeletedByClusterAutoscaler"}]}, {}, "the cluster autoscaler is about to remove it"),
        ({"taints": [{"key": "DeletionCandidateOfClusterAutoscaler"}]}, {}, "the cluster autoscaler may remove it"),
        ({}, {"nvidia.com/gpu-driver-upgrade-state": "upgrade-done"}, ""),
        ({}, {"nvidia.com/gpu-driver-upgrade-state": "drain-required"}, "its GPU driver is being upgraded"),
    ],
)
def test_who_is_at_work_on_a_node(spec: Any, labels: Any, said: str) -> None:
    found = at_work({"metadata": {"labels": labels}, "spec": spec})
    assert found.startswith(said)
    assert bool(found) is bool(said)


def test_a_node_that_others_work_on_waits_and_says_for_whom() -> None:
    state = must(record(Phase.PENDING), replace(world(), at_work="it is cordoned"))
    assert (state.phase, state.reason) == (Phase.PENDING, "ForeignMaintenance")
    assert state.message == "waits until others are done: it is cordoned"
    turn = replace(world(grant=granted()), at_work="it is cordoned")
    assert must(record(Phase.PENDING), turn).phase is Phase.PENDING, "a grant that came before the cordon is given back"


def test_a_verified_node_that_drifted_because_of_somebody_else_is_not_repaired() -> None:
    late = world(observed=seen(WHOLE), differs=timedelta(hours=1))
    state = must(record(Phase.UP_TO_DATE), replace(late, not_ours="ResourceSlice theirs (of no one node)"))
    assert (state.phase, state.reason) == (Phase.SKIPPED, "NameTaken")
    assert must(record(Phase.UP_TO_DATE), late).phase is Phase.PENDING, "drift of its own is repaired"


def test_a_node_whose_rule_has_a_name_that_is_taken_is_not_begun_with() -> None:
    state = must(record(Phase.PENDING), replace(world(), not_ours="DeviceTaintRule gpp-n-1 has its name"))
    assert (state.phase, state.reason) == (Phase.SKIPPED, "NameTaken")
    assert "DeviceTaintRule gpp-n-1" in state.message
    turn = replace(world(grant=granted()), not_ours="DeviceTaintRule gpp-n-1 has its name")
    assert must(record(Phase.PENDING), turn).phase is Phase.PENDING, "a grant that came before it is given back"
    assert (
        rest(
            record(Phase.UP_TO_DATE),
            replace(world(observed=seen(HALVES)), not_ours="DeviceTaintRule gpp-n-1 has its name"),
        )
        is None
    )


def test_a_node_that_is_to_be_left_alone_is_skipped_but_keeps_what_it_has() -> None:
    state = must(record(Phase.PENDING), replace(world(), skip=True))
    assert (state.phase, state.reason) == (Phase.SKIPPED, "SkipRequested")
    assert rest(record(Phase.UP_TO_DATE), replace(world(observed=seen(HALVES)), skip=True)) is None
    assert [skips({"metadata": {"labels": {"gpupartition.dev/skip": v}}}) for v in ("", "true", "false")] == [
        True,
        True,
        False,
    ]


def test_the_field_manager_of_the_label_is_named_and_nobody_is_made_up() -> None:
    def entry(manager: str, time: str, *, owns: bool = False) -> dict[str, Any]:
        fields: dict[str, Any] = {"f:metadata": {"f:labels": {f"f:{LAYOUT}": {}}}} if owns else {}
        return {"manager": manager, "time": time, "fieldsV1": fields}

    def node(*entries: dict[str, Any]) -> dict[str, Any]:
        return {"metadata": {"managedFields": list(entries)}}

    ours = entry("gpupartition", "2026-03-01T12:00:03Z", owns=True)
    assert (
        writer(
            node(
                entry("kubectl-label", "2026-03-01T12:00:00Z", owns=True),
                entry("kubelet", "2026-03-01T12:00:02Z"),
                ours,
            ),
            LAYOUT,
        )
        == "kubectl-label"
    )
    assert writer(node(entry("a", "2026-03-01T12:00:00Z"), entry("b", "2026-03-01T12:00:01Z"), ours), LAYOUT) == "b"
    assert writer(node(ours), LAYOUT) == "somebody"


# ------------------------------------------------------------------------------------------------------------------- admission


def standing(name: str, phase: Phase = Phase.PENDING, **more: Any) -> Standing:
    return Standing(node=name, uid=name, phase=phase, at_target=phase is Phase.UP_TO_DATE, **more)


def decide(*nodes: Standing, mine: int = 1, ledger: tuple[Grant, ...] = (), **rules: Any) -> Admission:
    return admit(
        nodes=nodes,
        others=(),
        ledger=ledger,
        rules=Rules(max_unavailable=mine, driver_max_unavailable=mine, limit=100, now=T0, **rules),
    )


def test_new_nodes_are_begun_with_beside_max_unavailable_as_many_as_may_be() -> None:
    new = [standing(name, initial=True) for name in ("x", "y", "z")]
    begun = decide(standing("a", Phase.APPLYING), standing("b"), *new, max_initializing=2)
    assert begun.grants == {"x": Purpose.INITIAL, "y": Purpose.INITIAL}
    moving = standing("w", Phase.APPLYING, initial=True)
    assert decide(standing("b"), moving, *new, max_initializing=2).grants == {
        "b": Purpose.ROLL_OUT,
        "x": Purpose.INITIAL,
    }


def test_a_new_node_is_one_until_it_has_given_its_grant_back() -> None:
    first = Grant(node="w", uid="w", policy="p", token=TOKEN, since=T0, purpose=Purpose.INITIAL)
    new = [standing(name, initial=True) for name in ("x", "y")]
    for phase in (Phase.RELEASING, Phase.UP_TO_DATE):
        has_its_layout = standing("w", phase)
        found = decide(has_its_layout, standing("b"), *new, ledger=(first,), max_initializing=2)
        assert found.grants == {"b": Purpose.ROLL_OUT, "x": Purpose.INITIAL}


def test_a_new_node_that_somebody_used_when_it_was_taken_counts_as_unavailable_until_it_is_done() -> None:
    used = Grant(node="w", uid="w", policy="p", token=TOKEN, since=T0, purpose=Purpose.ROLL_OUT)
    for phase in (Phase.PENDING, Phase.DRAINING, Phase.APPLYING):
        nobody_uses_it_now = standing("w", phase, initial=True)
        found = decide(nobody_uses_it_now, standing("b"), ledger=(used,), max_initializing=2)
        assert found.grants == {}


def test_new_nodes_that_are_not_ready_yet_use_up_nobodys_budget() -> None:
    assert decide(standing("x", initial=True, ready=False), standing("b")).nodes == ("b",)


@pytest.mark.parametrize("brakes", [{"paused": "p"}, {"drift": "many"}, {"outside": "at 22:00"}], ids=str)
def test_a_lost_node_is_closed_whatever_keeps_others_out(brakes: Any) -> None:
    lost = standing("a", Phase.UP_TO_DATE, lost=T0, ready=False)
    found = decide(lost, standing("b", Phase.APPLYING), standing("c"), **brakes)
    assert found.grants == {"a": Purpose.RECOVERY}


@pytest.mark.parametrize("brakes", [{"frozen": "because"}, {"stopped": "broken"}], ids=str)
def test_when_everything_is_frozen_not_even_lost_nodes_are_touched(brakes: Any) -> None:
    assert not decide(standing("a", Phase.UP_TO_DATE, lost=T0), **brakes).grants


def test_a_node_that_is_not_ready_for_a_moment_costs_nothing_and_is_looked_at_again_in_time() -> None:
    found = decide(standing("a", Phase.UP_TO_DATE, lost=T0 + SECOND, ready=False))
    assert (dict(found.grants), found.until) == ({}, T0 + SECOND)


def test_a_lost_node_counts_as_unavailable_once_until_nobody_counts_on_it() -> None:
    lost = standing("a", Phase.VERIFYING, recovering=True, ready=False)
    assert decide(lost, standing("b"), mine=2).nodes == ("b",)
    assert decide(lost, standing("b")).nodes == ()
    assert decide(replace(lost, ignored=True), standing("b")).nodes == ("b",)


def test_when_many_have_drifted_nobody_is_taken() -> None:
    found = decide(standing("a"), drift="many nodes drifted")
    assert (found.nodes, found.reason, found.message) == ((), "MassDrift", "many nodes drifted")


def test_a_node_that_others_work_on_is_unavailable_and_not_begun_with() -> None:
    busy = standing("a", at_work="it is cordoned")
    assert decide(busy, standing("b"), mine=2).nodes == ("b",)
    gate = decide(busy, standing("b"))
    assert (gate.reason, gate.message) == (
        "BudgetExhausted",
        "spec.rollout.maxUnavailable is used up by others: node a: it is cordoned",
    )
    alone = decide(busy)
    assert (alone.reason, alone.message) == (
        "ForeignMaintenance",
        "waits until others are done: node a: it is cordoned",
    )


# ------------------------------------------------------------------------------------------------------- startup taint, letting go


def subject(node: dict[str, Any]) -> Subject:
    return Subject(
        node_name="node-a",
        node_uid="uid-a",
        driver=DRIVER,
        driver_name="d",
        backend=ExampleDriver(),
        facts=NodeFacts(node=node),
        rule=None,
    )


@pytest.mark.parametrize("phase", sorted(AT_REST))
def test_the_startup_taint_is_removed_when_the_node_is_verified(phase: Phase) -> None:
    taints = [{"key": "example.com/gpu"}, {"key": STARTUP_TAINT, "effect": "NoSchedule"}]
    node = {"metadata": {"name": "node-a", "resourceVersion": "7"}, "spec": {"taints": taints}}
    expected = (RemoveTaint(node="node-a", resource_version="7", place=1),) if phase is Phase.UP_TO_DATE else ()
    assert tuple(effects(record(phase), world(observed=seen(HALVES)), subject(node))) == expected


def test_a_failed_node_is_let_go_as_it_is_only_when_nobody_wants_it_and_its_step_is_used_up() -> None:
    state = record(Phase.FAILED)
    asked = replace(world(wanted=None, observed=seen(HALVES), rule=quiesce()), abandoned=True)
    node = {"metadata": {"name": "node-a", "resourceVersion": "7"}}
    way = way_out(state, replace(asked, wanted=HALVES))
    assert way is None
    (cancel,) = effects(state, asked, subject(node))
    assert getattr(cancel, "annotations", {}) == {"gpupartition.dev/step": STEP}
    given_up = must(state, replace(asked, observed=seen(HALVES, step=STEP)))
    assert (given_up.phase, given_up.reason) == (Phase.ABORTING, "Abandoned")
    assert "unverified" in given_up.message
    after = must(given_up, replace(asked, quiesce=None))
    assert (after.phase, after.reason) == (Phase.PENDING, "Abandoned")
