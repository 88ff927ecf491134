"""What the simulated example driver publishes, and how it behaves when its node's switches make it fail."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from testbed.drivers.example import BadEnvironmentError, Settings, draw, quantity
from testbed.drivers.pods import DriverPod
from testbed.drivers.slices import Pool, Writes, compare
from testbed.faults import BadFaultError, Behaviour, Running, behave, parse

Object = dict[str, Any]

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
POOL = Pool(driver="gpu.example.com", node="n1", node_uid="uid-of-n1", name="n1")


def settings(*, devices: int = 8, partitions: int = 0, shared: bool = False) -> Settings:
    return Settings(node="n1", devices=devices, partitions=partitions, shared=shared)


# ── drawings ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def drawing(slices: list[Object]) -> str:
    """One line per slice's kind, counter set and device: name, memory/compute, what it takes from where, its own attributes."""
    lines = []
    for content in slices:
        lines += [f"{each['name']}: {size(each['counters'])}" for each in content.get("sharedCounters", ())]
        for device in content.get("devices", ()):
            costs = [
                f"takes {size(each['counters'])} of {each['counterSet']}" for each in device.get("consumesCounters", ())
            ]
            own = [
                f"{name}={next(iter(value.values()))}"
                for name, value in device["attributes"].items()
                if name not in {"uuid", "model", "driverVersion"}
            ]
            lines.append(" | ".join((f"{device['name']}: {size(device['capacity'])}", *costs, " ".join(own))))
        lines.append("-" * 8)
    return "\n".join(lines[:-1])


def size(amounts: Object) -> str:
    return f"{amounts['memory']['value']}/{amounts['compute']['value']}"


