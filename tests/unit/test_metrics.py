"""What Prometheus is told of a cluster: all that stands, nothing that is gone, and never without end."""

from __future__ import annotations

import importlib.metadata
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.fleet import Fleet, driver, policy
from tests.unit.records import SINCE, record

from gpupartition.api.v1alpha1 import Phase
from gpupartition.controller.caches import Caches
from gpupartition.controller.metrics import STANDING, TRANSITIONS, Snapshot, forget
from gpupartition.controller.records import NODE_STATES
from gpupartition.kube import CONFIG_MAPS, Object

REFERENCE: Final = Path(__file__).parents[2] / "docs/reference.md"
PREFIX: Final = "gpupartition_"


class Scene:
    """A fleet, and what its operator would tell Prometheus of it."""

    def __init__(self, count: int) -> None:
        self.fleet = Fleet(count)
        self.policies: dict[str, Object] = {}
        self.drivers: dict[str, Object] = {"example": driver()}
        self.known = True

    async def told(self) -> dict[str, float]:
        """Samples, as `name{label="value"}` without the prefix."""
        caches = Caches(self.fleet.client, namespace="gpupartition-system", on_node=lambda _: None, on_all=lambda: None)
        await caches.read()
        registry = CollectorRegistry()
        registry.register(Snapshot(caches, self.policies, self.drivers, known=lambda: self.known))
        lines = generate_latest(registry).decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name.removeprefix(PREFIX): float(value) for name, _, value in pairs}


def stands(**status: object) -> Object:
    return {**policy(), "status": status}


async def test_it_is_told_how_far_the_copies_have_come() -> None:
    assert (await Scene(1).told())['copy_version{kind="resourceslices"}'] == 1


async def test_nodes_are_counted_by_phase_and_those_that_are_deleted_are_not_told_any_more() -> None:
    scene = Scene(2)
    scene.policies["inference"] = stands()
    record(scene.fleet, "node-1", Phase.UP_TO_DATE)
    record(scene.fleet, "node-2", Phase.DRAINING)
    told = await scene.told()
    assert told['nodes{phase="UpToDate",policy="inference"}'] == 1
    assert told['nodes{phase="Failed",policy="inference"}'] == 0
    since = 'phase_since_timestamp_seconds{node="node-2",phase="Draining",policy="inference"}'
    assert told[since] == SINCE.timestamp()
    assert not [name for name in told if "node-1" in name]
    scene.fleet.objects[NODE_STATES].pop()
    assert not [name for name in await scene.told() if "node-2" in name]
    scene.policies.clear()
    assert not [name for name in await scene.told() if "inference" in name]


async def test_conditions_reasons_and_devices_are_those_of_the_status() -> None:
    scene = Scene(1)
    scene.policies["inference"] = stands(
        nodes={"matched": 4, "blocked": 1},
        conditions=[
            {"type": "Accepted", "status": "True"},
            {"type": "Ready", "status": "False", "reason": "RolloutHalted"},
            {"type": "Stalled", "status": "True"},
        ],
        capacity=[{"profile": "40Gi", "total": 48, "allocated": 3}],
    )
    told = await scene.told()
    for name, value in {
        'policy_condition{condition="Ready",policy="inference"}': 0,
        'policy_condition{condition="Stalled",policy="inference"}': 1,
        'policy_condition{condition="Reconciling",policy="inference"}': 0,
        'policy_reason{policy="inference",reason="RolloutHalted"}': 1,
        'nodes_matched{policy="inference"}': 4,
        'nodes_blocked{policy="inference"}': 1,
        'devices{policy="inference",profile="40Gi"}': 48,
        'devices_allocated{policy="inference",profile="40Gi"}': 3,
        'policy_paused{policy="inference"}': 0,
        "frozen": 0,
    }.items():
        assert told[name] == value, name


async def test_a_pause_and_a_freeze_are_told_until_they_are_over() -> None:
    scene = Scene(1)
    body = scene.policies["inference"] = stands()
    body["metadata"]["annotations"] = {"gpupartition.dev/paused": "true"}
    freeze = {"metadata": {"name": "gpupartition-freeze", "namespace": "gpupartition-system", "resourceVersion": "1"}}
    scene.fleet.objects[CONFIG_MAPS].append(freeze)
    told = await scene.told()
    assert (told['policy_paused{policy="inference"}'], told["frozen"]) == (1, 1)
    body["metadata"]["annotations"]["gpupartition.dev/paused-until"] = "2020-01-01T00:00:00Z"
    freeze["data"] = {"until": "2020-01-01T00:00:00Z"}
    told = await scene.told()
    assert (told['policy_paused{policy="inference"}'], told["frozen"]) == (0, 0)


async def test_each_grant_says_since_when_it_is_out() -> None:
    scene = Scene(1)
    grant = {"node": "node-1", "policy": "inference", "token": "t", "since": "2026-01-01T12:00:00Z"}
    scene.drivers["example"]["status"] = {"inFlight": [grant]}
    told = await scene.told()
    assert told['in_flight{driver="example"}'] == 1
    labels = 'driver="example",node="node-1",policy="inference",purpose="RollOut"'
    assert told[f"grant_since_timestamp_seconds{{{labels}}}"] == SINCE.timestamp()


async def test_repairs_of_the_last_day_are_counted() -> None:
    scene = Scene(1)
    now = datetime.now(UTC)
    record(scene.fleet, "node-1", Phase.UP_TO_DATE, repairs=[now - timedelta(days=2), now, now])
    assert (await scene.told())['drift_repairs{node="node-1",policy="inference"}'] == 2


async def test_who_stands_by_says_nothing_of_what_it_does_not_know() -> None:
    scene = Scene(1)
    scene.policies["inference"] = stands()
    scene.known = False
    assert {name.partition("{")[0] for name in await scene.told()} == {"build_info"}


async def test_a_checkout_that_was_never_installed_tells_its_metrics_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", nothing)
    assert (await Scene(1).told())['build_info{version="dev"}'] == 1


async def test_series_grow_with_what_is_going_on_and_not_with_the_cluster() -> None:
    scene = Scene(40)
    scene.policies["inference"] = stands()
    few = len(await scene.told())
    for node in scene.fleet.nodes:
        record(scene.fleet, node, Phase.UP_TO_DATE)
    assert len(await scene.told()) == few


def test_what_was_counted_of_a_policy_goes_with_it() -> None:
    TRANSITIONS.labels(policy="shortlived", phase="Applying").inc()
    TRANSITIONS.labels(policy="another", phase="Applying").inc()
    forget("shortlived")
    forget("never counted")
    told = generate_latest(REGISTRY).decode()
    assert 'policy="another"' in told
    assert "shortlived" not in told


@pytest.fixture(scope="module")
def documented() -> dict[str, set[str]]:
    """Metrics of the reference, each with its labels."""
    rows = re.findall(rf"^\| `({PREFIX}\w+)` \| ([^|]*)\|", REFERENCE.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}


def test_the_reference_has_every_metric_with_its_labels(documented: dict[str, set[str]]) -> None:
    standing = {f"{PREFIX}{name}": set(labels) for name, (labels, _) in STANDING.items()}
    counted = {
        (f"{each.name}_total" if each.type == "counter" else each.name): each
        for each in text_string_to_metric_families(generate_latest(REGISTRY).decode())
        if each.name.startswith(PREFIX) and not each.name.endswith("_created")
    }
    assert documented.keys() == standing.keys() | counted.keys()
    assert {name: documented[name] for name in standing} == standing
    assert all(each.documentation.endswith(".") for each in counted.values())
    assert all(says.endswith(".") for _, says in STANDING.values())
