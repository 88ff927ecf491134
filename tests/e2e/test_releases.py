"""Another release of the operator beside the records, ledgers and CRDs of this one, in the middle of a roll-out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from testbed.controlplane import ControlPlane, Shape
from tests.e2e import harness, rollout
from tests.e2e.harness import DRIVERS, NODE_STATES, POLICIES, eventually
from tests.e2e.stage import stage, writes

from gpupartition.kube import CRDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.e2e.harness import Cluster

    from gpupartition.kube import Kind

SPEC: Final = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties"
STATUS: Final = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties"
LATER: Final = {"later": "what a later release has to say"}
# What a release before recovery, drift and live layouts had not.
SINCE: Final = {NODE_STATES: ("retiring", "recovering", "drifted", "repairs", "contests"), POLICIES: ("drift",)}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """On a control plane of its own: others share their CRDs."""
    async with ControlPlane(tmp_path, shape=Shape(nodes=0)) as own, harness.cluster(own, "releases") as alone:
        yield alone


async def change_fields(cluster: Cluster, kind: Kind, patch: list[dict[str, Any]]) -> None:
    """Change which fields the status of one of our kinds has."""
    await cluster.client.patch(CRDS, f"{kind.plural}.gpupartition.dev", patch)


async def say(cluster: Cluster, kind: Kind, name: str, status: dict[str, Any]) -> None:
    """Write into a status, until the API server takes it: it learns of another CRD a moment late."""
    subresource = "" if kind is NODE_STATES else "status"

    async def write() -> bool:
        body = await cluster.client.patch(kind, name, {"status": status}, subresource=subresource)
        return bool(body["status"].items() >= status.items())

    await eventually(write)


async def test_releases_change_in_the_middle_of_a_roll_out_and_nothing_gets_lost_or_happens_twice(
    cluster: Cluster,
) -> None:
    """Forward and back: what a later release wrote is kept, and a release does its work on the CRDs of an earlier one."""
    scene = await stage(cluster, 2)
    held, _ = scene.nodes
    holder = await scene.hold(held)
    later = await rollout.operator(cluster)
    name = await scene.want_halves(rollout={"drain": {"mode": "Wait"}})
    await rollout.reaches(cluster, held, "Draining", within=60)
    cordons = (await scene.closed_by(held)).startswith("cordon")
    await later.stop()

    for kind in (NODE_STATES, DRIVERS, POLICIES):
        await change_fields(cluster, kind, [{"op": "add", "path": f"{STATUS}/later", "value": {"type": "string"}}])
    await say(cluster, NODE_STATES, held, LATER)
    await say(cluster, DRIVERS, scene.driver, LATER)
    await say(cluster, POLICIES, name, LATER)
    earlier = await rollout.operator(cluster, resync=0.3)
    await rollout.reaches(cluster, held, "Draining")
    await holder.end()
    await rollout.ready(cluster, name)
    await rollout.at_rest(cluster)
    for kind, named in ((NODE_STATES, held), (DRIVERS, scene.driver)):
        assert (await cluster.client.get(kind, named))["status"].items() >= LATER.items()
    once = 3 if cordons else 1  # the assignment; before it the cordon, and after it away with that
    assert [len(writes(cluster, "nodes", name=node)) for node in scene.nodes] == [once, once]

    for kind, fields in SINCE.items():
        await change_fields(
            cluster, kind, [{"op": "remove", "path": f"{STATUS}/{field}"} for field in (*fields, "later")]
        )
    await rollout.apply(cluster, rollout.policy(name, scene.driver, rollout.equal(4)))
    await rollout.ready(cluster, name)
    await rollout.at_rest(cluster)
    assert [len(writes(cluster, "nodes", name=node)) for node in scene.nodes] == [2 * once, 2 * once]
    await rollout.looks_again(earlier)
    quiet = len(writes(cluster))
    await rollout.looks_again(earlier)
    assert writes(cluster)[quiet:] == []


async def test_a_policy_that_asks_for_what_this_release_does_not_know_keeps_its_nodes_as_they_are(
    cluster: Cluster,
) -> None:
    scene = await stage(cluster, 2)
    held, done = scene.nodes
    holder = await scene.hold(held)
    operator = await rollout.operator(cluster, resync=0.3)
    asked = {"deletionPolicy": "Revert", "rollout": {"drain": {"mode": "Wait"}, "maxUnavailable": 1}}
    name = await scene.want_halves(**asked)
    await rollout.reaches(cluster, done, "UpToDate", within=60)
    await rollout.reaches(cluster, held, "Draining", within=60)
    before = (await rollout.records(cluster))[done]["status"]["original"]

    await change_fields(cluster, POLICIES, [{"op": "add", "path": f"{SPEC}/later", "value": {"type": "string"}}])

    async def later() -> bool:
        await scene.want_halves(**asked, later="x")
        return "later" in (await cluster.client.get(POLICIES, name))["spec"]

    await eventually(later)
    await rollout.stalled(cluster, name, "InvalidSpec")
    await rollout.looks_again(operator)
    records = await rollout.records(cluster)
    assert {node: body["status"]["phase"] for node, body in records.items()} == {held: "Draining", done: "UpToDate"}
    assert records[done]["status"]["original"] == before
    await holder.end()
    await rollout.reaches(cluster, held, "UpToDate")
    await scene.want_halves(**asked)
    await rollout.ready(cluster, name)
