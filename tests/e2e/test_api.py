"""What the API server itself says to what users write: examples that it takes, and examples that it refuses with a sentence that helps.

The examples stand in api_examples.yaml. They go to the API server in one `kubectl apply --dry-run=server`, once as client-side and once
as server-side apply, because the two differ in what they do with nulls, unknown fields and lists.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml
from testbed.programs import TestbedError
from tests.e2e.api_examples import EXAMPLES, manifest, named, written
from tests.e2e.harness import DRIVERS, NODE_STATES, POLICIES

from gpupartition.api.crd import KINDS
from gpupartition.api.v1alpha1 import (
    Assigned,
    Blocker,
    Condition,
    DriverSpec,
    DriverStatus,
    Grant,
    NodeStateSpec,
    NodeStateStatus,
    Phase,
    PolicySpec,
    PolicyStatus,
)
from gpupartition.kube.errors import Invalid
from gpupartition.names import API_VERSION, GROUP

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pydantic import BaseModel
    from testbed.controlplane import ControlPlane

    from gpupartition.kube.client import Client
    from gpupartition.kube.kinds import Kind

CRDS: Final = Path(__file__).parents[2] / "crds"


@pytest.fixture(scope="module")
async def installed(controlplane: ControlPlane) -> ControlPlane:
    """A cluster that has the CRDs, established."""
    await controlplane.kubectl("apply", "--server-side", "-f", str(CRDS))
    names = [f"crd/{kind.plural}.{GROUP}" for kind in KINDS]
    await controlplane.kubectl("wait", "--for=condition=Established", "--timeout=30s", *names)
    return controlplane


@pytest.fixture(scope="module")
async def client(installed: ControlPlane) -> AsyncIterator[Client]:
    async with installed.client() as client:
        yield client


async def apply(cluster: ControlPlane, *objects: dict[str, Any], server_side: bool) -> str:
    """Apply without a trace; the answer is kubectl's complaint, or nothing."""
    try:
        side = f"--server-side={str(server_side).lower()}"
        await cluster.kubectl("apply", side, "--dry-run=server", "-f", "-", stdin=yaml.safe_dump_all(objects))
    except TestbedError as complaint:
        return str(complaint)
    return ""


@dataclass(frozen=True)
class Applied:
    """How all examples were applied, and what kubectl printed of those that were refused, by the object's name."""

    server_side: bool
    complaints: dict[str, str]


@pytest.fixture(scope="module", params=[False, True], ids=["client-side", "server-side"])
async def applied(installed: ControlPlane, request: pytest.FixtureRequest) -> Applied:
    examples = map(written, EXAMPLES["accepted"] + EXAMPLES["refused"])
    printed = await apply(installed, *examples, server_side=request.param)
    parts = re.split(r'(?m)^(?=The GpuPartition\w+ "|Error from server)', printed)
    names = [re.search(r'["/](api-[a-z0-9-]+)[";]', part) for part in parts]
    return Applied(request.param, {name[1]: part for name, part in zip(names, parts, strict=True) if name})


def test_each_example_has_a_name_of_its_own() -> None:
    names = [named(example["title"]) for example in EXAMPLES["accepted"] + EXAMPLES["refused"]]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("example", EXAMPLES["accepted"], ids=itemgetter("title"))
def test_what_is_right_is_taken(example: dict[str, Any], applied: Applied) -> None:
    assert named(example["title"]) not in applied.complaints


@pytest.mark.parametrize("example", EXAMPLES["refused"], ids=itemgetter("title"))
def test_what_is_wrong_is_refused_with_what_to_write_instead(example: dict[str, Any], applied: Applied) -> None:
    says = example["says"]
    if applied.server_side:
        says = example.get("saysServerSide", says)
    assert says in applied.complaints.get(named(example["title"]), "it was taken")


def test_an_empty_list_is_refused_once(applied: Applied) -> None:
    complaint = applied.complaints[named("no layout")]
    assert complaint.count("Invalid value") == 1
    assert "index" not in complaint


async def test_a_field_that_is_unknown_is_named(installed: ControlPlane) -> None:
    example = manifest("unknown", "policy", rollout={"maxUnavailabel": 1})
    assert 'unknown field "spec.rollout.maxUnavailabel"' in await apply(installed, example, server_side=False)
    assert ".spec.rollout.maxUnavailabel: field not declared in schema" in await apply(
        installed, example, server_side=True
    )


