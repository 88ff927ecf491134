"""A feature gate is off: what the cluster cannot keep is refused and named, or taken back before anybody is given a part of it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import pytest
from testbed.controlplane import ControlPlane, Shape
from tests.e2e import harness, rollout
from tests.e2e.harness import DRIVERS, NODE_STATES, taint_rules
from tests.e2e.history import Watcher
from tests.e2e.publishing import POLICY, gpus, site
from tests.e2e.rollout import condition, equal, policy, stalled
from tests.e2e.stage import CLOSED, HALVES, WHOLE, stage

from gpupartition.kube import NODES, RESOURCE_SLICES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tests.e2e.harness import Cluster

    from gpupartition.kube import Object

NUMBERS: Final = itertools.count(1)
PARTITIONS, SHARES, RULES = "DRAPartitionableDevices", "DRAConsumableCapacity", "DRADeviceTaintRules"
NEEDS: Final = {PARTITIONS: equal(2), SHARES: equal(2, sharing={"mode": "Shared"})}
"""A layout of the example driver that cannot be without the gate."""

loses_fields = pytest.mark.parametrize("lacking", list(NEEDS), indirect=True, scope="module")


@pytest.fixture(scope="module")
async def lacking(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[str, ControlPlane]]:
    """A gate, and a control plane on which it is off."""
    shape = Shape(nodes=0, feature_gates=f"{request.param}=false")
    async with ControlPlane(tmp_path_factory.mktemp("lacking"), shape=shape) as running:
        yield request.param, running


@pytest.fixture
async def cluster(lacking: tuple[str, ControlPlane]) -> AsyncIterator[Cluster]:
    """A cluster without the gate."""
    async with harness.cluster(lacking[1], f"gate{next(NUMBERS)}") as own:
        yield own


@loses_fields
async def test_a_server_that_drops_fields_gets_no_slice_of_ours_and_the_policy_says_which_gate_is_off(
    cluster: Cluster, lacking: tuple[str, ControlPlane]
) -> None:
    gate, _ = lacking
    own = await site(cluster, gpus(8))
    await own.want(equal(2))
    refused = await stalled(cluster, POLICY, "FeatureGateOff")
    accepted = condition(refused, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "FeatureGateOff")
    assert gate in accepted["message"]
    assert await rollout.records(cluster) == {}
    assert [each for node in own.nodes for each in await own.slices(node)] == []
    assert await taint_rules(cluster.client) == []


@loses_fields
async def test_what_a_driver_has_lost_of_a_layout_is_taken_back_before_anybody_is_given_a_part(
    cluster: Cluster, lacking: tuple[str, ControlPlane]
) -> None:
    gate, _ = lacking
    scene = await stage(cluster, 1)
    (node,) = scene.nodes
    async with Watcher(cluster) as history:
        await rollout.operator(cluster, verifying=2)
        await rollout.apply(cluster, policy(cluster.name, scene.driver, NEEDS[gate]))
        await stalled(cluster, cluster.name, "RolledBack")
        await rollout.at_rest(cluster)
    await scene.publishes(WHOLE)
    assert any(parts(now.objects(RESOURCE_SLICES)) for now in history.instants()), "the driver has published it"
    for now in history.instants():
        assert not parts(now.objects(RESOURCE_SLICES)) or node in now.quiesced(), now.change


def parts(slices: Sequence[Object]) -> int:
    """How many devices there are beside the eight whole GPUs."""
    return max(0, sum(len(each["spec"].get("devices", ())) for each in slices) - WHOLE)


@pytest.mark.newest
@pytest.mark.parametrize("lacking", [RULES], indirect=True, scope="module")
async def test_a_rule_that_keeps_nobody_away_is_not_relied_on(cluster: Cluster) -> None:
    scene = await stage(cluster, 1)
    (node,) = scene.nodes
    async with Watcher(cluster) as history:
        await rollout.operator(cluster, quiescing=2)
        name = await scene.want_halves()
        given_up = await history.saw(NODE_STATES, node, phase="Aborting")
        assert RULES in given_up.body["status"]["message"]
        assert history.assignments(node) == [None]
        await cluster.client.patch(DRIVERS, scene.driver, {"spec": {"quiesce": "Cordon"}})
        await rollout.ready(cluster, name)
        await rollout.at_rest(cluster)
    await scene.publishes(HALVES)
    for now in history.instants():
        if now.phases().get(node) in CLOSED:
            assert all(body["spec"].get("unschedulable") for body in now.objects(NODES)), now.change
