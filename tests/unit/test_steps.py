"""Steps, and the pods of drivers that have to start anew: what they are, when it is their turn, and when it has been."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.exits import (
    ANEW,
    CASES,
    EXITS,
    SECOND,
    failing,
    lost,
    must,
    same_assignment,
    too_early,
)
from tests.unit.worlds import (
    EIGHT,
    FORMER_STEP,
    FRESH,
    HALVES,
    HALVES_RESTARTED,
    LIMITS,
    LONG,
    NEVER,
    STEP,
    T0,
    WHOLE,
    WHOLE_UPGRADED,
    holder,
    quiesce,
    record,
    seen,
    several,
    world,
)

from gpupartition.api.v1alpha1 import Phase, Restart
from gpupartition.domain.backend import Config, Observation
from gpupartition.domain.lifecycle import advance

# ------------------------------------------------------------------------------------------------------------------------ steps


def test_entering_applying_begins_a_step_that_never_was() -> None:
    state, turn = CASES[Phase.DRAINING, "no holder is left"]
    after = must(state, turn)
    assert (after.step, after.generation) == (FRESH, state.generation + 1)


@pytest.mark.parametrize("key", [k for k, way in EXITS.items() if way.to is Phase.ROLLING_BACK is not k[0]], ids=str)
def test_rolling_back_always_begins_a_step_of_its_own(key: tuple[Phase, str]) -> None:
    state, turn = CASES[key]
    after = must(state, turn)
    assert (after.step, after.generation) == (FRESH, state.generation + 1)


# ------------------------------------------------------------------------------------- drivers that are told, and answer


def answering(layout: Config, *, acknowledged: bool, plugin: str = "pod-1") -> Observation:
    """A driver that does what the assignment says when it likes, and whose plugin sees nothing of it until it starts anew."""
    has = seen(layout, step=STEP, ready=acknowledged, plugin=plugin)
    return replace(has, acknowledged=acknowledged, restarts=True)


def test_a_plugin_is_not_restarted_before_the_driver_has_done_what_it_was_told() -> None:
    assert advance(record(Phase.APPLYING), world(observed=answering(HALVES, acknowledged=False))) is None
    after = must(record(Phase.APPLYING), world(observed=answering(HALVES, acknowledged=True)))
    assert (after.phase, after.restart) == (Phase.APPLYING, Restart(pod_uid="pod-1", step=STEP))


def test_a_node_is_verified_only_after_its_plugin_has_started_anew() -> None:
    state = record(Phase.APPLYING, restart=Restart(pod_uid="pod-1", step=STEP))
    assert advance(state, world(observed=answering(HALVES, acknowledged=True))) is None
    assert must(state, world(observed=answering(HALVES, acknowledged=True, plugin="pod-2"))).phase is Phase.VERIFYING


def test_a_former_layout_of_such_a_driver_is_back_when_it_stays() -> None:
    state = record(Phase.ROLLING_BACK, restart=Restart(pod_uid="pod-1", step=STEP))
    there = answering(WHOLE, acknowledged=True, plugin="pod-2")
    assert advance(state, world(observed=there)) is None
    assert must(state, world(observed=there, matched=LIMITS.min_ready)).phase is Phase.RELEASING


def test_a_restart_of_an_earlier_step_does_not_count_for_such_a_driver() -> None:
    state = record(Phase.APPLYING, restart=Restart(pod_uid="pod-1", step=FORMER_STEP))
    after = must(state, world(observed=answering(HALVES, acknowledged=True, plugin="pod-2")))
    assert after.restart == Restart(pod_uid="pod-2", step=STEP)


def test_the_pod_that_saw_too_little_goes_on_record_and_then_the_node_is_told_again_by_another_step() -> None:
    after = must(record(Phase.APPLYING), world(observed=failing(HALVES, stale=True)))
    assert (after.phase, after.restart) == (Phase.APPLYING, Restart(pod_uid="agent-1", step=STEP, agent=True))
    assert advance(after, world(observed=failing(HALVES, stale=True))) is None, "it has not gone yet"
    ending = replace(failing(HALVES), agent=None)
    assert advance(after, world(after=LIMITS.min_ready, observed=ending)) is None, "there is no other one yet"
    again = must(after, world(observed=failing(HALVES, agent="agent-2")))
    assert (again.phase, again.step, again.restart) == (Phase.APPLYING, FRESH, after.restart)


def test_a_driver_that_failed_is_not_waited_for_until_the_limit_is_over() -> None:
    assert advance(record(Phase.APPLYING), world(observed=failing(HALVES))) is None, (
        "it may speak of what it was told before"
    )
    after = must(record(Phase.APPLYING), world(after=LIMITS.min_ready, observed=failing(HALVES)))
    assert after.phase is Phase.ROLLING_BACK
    assert "it failed" in after.message


def test_a_plugin_that_looked_too_early_after_a_reboot_is_restarted_as_often_as_need_be_but_not_at_once() -> None:
    state = must(lost(Phase.VERIFYING), world(observed=too_early()))
    assert (state.phase, state.restart) == (Phase.VERIFYING, Restart(pod_uid="pod-1", step=FORMER_STEP))
    assert advance(state, world(observed=too_early())) is None, "it has not gone yet"
    assert advance(state, world(observed=too_early(plugin="pod-2"), plugin_seen=NEVER)) is None, (
        "it may be about to publish"
    )
    again = must(state, world(observed=too_early(plugin="pod-2")))
    assert again.restart == Restart(pod_uid="pod-2", step=FORMER_STEP)
    assert advance(lost(Phase.VERIFYING), world(observed=seen(HALVES, pool=WHOLE.pool))) is None, (
        "it republishes by itself"
    )


def test_a_plugin_that_looked_before_the_driver_was_done_is_restarted_while_the_node_is_verified() -> None:
    state = record(Phase.VERIFYING, restart=Restart(pod_uid="pod-0", step=STEP))
    assert must(state, world(observed=too_early(step=STEP))).restart == Restart(pod_uid="pod-1", step=STEP)
    assert advance(state, world(observed=too_early(step=STEP), holders=[holder()])) is None


def test_a_plugin_is_not_restarted_so_late_that_it_would_not_be_up_when_the_limit_is_over() -> None:
    state = record(Phase.VERIFYING, target=EIGHT, restart=Restart(pod_uid="pod-0", step=STEP))
    lacking = replace(too_early(EIGHT, step=STEP), pool=several(7))
    early, late = (
        world(after=at, wanted=EIGHT, observed=lacking) for at in (NEVER, LIMITS.verifying - LIMITS.start_anew)
    )
    assert must(state, early).restart == Restart(pod_uid="pod-1", step=STEP), "it may have missed one"
    assert advance(state, late) is None
    over = must(state, world(after=LIMITS.verifying, wanted=EIGHT, observed=lacking))
    assert (over.phase, over.reason) == (Phase.RELEASING, "HardwareDegraded")


def test_a_node_that_lost_a_gpu_goes_back_as_soon_as_its_plugin_has_looked_again() -> None:
    state = record(Phase.ROLLING_BACK, previous=EIGHT)
    lacking = world(observed=replace(too_early(EIGHT, step=STEP), pool=several(7)))
    anew = must(state, lacking)
    assert (anew.phase, anew.restart) == (Phase.ROLLING_BACK, Restart(pod_uid="pod-1", step=STEP)), (
        "it may look too early"
    )
    young = world(observed=replace(too_early(EIGHT, "pod-2", step=STEP), pool=several(7)), plugin_seen=NEVER)
    assert advance(anew, young) is None, "it may be about to publish"
    back = must(anew, world(observed=replace(too_early(EIGHT, "pod-2", step=STEP), pool=several(7))))
    assert (back.phase, back.outcome) == (Phase.RELEASING, Phase.ROLLED_BACK)


def test_config_that_pods_see_late_is_old_enough_before_a_node_is_closed() -> None:
    limits = LIMITS.of_driver("applying_mig", seen_late=True)
    young = replace(world(limits=limits), config_written=T0, now=T0 + LIMITS.config_age - SECOND)
    assert advance(record(Phase.ADMITTED), young) is None
    assert must(record(Phase.ADMITTED), replace(young, now=T0 + LIMITS.config_age)).phase is Phase.QUIESCING


def test_the_time_that_config_has_to_age_does_not_count_against_its_phase() -> None:
    limits = LIMITS.of_driver("applying_mig", seen_late=True)
    assert limits.admitted == LIMITS.admitted + LIMITS.config_age
    assert limits.applying == LIMITS.applying_mig
    assert LIMITS.of_driver("applying", seen_late=False).config_age == NEVER


@pytest.mark.parametrize("phase", [Phase.APPLYING, Phase.VERIFYING])
def test_a_layout_that_is_there_counts_only_when_this_step_brought_it(phase: Phase) -> None:
    assert advance(record(phase), world(observed=seen(HALVES, step=FORMER_STEP), matched=LONG)) is None


def test_a_former_layout_that_was_never_left_counts_only_when_this_step_wrote_it() -> None:
    assert advance(record(Phase.ROLLING_BACK), world(observed=seen(WHOLE, step=FORMER_STEP))) is None


def test_applying_returns_to_draining_only_when_its_step_is_used_up() -> None:
    turn = world(observed=seen(WHOLE, step=FORMER_STEP), rule=quiesce(), holders=[holder()])
    assert advance(record(Phase.APPLYING), turn) is None, "somebody may still be about to write this step"


def test_a_driver_that_was_updated_may_see_its_pods_end_while_it_starts() -> None:
    state = record(Phase.APPLYING, target=WHOLE_UPGRADED, previous=WHOLE)
    assert state.change == "Restart"
    turn = world(
        wanted=WHOLE_UPGRADED, observed=seen(WHOLE_UPGRADED, step=STEP, ready=False), holders=[holder(terminating=True)]
    )
    assert advance(state, turn) is None


# --------------------------------------------------------------------------------------------------------------------- restarts


def test_the_pod_that_has_to_go_is_on_record_before_it_goes() -> None:
    state, turn = CASES[Phase.APPLYING, ANEW]
    assert must(state, turn).restart == Restart(pod_uid="pod-1", step=STEP)


@pytest.mark.parametrize(
    ("restart", "plugin", "done"),
    [
        (Restart(pod_uid="pod-1", step=STEP), "pod-2", True),
        (Restart(pod_uid="pod-1", step=STEP), "pod-1", False),
        (Restart(pod_uid="pod-0", step=FORMER_STEP), "pod-1", False),
    ],
    ids=["another pod runs", "still the same pod", "recorded in an earlier step"],
)
def test_only_a_restart_of_this_step_counts(restart: Restart, plugin: str, done: bool) -> None:
    turn = world(wanted=HALVES_RESTARTED, observed=seen(HALVES_RESTARTED, step=STEP, plugin=plugin))
    step = advance(same_assignment(Phase.APPLYING, restart=restart), turn)
    assert (step is not None and step.state.phase is Phase.VERIFYING) == done


def test_a_restart_recorded_in_an_earlier_step_is_recorded_anew() -> None:
    state = same_assignment(Phase.APPLYING, restart=Restart(pod_uid="pod-0", step=FORMER_STEP))
    turn = world(wanted=HALVES_RESTARTED, observed=seen(HALVES, step=STEP))
    assert must(state, turn).restart == Restart(pod_uid="pod-1", step=STEP)


def test_no_pod_is_marked_to_go_while_somebody_needs_it_to_end() -> None:
    turn = world(
        wanted=HALVES_RESTARTED, observed=seen(HALVES, step=STEP), holders=[holder(terminating=True)], rule=quiesce()
    )
    assert advance(same_assignment(Phase.APPLYING), turn) is None


def test_a_change_of_the_assignment_needs_no_restart_by_us() -> None:
    after = must(record(Phase.APPLYING), world(observed=seen(HALVES, step=STEP)))
    assert (after.phase, after.restart) == (Phase.VERIFYING, None)