def lines(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


def test_without_partitions_every_gpu_is_one_plain_device() -> None:
    assert drawing(draw(settings(devices=3))) == lines("""
        gpu-0: 80Gi/100 | index=0
        gpu-1: 80Gi/100 | index=1
        gpu-2: 80Gi/100 | index=2
    """)


def test_halves_are_listed_before_the_whole_gpu_and_all_take_from_its_counters() -> None:
    assert drawing(draw(settings(devices=2, partitions=2))) == lines("""
        gpu-0-counters: 80Gi/100
        gpu-1-counters: 80Gi/100
        --------
        gpu-0-partition-0: 40Gi/50 | takes 40Gi/50 of gpu-0-counters | index=0 partition=0 partitionable=True
        gpu-0-partition-1: 40Gi/50 | takes 40Gi/50 of gpu-0-counters | index=0 partition=1 partitionable=True
        gpu-0-full: 80Gi/100 | takes 80Gi/100 of gpu-0-counters | index=0 partitionable=True full=True
        gpu-1-partition-0: 40Gi/50 | takes 40Gi/50 of gpu-1-counters | index=1 partition=0 partitionable=True
        gpu-1-partition-1: 40Gi/50 | takes 40Gi/50 of gpu-1-counters | index=1 partition=1 partitionable=True
        gpu-1-full: 80Gi/100 | takes 80Gi/100 of gpu-1-counters | index=1 partitionable=True full=True
    """)


@pytest.mark.parametrize(
    ("partitions", "part", "devices"), [(3, "28633115306/33", 32), (4, "20Gi/25", 40), (7, "12271335131/14", 64)]
)
def test_a_part_is_the_gpu_divided_without_remainder(partitions: int, part: str, devices: int) -> None:
    counters, published = draw(settings(partitions=partitions))
    assert len(counters["sharedCounters"]) == 8
    assert len(published["devices"]) == devices
    assert size(published["devices"][0]["capacity"]) == part
    assert size(published["devices"][0]["consumesCounters"][0]["counters"]) == part


def test_a_shared_device_says_in_which_steps_it_can_be_shared() -> None:
    half = draw(settings(devices=1, partitions=2, shared=True))[1]["devices"][0]
    assert half["allowMultipleAllocations"] is True
    assert half["capacity"] == {
        "memory": {
            "value": "40Gi",
            "requestPolicy": {"default": "40Gi", "validRange": {"min": "1Gi", "max": "40Gi", "step": "1Gi"}},
        },
        "compute": {
            "value": "50",
            "requestPolicy": {"default": "50", "validRange": {"min": "1", "max": "50", "step": "1"}},
        },
    }


def test_a_device_that_is_not_shared_says_so_and_has_no_policy() -> None:
    for device in draw(settings())[0]["devices"] + draw(settings(partitions=2))[1]["devices"]:
        assert device["allowMultipleAllocations"] is False
        assert all("requestPolicy" not in capacity for capacity in device["capacity"].values())


def test_a_gpu_keeps_its_identity_over_layouts_and_differs_from_every_other() -> None:
    def identities(slices: list[Object]) -> dict[int, set[str]]:
        found: dict[int, set[str]] = {}
        for device in slices[-1]["devices"]:
            attributes = device["attributes"]
            found.setdefault(attributes["index"]["int"], set()).add(attributes["uuid"]["string"])
        return found

    plain = identities(draw(settings()))
    assert identities(draw(settings(partitions=4))) == plain
    assert all(len(each) == 1 for each in plain.values())
    assert len(set.union(*plain.values())) == 8
    assert identities(draw(Settings(node="n2"))) != plain


@given(st.integers(0, 1 << 50))
def test_a_quantity_says_the_same_amount_with_the_largest_suffix(amount: int) -> None:
    units = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
    text = quantity(amount)
    number, unit = (int(text[:-2]), units[text[-2:]]) if text[-2:] in units else (int(text), 1)
    assert number * unit == amount
    assert amount == 0 or not any(amount % other == 0 for other in units.values() if other > unit)


# ── environment ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_environment_is_read_as_the_real_driver_reads_it() -> None:
    env = {"NODE_NAME": "n1", "DRIVER_NAME": "g.dev", "NUM_DEVICES": "4", "GPU_PARTITIONS": "2"}
    assert Settings.from_env(env) == Settings(node="n1", driver="g.dev", devices=4, partitions=2)
    assert Settings.from_env({"NODE_NAME": "n1", "GPU_ALLOW_MULTIPLE_ALLOCATIONS": "T"}).shared
    assert Settings.from_env({"NODE_NAME": "n1"}) == Settings(node="n1")


def test_a_broken_environment_is_told_with_every_problem_at_once() -> None:
    env = {"NUM_DEVICES": "eight", "GPU_PARTITIONS": "2.5", "GPU_ALLOW_MULTIPLE_ALLOCATIONS": "maybe"}
    with pytest.raises(BadEnvironmentError) as told:
        Settings.from_env(env)
    for name in ("NUM_DEVICES", "GPU_PARTITIONS", "GPU_ALLOW_MULTIPLE_ALLOCATIONS", "NODE_NAME"):
        assert name in str(told.value)


# ── the pool over time ────────────────────────────────────────────────────────────────────────────────────────────────


def store(observed: list[Object], writes: Writes) -> list[Object]:
    """What an API server that accepts everything holds after these writes."""
    kept = {item["metadata"]["name"]: item for item in observed}
    for item in writes.delete:
        del kept[item["metadata"]["name"]]
    for item in writes.update:
        kept[item["metadata"]["name"]] = item
    for item in writes.create:
        name = next(
            name for number in itertools.count() if (name := f"{item['metadata']['generateName']}{number}") not in kept
        )
        kept[name] = {**item, "metadata": {**item["metadata"], "name": name}}
    return list(kept.values())


def published(*layouts: Settings) -> list[Object]:
    """The slices after the driver ran with these layouts, one after the other."""
    observed: list[Object] = []
    for layout in layouts:
        observed = store(observed, compare(observed, draw(layout), POOL))
    return observed


def numbers(observed: list[Object]) -> list[tuple[int, int]]:
    pools = [item["spec"]["pool"] for item in observed]
    return [(pool["generation"], pool["resourceSliceCount"]) for pool in pools]


def count(writes: Writes) -> tuple[int, int, int]:
    return len(writes.delete), len(writes.update), len(writes.create)


def test_a_new_pool_begins_at_generation_one_and_belongs_to_its_node() -> None:
    counters, devices = published(settings(partitions=2))
    assert numbers([counters, devices]) == [(1, 2), (1, 2)]
    assert counters["metadata"]["name"].startswith("00000-gpu.example.com-n1-")
    assert devices["metadata"]["name"].startswith("00001-gpu.example.com-n1-")
    assert devices["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-of-n1", "controller": True}
    ]
    assert "devices" not in counters["spec"]
    assert "sharedCounters" not in devices["spec"]


@pytest.mark.parametrize(
    ("before", "after", "writes", "generation"),
    [
        pytest.param(2, 2, (0, 0, 0), 1, id="the same layout writes nothing"),
        pytest.param(2, 4, (0, 1, 0), 1, id="other parts are one update in place"),
        pytest.param(0, 2, (0, 1, 1), 2, id="from plain to parts a slice is added, so the generation goes up"),
        pytest.param(2, 0, (1, 1, 0), 1, id="from parts to plain a slice is dropped, and the generation stays"),
    ],
)
def test_a_layout_change_writes_no_more_than_it_must(
    before: int, after: int, writes: tuple[int, int, int], generation: int
) -> None:
    observed = published(settings(partitions=before))
    assert count(compare(observed, draw(settings(partitions=after)), POOL)) == writes
    slices = len(draw(settings(partitions=after)))
    assert (
        numbers(published(settings(partitions=before), settings(partitions=after))) == [(generation, slices)] * slices
    )