async def test_all_mistakes_are_told_at_once(installed: ControlPlane) -> None:
    layouts = [{"name": "a", "match": {}, "type": "Equal"}]
    example = manifest("mistakes", "policy", nodeSelector={}, rollout={"limit": 0}, layouts=layouts)
    complaint = await apply(installed, example, server_side=False)
    told = ["spec.layouts[0].equal", "spec.layouts[0].match", "spec.nodeSelector", "spec.rollout.limit"]
    assert [at for at in told if f"{at}: Invalid value" in complaint] == told


@pytest.mark.parametrize("base", ["policy", "example"])
async def test_a_name_that_fits_no_label_is_refused(client: Client, base: str) -> None:
    example = manifest("n" * 60, base)
    with pytest.raises(Invalid, match="the name is used as the value of a label: write at most 63 characters"):
        await client.create(POLICIES if base == "policy" else DRIVERS, example, dry_run=True)


async def test_what_is_left_out_gets_its_default_and_nothing_in_a_list_does(client: Client) -> None:
    layouts = [{"name": "a", "match": {"all": True}, "type": "Equal", "equal": {"parts": 2}}]
    example = manifest("defaults", "policy", layouts=layouts)
    made = await client.create(POLICIES, example, dry_run=True)
    assert made["spec"] == example["spec"] | {
        "mode": "Enforce",
        "deletionPolicy": "Retain",
        "rollout": {
            "paused": False,
            "limit": "100%",
            "maxUnavailable": 1,
            "maxInitializing": "10%",
            "maxFailed": 0,
            "onFailure": "RollBack",
            "pauseBetweenSeconds": 0,
            "progressDeadlineSeconds": 0,
            "drain": {"mode": "WhenIdle", "onTimeout": "Skip", "deleteEmptyDir": False, "force": False},
        },
    }
    example = manifest("defaults", "example")
    made = await client.create(DRIVERS, example, dry_run=True)
    assert made["spec"] == example["spec"] | {"maxUnavailable": "10%", "quiesce": "Auto"}


@pytest.mark.parametrize("base", ["policy", "example"])
async def test_a_new_object_is_not_taken_for_one_that_is_done(client: Client, base: str) -> None:
    example = manifest("new", base) | {"status": {"observedGeneration": 1}}
    made = await client.create(POLICIES if base == "policy" else DRIVERS, example, dry_run=True)
    assert made["status"] == {"observedGeneration": -1}


@pytest.mark.parametrize(
    ("base", "kind", "patch", "says"),
    [
        ("policy", POLICIES, {"driver": "other"}, "its nodes have that driver's layouts; make another policy"),
        ("publish", DRIVERS, {"publish": {"driverName": "other"}}, "slices and claims name it; make another"),
        ("publish", DRIVERS, {"type": "ExampleDriver"}, "nodes rely on it; make another GpuPartitionDriver"),
    ],
)
async def test_what_nodes_rely_on_cannot_be_changed(
    client: Client, base: str, kind: Kind, patch: dict[str, Any], says: str
) -> None:
    name = named(f"fixed {' '.join(patch)}")
    await client.create(kind, manifest(f"fixed {' '.join(patch)}", base))
    try:
        with pytest.raises(Invalid, match=f"cannot be changed: {says}"):
            await client.patch(kind, name, {"spec": patch})
        harmless = {"rollout": {"maxUnavailable": 2}} if kind is POLICIES else {"maxUnavailable": 2}
        assert (await client.patch(kind, name, {"spec": harmless}))["metadata"]["generation"] == 2
    finally:
        await client.delete(kind, name)


SINCE: Final = "2026-11-29T18:00:00.123456Z"
READY: Final = Condition.model_validate(
    {
        "type": "Ready",
        "status": "False",
        "reason": "RollingOut",
        "message": "node-3 is next",
        "observedGeneration": 1,
        "lastTransitionTime": SINCE,
    }
)


