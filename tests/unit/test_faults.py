"""How a simulated driver behaves when the switches of its node make it fail, and what its pod then reports."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from testbed.drivers.example import BadEnvironmentError, Settings, draw
from testbed.drivers.pods import DriverPod
from testbed.faults import BadFaultError, Behaviour, Running, behave, parse

from gpupartition.kube import Object

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def layout(partitions: int) -> Settings:
    return Settings(node="n1", partitions=partitions)


# ── fault switches ────────────────────────────────────────────────────────────────────────────────────────────────────


def seen(annotation: str, *, partitions: int = 2, age: float = 5) -> Behaviour:
    return behave(layout(partitions), parse(annotation), age)


def test_a_driver_without_switches_is_ready_and_publishes_its_layout() -> None:
    assert seen("") == Behaviour(running=Running.READY, slices=tuple(draw(layout(2))))


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
    faults = ("", "wrong-layout", "wrong-layout=parts", "wrong-layout=gpu")
    right, missing, more, fewer = (seen(fault).slices or () for fault in faults)
    assert missing[0] == right[0]
    assert missing[1]["devices"] == right[1]["devices"][:-1]
    assert list(more) == draw(layout(3))
    assert list(fewer) == draw(replace(layout(2), devices=7))


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
        ("wrong-layout=upside", "=missing, =parts or =gpu"),
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
