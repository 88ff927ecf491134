"""What `history` puts together, in which order, and what it says of events that are gone or may not be read."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from tests.unit.fleet import Fleet, driver, policy
from tests.unit.records import SINCE, record

from gpupartition.api.v1alpha1 import Assigned, Blocker, Phase
from gpupartition.cli import history
from gpupartition.cli.options import Unusable
from gpupartition.cli.paint import rendered
from gpupartition.controller.records import POLICIES
from gpupartition.domain.chronicle import of_event, of_policy, of_record
from gpupartition.kube import EVENTS, Forbidden, Kind, Listing, Object

NOW: Final = datetime(2026, 1, 1, 12, 2, tzinfo=UTC)


def event(
    kind: str, name: str, reason: str, message: str, *, after: float = 0, related: tuple[str, str] | None = None
) -> Object:
    at = (SINCE + timedelta(seconds=after)).isoformat(timespec="seconds").replace("+00:00", "Z")
    body: Object = {
        "metadata": {"name": f"{name}.{after}", "namespace": "default"},
        "involvedObject": {"kind": kind, "name": name, "namespace": "team-a"},
        "reason": reason,
        "message": message,
        "type": "Warning" if "Fail" in reason else "Normal",
        "lastTimestamp": at,
    }
    return body | ({"related": {"kind": related[0], "name": related[1]}} if related else {})


def of_node(name: str, phase: str, note: str, *, after: float = 0) -> Object:
    related = ("GpuPartitionPolicy", "inference")
    return event("GpuPartitionNodeState", name, f"Node{phase}", note, after=after, related=related)


@pytest.fixture
def fleet() -> Fleet:
    """A policy with two nodes: one that failed just now, and one that was verified longer ago than events are kept."""
    made = Fleet(2)
    made.apply(policy())
    (body,) = made.objects[POLICIES]
    body["metadata"] |= {
        "creationTimestamp": "2026-01-01T09:00:00Z",
        "managedFields": [
            {"manager": "argocd", "operation": "Apply", "time": "2026-01-01T10:00:00Z", "fieldsV1": {"f:spec": {}}},
            {"manager": "gpupartition", "operation": "Update", "subresource": "status", "time": "2026-01-01T11:00:00Z"},
        ],
    }
    body["status"] = {
        "observedGeneration": 1,
        "acceptedAt": "2026-01-01T09:00:01Z",
        "conditions": [
            {
                "type": "Ready",
                "status": "False",
                "reason": "RolloutHalted",
                "lastTransitionTime": "2026-01-01T12:00:05Z",
            }
        ],
    }
    record(made, "node-1", Phase.FAILED, reason="RollingBackFailed", message="gpu-0 is missing")
    target = Assigned(fingerprint="0123456789abcdef", pool="{}", since=SINCE - timedelta(days=2))
    record(made, "node-2", Phase.UP_TO_DATE, target=target)
    made.objects[EVENTS] = [
        of_node("node-1", "RollingBack", "it does not publish what is wanted", after=-30),
        of_node("node-1", "Failed", "gpu-0 is missing", after=1),
        event("GpuPartitionPolicy", "inference", "RolloutHalted", "node node-1: gpu-0 is missing", after=6),
        event("Pod", "job-7", "GpuWanted", "policy inference wants to repartition node node-2 and waits", after=-60),
        event("GpuPartitionPolicy", "training", "RolloutComplete", "all 4 nodes are verified"),
    ]
    return made


async def told(fleet: Fleet, name: str) -> list[tuple[str, str, str]]:
    found = await history.look(fleet.client, name)
    return [(e.node or e.policy, e.what, e.source) for e in found.entries]


async def test_a_nodes_past_is_what_events_tell_and_before_that_what_its_record_remembers(fleet: Fleet) -> None:
    assert await told(fleet, "node-1") == [("node-1", "NodeRollingBack", "event"), ("node-1", "NodeFailed", "event")]
    assert await told(fleet, "node-2") == [
        ("node-2", "Target", "record"),
        ("node-2", "GpuWanted", "event"),
        ("node-2", "NodeUpToDate", "record"),
    ]


async def test_a_policys_past_is_that_of_its_nodes_too_newest_last(fleet: Fleet) -> None:
    assert await told(fleet, "inference") == [
        ("node-2", "Target", "record"),
        ("inference", "Created", "object"),
        ("inference", "Accepted", "object"),
        ("inference", "Written", "object"),
        ("node-2", "GpuWanted", "event"),
        ("node-1", "NodeRollingBack", "event"),
        ("node-2", "NodeUpToDate", "record"),
        ("node-1", "NodeFailed", "event"),
        ("inference", "RolloutHalted", "event"),
    ]


async def test_what_happened_within_a_second_is_told_as_it_was_written() -> None:
    fleet = Fleet(1)
    for version, phase in (("9", "Verifying"), ("10", "Releasing"), ("11", "UpToDate"), ("8", "Applying")):
        body = of_node("node-1", phase, "")
        fleet.objects[EVENTS].append({**body, "metadata": {**body["metadata"], "resourceVersion": version}})
    assert [what for _, what, _ in await told(fleet, "node-1")] == [
        "NodeApplying",
        "NodeVerifying",
        "NodeReleasing",
        "NodeUpToDate",
    ]


async def test_it_says_who_wrote_a_spec_and_how_far_back_events_go(fleet: Fleet) -> None:
    lines = rendered(history.pictured(await history.look(fleet.client, "inference"), NOW), colour=False).splitlines()
    assert any(line.endswith("spec by argocd (Apply)") for line in lines)
    assert lines[-1].endswith("the oldest here is of 2026-01-01T11:59:00Z")
    data: Any = json.loads(history.FORMS["json"](await history.look(fleet.client, "node-1")))
    assert data["name"] == "gpupartitionnodestate.gpupartition.dev/node-1"
    assert [(e["what"], e["warning"]) for e in data["entries"]] == [("NodeRollingBack", False), ("NodeFailed", True)]


async def test_a_grant_that_is_out_is_a_part_of_it(fleet: Fleet) -> None:
    body = driver()
    grant = {"node": "node-1", "policy": "inference", "token": "t", "since": "2026-01-01T11:00:00Z"}
    fleet.apply({**body, "status": {"inFlight": [grant]}})
    assert ("node-1", "Granted", "grant") in await told(fleet, "node-1")
    assert ("node-1", "Granted", "grant") not in await told(fleet, "node-2")


async def test_of_what_is_gone_events_tell_as_long_as_they_are_kept(fleet: Fleet) -> None:
    assert await told(fleet, "training") == [("training", "RolloutComplete", "event")]
    with pytest.raises(Unusable, match="that is called nowhere"):
        await told(fleet, "nowhere")


async def test_without_the_right_to_read_events_the_rest_is_told_and_that_is_said(fleet: Fleet) -> None:
    class Shut(Fleet):
        async def list(self, kind: Kind, **more: Any) -> Listing:
            if kind == EVENTS:
                raise Forbidden("list events", 403, "Forbidden", "no")
            return await fleet.list(kind, **more)

    found = await history.look(Shut(0).client, "node-1")
    assert [e.what for e in found.entries] == ["NodeFailed"]
    assert found.kept.startswith("without events: list events: 403")


def test_a_record_remembers_repairs_contests_and_who_is_in_the_way() -> None:
    fleet = Fleet(1)
    blocker = Blocker(node="node-1", claim="a/b", pod="a/p", device="gpu-0", reason="Allocated", since=SINCE)
    record(fleet, "node-1", Phase.PENDING, repairs=[SINCE], contests=[SINCE], drifted=SINCE, blockers=[blocker])
    (body,) = next(bodies for kind, bodies in fleet.objects.items() if kind.plural == "gpupartitionnodestates")
    assert {e.what for e in of_record(body)} == {"NodePending", "Drifted", "DriftRepaired", "Contested", "Blocked"}


@pytest.mark.parametrize("time", [None, "", "yesterday", "9999-12-31T23:59:59-23:59"])
def test_what_has_no_time_is_left_out(time: str | None) -> None:
    body = {**policy(), "status": {"acceptedAt": time}}
    assert list(of_policy(body)) == []
    made = event("GpuPartitionPolicy", "inference", "Paused", "")
    made["lastTimestamp"] = time
    assert of_event(made) is None


def test_events_of_others_about_others_are_nothing() -> None:
    assert of_event(event("Pod", "job-7", "Scheduled", "assigned to node-1")) is None


@pytest.mark.parametrize("kind", ["Pod", "GpuPartitionPolicy", "GpuPartitionNodeState"])
def test_an_event_that_does_not_say_what_it_is_about_is_nothing_or_told_without_that(kind: str) -> None:
    told = of_event({**event(kind, "x", "GpuWanted", "policy a repartitions node b"), "involvedObject": {"kind": kind}})
    assert told is None or (told.policy, told.node, told.says) == ("a", "b", "/: policy a repartitions node b")


def test_the_reference_names_every_reason_of_an_event() -> None:
    root = Path(__file__).parents[2]
    source = (root / "operator/gpupartition/controller/events.py").read_text(encoding="utf-8")
    posted = {reason for reason in re.findall(r'"(Gpu\w+)"', source) if not reason.startswith("GpuPartition")}
    page = (root / "docs/reference.md").read_text(encoding="utf-8").split("## Events")[1].split("\n## ")[0]
    assert posted == set(re.findall(r"^\| `(Gpu\w+)`", page, re.MULTILINE))
    assert "| `Node` and a phase" in page
