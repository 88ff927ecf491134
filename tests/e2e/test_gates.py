"""A feature gate is off: what the cluster cannot keep is refused and named, or taken back before anybody is given a part of it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import pytest
from testbed.controlplane import ControlPlane, Shape
from tests.e2e import harness, rollout
from tests.e2e.harness import DRIVERS, NODE_STATES, eventually, taint_rules
from tests.e2e.history import Watcher
from tests.e2e.publishing import POLICY, gpus, site
from tests.e2e.rollout import condition, equal, policy, stalled
from tests.e2e.stage import CLOSED, HALVES, WHOLE, stage

from gpupartition.api.v1alpha1 import DriverSpec
from gpupartition.backends import probe as slices
from gpupartition.kube import NODES, RESOURCE_SLICES, Forbidden, Kind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tests.e2e.harness import Cluster

    from gpupartition.kube import Object

NUMBERS: Final = itertools.count(1)
PARTITIONS, SHARES, RULES = "DRAPartitionableDevices", "DRAConsumableCapacity", "DRADeviceTaintRules"
NEEDS: Final = {PARTITIONS: equal(2), SHARES: equal(2, sharing={"mode": "Shared"})}
"""A layout of the example driver that cannot be without the gate."""

ADMISSION: Final = "admissionregistration.k8s.io/v1"
REFUSALS: Final = Kind(ADMISSION, "validatingadmissionpolicies", namespaced=False)
BINDINGS: Final = Kind(ADMISSION, "validatingadmissionpolicybindings", namespaced=False)

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
async def test_a_layout_that_its_driver_could_not_publish_is_refused_and_the_policy_says_which_gate_is_off(
    cluster: Cluster, lacking: tuple[str, ControlPlane]
) -> None:
    gate, _ = lacking
    scene = await stage(cluster, 1)
    (node,) = scene.nodes
    await rollout.operator(cluster)
    async with Watcher(cluster) as history:
        await rollout.apply(cluster, policy(cluster.name, scene.driver, NEEDS[gate]))
        refused = await stalled(cluster, cluster.name, "FeatureGateOff")
    accepted = condition(refused, "Accepted")
    assert accepted["status"] == "False"
    assert gate in accepted["message"]
    assert (history.phases(node), history.assignments(node)) == ([], [None])
    await rollout.apply(cluster, policy(cluster.name, scene.driver, rollout.whole()))
    await rollout.ready(cluster, cluster.name)


async def may_not_ask(cluster: Cluster) -> None:
    """Have the API server refuse the slices by which operators find out what it keeps."""
    name = f"{cluster.name}-asks-nothing"
    about = {"apiGroups": ["resource.k8s.io"], "apiVersions": ["*"], "resources": ["resourceslices"]}
    refused = {"expression": "object.spec.driver != 'probe.gpupartition.dev'", "reason": "Forbidden"}
    refusal: Object = {
        "matchConstraints": {"resourceRules": [{**about, "operations": ["CREATE"]}]},
        "validations": [refused],
    }
    bound: Object = {"policyName": name, "validationActions": ["Deny"]}
    for kind, what, body in (
        (REFUSALS, "ValidatingAdmissionPolicy", refusal),
        (BINDINGS, "ValidatingAdmissionPolicyBinding", bound),
    ):
        made = {"apiVersion": kind.api_version, "kind": what, "metadata": {"name": name}, "spec": body}
        await cluster.create(kind, made)
    ref = {"namespace": "any", "name": "any"}
    spec = {"type": "ExampleDriver", "exampleDriver": {"daemonSet": ref, "gpusPerNode": 1}}
    asked, _ = slices.probe(DriverSpec.model_validate(spec))

    async def is_refused() -> bool:
        try:
            await cluster.client.create(RESOURCE_SLICES, asked, dry_run=True)
        except Forbidden:
            return True
        return False

    await eventually(is_refused)


@loses_fields
async def test_what_a_driver_has_lost_of_a_layout_is_taken_back_before_anybody_is_given_a_part(
    cluster: Cluster, lacking: tuple[str, ControlPlane]
) -> None:
    gate, _ = lacking
    await may_not_ask(cluster)
    scene = await stage(cluster, 1)
    (node,) = scene.nodes
    async with Watcher(cluster) as history:
        await rollout.operator(cluster, verifying=2)
        await rollout.apply(cluster, policy(cluster.name, scene.driver, NEEDS[gate]))
        failed = await stalled(cluster, cluster.name, "RolledBack")
        assert gate in condition(failed, "Stalled")["message"]
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
