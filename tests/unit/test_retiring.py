"""Layouts that change under their users: which devices stay, when they go, and when it cannot be done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.published import BACKEND, H100, Server, choices, config, driver, equal, layout
from tests.unit.worlds import HALVES, QUARTERS, STEP, WHOLE, granted, holder, quiesce, record, seen, world

from gpupartition.api.v1alpha1 import NodeStateStatus, Phase
from gpupartition.domain.backend import Cluster, Config
from gpupartition.domain.changes import class_of
from gpupartition.domain.lifecycle import advance
from gpupartition.domain.pool import MAX_RECORD, Device, Pool
from gpupartition.domain.rest import rest
from gpupartition.domain.retiring import possible, published, retire, retired
from gpupartition.domain.world import World

NOTHING = NodeStateStatus()
BOUNDS = {"default": "1Gi", "min": "1Gi", "step": "1Gi"}
SHARED = {"sharing": {"mode": "Shared", "capacity": {"memory": BOUNDS}}}


MIG = {**H100, "product": "NVIDIA H100 80GB HBM3"}
MI300X = {"count": 2, "product": "MI300X", "memory": "192Gi"}


def in_mode(compute: str, memory: str) -> Config:
    return config(layout("Mode", mode={"compute": compute, "memory": memory}), of=driver(MI300X))


def observed(*layouts: dict[str, Any], of: Any = None) -> Any:
    """A node that publishes this and nothing else."""
    return seen(config(*layouts, of=of))


def live(**more: Any) -> World:
    """A turn of a node whose driver changes layouts under their users."""
    return replace(world(**more), live=True)


def must(state: NodeStateStatus, turn: World) -> NodeStateStatus:
    step = advance(state, turn)
    assert step is not None, f"nothing happens to {state}"
    return step.state


def test_devices_of_the_former_layout_stay_with_the_counters_that_they_draw_on() -> None:
    stay = Pool.from_json(retire(NOTHING, seen(HALVES), QUARTERS.assigned()))
    assert [d.name for d in stay.devices] == ["gpu-0-part-0", "gpu-0-part-1"]
    assert all(d.retired for d in stay.devices)
    assert stay.counters == HALVES.pool.counters


def test_what_both_layouts_have_is_not_retired() -> None:
    after = config(equal(4))
    stay = Pool.from_json(retire(NOTHING, observed(equal(2)), after.assigned()))
    assert {d.name for d in stay.devices} == {f"gpu-{gpu}-{part}of2" for gpu in (0, 1) for part in (1, 2)}


def test_a_retired_device_that_is_wanted_again_is_simply_offered() -> None:
    before = NodeStateStatus(retiring=retire(NOTHING, observed(equal(2)), config(equal(4)).assigned()))
    back = Pool.from_json(retire(before, observed(equal(4)), config(equal(2)).assigned()))
    assert {d.name.rpartition("of")[2] for d in back.devices} == {"4"}


def test_what_is_half_written_is_known_from_the_record() -> None:
    half = seen(HALVES, pool=Pool(problem="1 of 2 slices are there"))
    before = record(Phase.APPLYING, target=QUARTERS, previous=HALVES, change="Live", quiesce="None")
    assert {d.name for d in Pool.from_json(retire(before, half, HALVES.assigned())).devices} == QUARTERS.pool.names


@pytest.mark.parametrize(
    ("before", "after", "can"),
    [
        (config(equal(2)), config(equal(4)), True),
        (config(layout()), config(equal(4)), True),
        (config(equal(2)), config({**equal(2), **SHARED}), False),
        (config(equal(2)), config(equal(2), of=driver({**H100, "memory": "96Gi"})), False),
        (config(equal(2)), config(equal(2), of=driver({**H100, "count": 1})), True),
        (in_mode("CPX", "NPS1"), in_mode("DPX", "NPS1"), True),
        (in_mode("CPX", "NPS1"), in_mode("CPX", "NPS4"), False),  # the memory of all GPUs of the node at once
        (config(layout(), of=driver(MIG)), config(choices("1g.10gb", "3g.40gb"), of=driver(MIG)), True),
    ],
    ids=[
        "other parts",
        "a whole GPU",
        "what is exclusive is shared",
        "other counters",
        "a GPU less",
        "another compute mode",
        "another memory mode",
        "partitions of a tabled GPU",
    ],
)
def test_no_name_may_stand_for_two_things_and_no_node_have_two_memory_modes(before: Any, after: Any, can: bool) -> None:
    assert possible(NOTHING, seen(before), after.pool) is can


def bulky(name: str) -> Config:
    """A layout of which a node's record can hold one, and not two at once."""
    device = Device(name=name, capacity={"memory": 1}, attributes={"a": {"string": "x" * (MAX_RECORD * 3 // 4)}})
    return Config(fingerprint=name, assignment=name, pool=Pool(devices=(device,)))


A, B = bulky("a"), bulky("b")


@pytest.mark.parametrize(
    ("known", "there", "after", "can"),
    [
        ({}, A, B, True),
        ({"retiring": A.pool.to_json()}, B, HALVES, False),
        ({"current": A.assigned()}, B, HALVES, False),
        ({"current": A.assigned(), "previous": A.assigned()}, HALVES, B, True),
        ({"retiring": A.pool.to_json()}, HALVES, B, False),
    ],
    ids=[
        "one layout",
        "what is left of another one",
        "what was verified, and is not there now",
        "the same one twice",
        "on the way back",
    ],
)
def test_whatever_the_record_would_have_to_name_then_it_can_hold_on_the_way_there_and_back(
    known: dict[str, Any], there: Config, after: Config, can: bool
) -> None:
    state = NodeStateStatus(phase=Phase.ADMITTED, **known)
    assert possible(state, seen(there), after.pool) is can
    if can:
        previous = state.previous or there.assigned()
        begun = state.model_copy(update={"previous": previous, "target": after.assigned()})
        begun = begun.model_copy(update={"retiring": retire(begun, seen(there), begun.target)})
        assert len(begun.retiring) <= MAX_RECORD
        assert len(retire(begun, seen(after), begun.previous)) <= MAX_RECORD


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.ADMITTED])
def test_what_a_node_was_to_become_and_never_was_is_nothing_that_has_to_stay(phase: Phase) -> None:
    quarters = {**equal(4), "equal": {"parts": 4, "offerWhole": False}}
    before = NodeStateStatus(phase=phase, target=config(quarters).assigned())
    assert possible(before, observed(equal(2)), config({**quarters, **SHARED}).pool)


def test_of_slices_that_are_not_whole_it_is_not_known_what_is_in_use() -> None:
    assert not possible(NOTHING, seen(HALVES, pool=Pool(problem="1 of 2 slices are there")), QUARTERS.pool)


def test_in_slices_retired_devices_carry_a_taint_and_are_read_apart() -> None:
    server, after = Server(), config(equal(4))
    list(server.assign(config(equal(2)).assigned(), "s1"))
    state = NodeStateStatus(retiring=retire(NOTHING, server.observe(), after.assigned()))
    list(server.assign(published(state, after.assigned()), "s2", 2))
    tainted = [d for s in server.slices.values() for d in s["spec"].get("devices", ()) if "taints" in d]
    assert {d["name"] for d in tainted} == retired(state).names
    assert {t["key"]: t["effect"] for d in tainted for t in d["taints"]} == {
        "gpupartition.dev/repartitioning": "NoSchedule"
    }
    now = server.observe()
    assert now.ready
    assert now.pool.equals(after.pool)
    assert now.running == after.fingerprint
    assert now.retired.equals(retired(state))
    assert BACKEND.way_back(server.driver, server.facts, Cluster()).fingerprint == after.fingerprint


def test_when_the_api_server_says_since_when_a_device_is_tainted_nothing_is_written_again() -> None:
    server, after = Server(), config(equal(4))
    list(server.assign(config(equal(2)).assigned(), "s1"))
    state = NodeStateStatus(retiring=retire(NOTHING, server.observe(), after.assigned()))
    list(server.assign(published(state, after.assigned()), "s2", 2))
    for each in server.slices.values():
        for device in each["spec"].get("devices", ()):
            for taint in device.get("taints", ()):
                taint["timeAdded"] = "2026-03-01T12:00:00Z"
    assert list(server.repair(published(state, after.assigned()))) == []


@pytest.mark.parametrize(("dropped", "can"), [((), True), (("spec.devices[0].taints",), False)])
def test_without_taints_nobody_can_be_kept_from_what_is_retired(dropped: tuple[str, ...], can: bool) -> None:
    cluster = Cluster(dropped=dropped)
    assert BACKEND.live(driver(), cluster) is can
    assert BACKEND.preflight(driver(), cluster) == []


def test_a_node_that_changes_under_its_users_is_neither_closed_nor_drained() -> None:
    turn = live(grant=granted(), holders=())
    taken = rest(record(Phase.PENDING), turn)
    assert taken is not None
    assert (taken.state.phase, taken.state.change, taken.state.quiesce) == (Phase.ADMITTED, "Live", "None")
    begun = must(taken.state, live())
    assert (begun.phase, retired(begun).names) == (Phase.APPLYING, WHOLE.pool.names)


def test_where_somebody_has_a_device_of_which_nothing_is_known_the_node_is_closed_first() -> None:
    before = record(Phase.ADMITTED, change="Live", quiesce="None")
    after = must(before, live(holders=[holder("gpu-7")]))
    assert (after.phase, after.change, after.quiesce) == (Phase.QUIESCING, "Repartition", "DeviceTaint")
    used = record(Phase.APPLYING, change="Live", quiesce="None")
    cancelled = must(used, live(observed=seen(WHOLE, step=STEP), holders=[holder("gpu-7")]))
    assert (cancelled.phase, cancelled.quiesce) == (Phase.DRAINING, "DeviceTaint")


def test_a_node_that_failed_under_its_users_is_kept_from_others_and_its_devices_stay() -> None:
    before = record(Phase.ROLLING_BACK, change="Live", quiesce="None", retiring=HALVES.pool.to_json())
    after = must(before, live(after=world().limits.applying + world().limits.verifying))
    assert (after.phase, after.quiesce) == (Phase.FAILED, "DeviceTaint")
    again = must(after, replace(live(rule=quiesce()), retry="again"))
    assert (again.phase, retired(again).names) == (Phase.ROLLING_BACK, HALVES.pool.names)


def test_while_something_is_retired_a_change_without_devices_is_none_of_the_light_ones() -> None:
    halves = replace(seen(HALVES), running="another", retired=WHOLE.pool)
    assert class_of(halves, HALVES, live=False) == "Repartition"
    assert class_of(replace(halves, retired=Pool()), HALVES, live=False) == "Restart"


def test_what_nobody_has_any_more_goes_from_the_record_first() -> None:
    before = record(Phase.UP_TO_DATE, retiring=QUARTERS.pool.to_json(), generation=7)
    kept = frozenset({"gpu-0-part-2", "gpu-0-part-3"})
    step = rest(before, replace(live(observed=seen(HALVES)), in_use=kept))
    assert step is not None
    assert (retired(step.state).names, step.state.generation) == (kept, 8)
    assert (step.state.phase, step.state.reason) == (Phase.UP_TO_DATE, "Retiring")
    assert step.state.message.endswith("go as soon as they are released: gpu-0-part-2, gpu-0-part-3")
    last = rest(step.state, replace(live(observed=seen(HALVES)), in_use=frozenset()))
    assert last is not None
    assert (last.state.retiring, last.state.reason) == ("", "")


def test_what_is_not_known_yet_is_not_said_anew() -> None:
    said: dict[str, Any] = {"reason": "Retiring", "message": "so it was", "current": HALVES.assigned("rev")}
    before = record(Phase.UP_TO_DATE, retiring=WHOLE.pool.to_json(), **said)
    assert rest(before, live(observed=seen(HALVES))) is None