def wire(model: BaseModel) -> dict[str, Any]:
    """Write a model down as the operator does."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


async def test_columns_show_how_a_policy_does(installed: ControlPlane, client: Client) -> None:
    status = PolicyStatus.model_validate(
        {
            "observedGeneration": 1,
            "progress": "7/12",
            "revision": "0123456789",
            "nodes": {"failed": 2, "blocked": 3},
            "suspended": {"reason": "Frozen", "message": "storage is being moved"},
            "conditions": [wire(READY)],
        }
    )
    made = await client.create(POLICIES, manifest("columns", "policy"))
    name = made["metadata"]["name"]
    try:
        made = await client.patch(POLICIES, name, {"status": wire(status)}, subresource="status")
        short = (await installed.kubectl("get", "gpp", name)).splitlines()
        wide = (await installed.kubectl("get", "gpp", name, "--output=wide", "--no-headers")).split()
        listed = await installed.kubectl("get", "gpu")
    finally:
        await client.delete(POLICIES, name)
    assert short[0].split() == [
        *("NAME", "READY", "STATUS", "PROGRESS", "FAILED", "BLOCKED", "SUSPENDED", "REVISION", "AGE")
    ]
    assert short[1].split()[:-1] == [name, "False", "RollingOut", "7/12", "2", "3", "Frozen", "0123456789"]
    assert wide[-3:] == ["node-3", "is", "next"]
    assert f"gpupartitionpolicy.gpupartition.dev/{name}" in listed
    assert PolicyStatus.model_validate(made["status"]) == status
    assert PolicySpec.model_validate(made["spec"]).layouts[0].equal is not None


async def test_columns_show_how_a_driver_does_and_its_ledger_comes_back_as_written(
    installed: ControlPlane, client: Client
) -> None:
    grants = [
        Grant.model_validate({"node": f"n{i}", "uid": "u", "policy": "p", "token": "t", "since": SINCE})
        for i in range(2)
    ]
    status = DriverStatus(observed_generation=1, in_flight=grants, conditions=[READY])
    made = await client.create(DRIVERS, manifest("columns", "publish"))
    name = made["metadata"]["name"]
    try:
        made = await client.replace(DRIVERS, made | {"status": wire(status)}, subresource="status")
        lines = (await installed.kubectl("get", "gpd", name)).splitlines()
        with pytest.raises(Invalid, match="Duplicate value"):
            await client.replace(
                DRIVERS, made | {"status": wire(status) | {"inFlight": [wire(grants[0])] * 2}}, subresource="status"
            )
    finally:
        await client.delete(DRIVERS, name)
    assert lines[0].split() == ["NAME", "TYPE", "READY", "STATUS", "MAX-UNAVAILABLE", "AGE"]
    assert lines[1].split()[:-1] == [name, "Publish", "False", "RollingOut", "10%"]
    assert DriverStatus.model_validate(made["status"]) == status
    assert DriverSpec.model_validate(made["spec"]).publish is not None


async def test_a_record_is_written_whole_and_comes_back_as_written(installed: ControlPlane, client: Client) -> None:
    pool = Assigned(fingerprint="0123456789abcdef", assignment="0123456789abcdef", pool="x" * 262144, revision="r")
    status = NodeStateStatus.model_validate(
        {"phase": Phase.FAILED, "since": SINCE, "target": pool, "current": pool, "previous": pool, "original": Assigned(), "bootID": "b",
         "outcome": Phase.FAILED, "restart": {"podUID": "u", "step": "s"}, "reason": "PoolIncomplete", "message": "m" * 9999,
         "blockers": [Blocker(node="n", claim="a/b")]}
    )  # fmt: skip
    spec = NodeStateSpec.model_validate(
        {"policyRef": {"name": "inference", "uid": "u"}, "nodeUID": "n", "driver": "example"}
    )
    name = named("a record")
    record = {
        "apiVersion": API_VERSION,
        "kind": "GpuPartitionNodeState",
        "metadata": {"name": name},
        "spec": wire(spec),
        "status": wire(status),
    }
    made = await client.create(NODE_STATES, record)
    try:
        lines = (await installed.kubectl("get", "gpn", name)).splitlines()
        with pytest.raises(Invalid, match="cannot be changed: delete the record; the operator makes it anew"):
            await client.patch(NODE_STATES, name, {"spec": {"nodeUID": "other"}})
        made["metadata"]["finalizers"] = ["gpupartition.dev/in-flight"]
        made = await client.replace(NODE_STATES, made | {"status": wire(NodeStateStatus())})
        assert NodeStateStatus.model_validate(made["status"]) == NodeStateStatus()
        made["metadata"]["finalizers"] = []
        made = await client.replace(NODE_STATES, made | {"status": wire(status)})
    finally:
        await client.delete(NODE_STATES, name)
    assert lines[0].split() == ["NAME", "POLICY", "PHASE", "TARGET", "REASON", "SINCE"]
    assert lines[1].split()[:-1] == [name, "inference", "Failed", "0123456789abcdef", "PoolIncomplete"]
    assert NodeStateStatus.model_validate(made["status"]) == status
    assert NodeStateSpec.model_validate(made["spec"]) == spec


async def test_explain_tells_what_a_field_is_for(installed: ControlPlane) -> None:
    page = " ".join(
        (
            await installed.kubectl("explain", f"--api-version={API_VERSION}", "gpupartitionpolicies.spec.rollout")
        ).split()
    )
    assert "How fast, and how far." in page
    assert "limit" in page
    assert "At most so many nodes get the new layouts" in page