def test_two_changed_slices_need_a_new_generation() -> None:
    observed = published(settings(devices=8, partitions=2), settings(devices=4, partitions=2))
    assert numbers(observed) == [(2, 2), (2, 2)]


def test_a_lost_slice_comes_back_under_a_new_generation() -> None:
    counters, _ = published(settings(partitions=2))
    writes = compare([counters], draw(settings(partitions=2)), POOL)
    assert count(writes) == (0, 1, 1)
    assert numbers(store([counters], writes)) == [(2, 2), (2, 2)]


def test_slices_that_fit_no_place_are_deleted_whoever_made_them() -> None:
    observed = published(settings(partitions=2))
    stray = {"metadata": {"name": "hand-made"}, "spec": observed[0]["spec"]}
    twin = {"metadata": {"name": "00001-gpu.example.com-n1-zzzzz"}, "spec": observed[1]["spec"]}
    beyond = {"metadata": {"name": "00002-gpu.example.com-n1-0"}, "spec": observed[1]["spec"]}
    writes = compare([*observed, stray, twin, beyond], draw(settings(partitions=2)), POOL)
    assert sorted(item["metadata"]["name"] for item in writes.delete) == [
        "00001-gpu.example.com-n1-zzzzz",
        "00002-gpu.example.com-n1-0",
        "hand-made",
    ]
    assert count(writes)[1:] == (0, 0)


def test_a_slice_of_an_older_generation_is_replaced_by_a_new_one() -> None:
    """So it comes that nine GPUs in halves lose the whole pool: only the devices were rewritten, the old counters are now obsolete."""
    counters, devices = published(settings(partitions=2))
    devices["spec"] = {**devices["spec"], "pool": {**devices["spec"]["pool"], "generation": 2}}
    writes = compare([counters, devices], draw(settings(devices=9, partitions=2)), POOL)
    assert writes.delete == [counters]
    assert count(writes) == (1, 1, 1)


LAYOUTS = st.builds(settings, devices=st.integers(1, 8), partitions=st.integers(0, 7), shared=st.booleans())


@given(st.lists(LAYOUTS, min_size=1, max_size=4), st.data())
def test_whatever_was_there_one_turn_is_enough(layouts: list[Settings], data: st.DataObject) -> None:
    observed = published(*layouts[:-1])
    lost = data.draw(st.sets(st.sampled_from([item["metadata"]["name"] for item in observed]))) if observed else set()
    observed = [item for item in observed if item["metadata"]["name"] not in lost]
    wanted = draw(layouts[-1])
    after = store(observed, compare(observed, wanted, POOL))
    assert count(compare(after, wanted, POOL)) == (0, 0, 0)
    assert len({item["spec"]["pool"]["generation"] for item in after}) == 1


# ── fault switches ────────────────────────────────────────────────────────────────────────────────────────────────────


def seen(annotation: str, *, partitions: int = 2, age: float = 5) -> Behaviour:
    return behave(settings(partitions=partitions), parse(annotation), age)


def test_a_driver_without_switches_is_ready_and_publishes_its_layout() -> None:
    assert seen("") == Behaviour(running=Running.READY, slices=tuple(draw(settings(partitions=2))))


def test_a_switch_for_one_layout_leaves_the_others_alone() -> None:
    annotation = "never-ready@partitions=4, wrong-layout@devices=3"
    assert seen(annotation, partitions=4).running is Running.NOT_READY
    assert seen(annotation, partitions=2) == seen("", partitions=2)


def test_a_slow_driver_starts_when_its_time_has_come() -> None:
    assert seen("slow-start=7", age=5) == Behaviour(running=Running.CREATING, again=2)
    assert seen("slow-start=7", age=7) == seen("")


def test_a_driver_that_never_gets_ready_publishes_all_the_same() -> None:
    assert seen("never-ready") == Behaviour(running=Running.NOT_READY, slices=seen("").slices)


def test_a_crashing_driver_publishes_nothing_and_waits_longer_each_time() -> None:
    ages = [0.0, 9.9, 10, 29.9, 30, 70, 150, 310, 609, 610, 910]
    assert [seen("crash-loop", age=age).restarts for age in ages] == [1, 1, 2, 2, 3, 4, 5, 6, 6, 7, 8]
    assert seen("crash-loop").slices is None
    assert seen("crash-loop", age=25).again == 5


def test_a_wrong_layout_lacks_a_device_or_has_a_part_too_many() -> None:
    right, missing, more = (seen(fault).slices or () for fault in ("", "wrong-layout", "wrong-layout=parts"))
    assert missing[0] == right[0]
    assert missing[1]["devices"] == right[1]["devices"][:-1]
    assert list(more) == draw(settings(partitions=3))


def test_a_driver_that_publishes_nothing_leaves_what_is_there() -> None:
    assert seen("publishes-nothing") == Behaviour(running=Running.READY, slices=None)


def test_a_driver_loses_its_slices_some_time_after_it_started() -> None:
    assert seen("loses-slices-after=6", age=5) == Behaviour(running=Running.READY, slices=seen("").slices, again=1)
    assert seen("loses-slices-after=6", age=6) == Behaviour(running=Running.READY, slices=())


@pytest.mark.parametrize(
    ("annotation", "says"),
    [
        ("explode", "never-ready"),
        ("slow-start", "=SECONDS"),
        ("slow-start=soon", "=SECONDS"),
        ("never-ready=2", "no argument"),
        ("wrong-layout=upside", "=missing or =parts"),
        ("crash-loop@nodes=2", "@partitions=N"),
    ],
)
def test_a_switch_that_cannot_be_read_says_what_to_write(annotation: str, says: str) -> None:
    with pytest.raises(BadFaultError) as told:
        parse(f"never-ready,{annotation}")
    assert annotation in str(told.value)
    assert says in str(told.value)


# ── the pod's report ──────────────────────────────────────────────────────────────────────────────────────────────────


def pod(**status: object) -> DriverPod:
    body = {
        "metadata": {"name": "p", "namespace": "gpu-driver", "uid": "u"},
        "spec": {
            "nodeName": "n1",
            "containers": [
                {
                    "name": "plugin",
                    "image": "registry/dra-example-driver:v0.4.0",
                    "env": [
                        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                        {"name": "NUM_DEVICES", "value": "4"},
                        {"name": "EMPTY"},
                    ],
                },
                {"name": "sidecar", "image": "registry/other"},
            ],
        },
        "status": {"phase": "Pending", **status},
    }
    found = DriverPod.of(body)
    assert found
    return found


def ready(status: Object) -> dict[str, bool]:
    return {item["name"]: item["ready"] for item in status["containerStatuses"]}


def test_fields_of_the_pod_reach_the_environment() -> None:
    assert pod().env() == {"NODE_NAME": "n1", "NUM_DEVICES": "4", "EMPTY": ""}


def test_a_value_from_elsewhere_is_not_silently_taken_for_empty() -> None:
    source = {"configMapKeyRef": {"name": "gpus", "key": "partitions"}}
    container = {**pod().container, "env": [{"name": "GPU_PARTITIONS", "valueFrom": source}]}
    with pytest.raises(BadEnvironmentError, match="GPU_PARTITIONS comes from configMapKeyRef"):
        DriverPod(pod().body, container).env()


def test_a_pod_that_ends_or_is_no_driver_runs_nothing() -> None:
    body = pod().body
    assert DriverPod.of({**body, "metadata": {**body["metadata"], "deletionTimestamp": "now"}}) is None
    assert DriverPod.of({**body, "status": {"phase": "Failed"}}) is None
    assert DriverPod.of({**body, "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "other"}]}}) is None
    assert DriverPod.of({**body, "spec": {**body["spec"], "nodeName": ""}}) is None


def test_what_is_reported_once_is_not_reported_again() -> None:
    for annotation in ("", "never-ready", "crash-loop", "slow-start=9"):
        status = pod().status(seen(annotation), NOON, NOON)
        assert status
        assert pod(**status).status(seen(annotation), NOON, NOON + timedelta(seconds=1)) is None


def test_a_crashing_container_counts_its_restarts_and_spares_its_neighbour() -> None:
    status = pod().status(seen("crash-loop", age=30), NOON, NOON)
    assert status
    plugin = status["containerStatuses"][0]
    assert plugin["restartCount"] == 3
    assert plugin["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert plugin["lastState"]["terminated"]["exitCode"] == 1
    assert ready(status) == {"plugin": False, "sidecar": True}
    healed = pod(**status).status(seen(""), NOON, NOON)
    assert healed
    assert healed["containerStatuses"][0]["restartCount"] == 3, "a restart is never taken back"
    assert ready(healed) == {"plugin": True, "sidecar": True}


def test_conditions_keep_the_time_of_their_last_change() -> None:
    before = pod().status(seen("never-ready"), NOON, NOON)
    assert before
    after = pod(**before).status(seen(""), NOON, NOON + timedelta(minutes=1))
    assert after
    times = {item["type"]: item["lastTransitionTime"] for item in after["conditions"]}
    assert times["Initialized"] == "2026-01-01T12:00:00Z"
    assert times["Ready"] == times["ContainersReady"] == "2026-01-01T12:01:00Z"
