"""What somebody else has put under the operator's names, or where its drivers' devices are: it is said, and left as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml
from tests.e2e import mig
from tests.e2e.claims import Users
from tests.e2e.harness import NODE_STATES
from tests.e2e.history import Watcher
from tests.e2e.nvidia import H100
from tests.e2e.publishing import gpus
from tests.e2e.publishing import site as publishing
from tests.e2e.rollout import (
    apply,
    at_rest,
    condition,
    devices,
    equal,
    looks_again,
    operator,
    phases,
    policy,
    reaches,
    ready,
    said,
    site,
    stalled,
)

from gpupartition import names
from gpupartition.api.v1alpha1 import DriverSpec, DriverType, PolicySpec
from gpupartition.backends import BACKENDS
from gpupartition.backends.slices import slice_name
from gpupartition.domain.backend import Cluster as Installed
from gpupartition.domain.backend import NodeFacts
from gpupartition.kube import CONFIG_MAPS, DAEMON_SETS, DEVICE_TAINT_RULES, NODES, RESOURCE_SLICES

if TYPE_CHECKING:
    from tests.e2e.harness import Cluster
    from tests.e2e.rollout import Site

    from gpupartition.kube import Kind, Object


async def rule_under_the_name_of(cluster: Cluster, node: str, **labels: str) -> Object:
    """A DeviceTaintRule under the name of a node's, which closes something else."""
    uid = (await cluster.client.get(NODES, node))["metadata"]["uid"]
    body = {
        "apiVersion": DEVICE_TAINT_RULES.api_version,
        "kind": "DeviceTaintRule",
        "metadata": {"name": names.taint_rule(node, uid), "labels": labels},
        "spec": {
            "deviceSelector": {"driver": "somebody-elses", "pool": "far-away"},
            "taint": {"key": names.TAINT_KEY, "value": "", "effect": "NoSchedule"},
        },
    }
    return await cluster.client.create(DEVICE_TAINT_RULES, body)


async def is_as_it_was(cluster: Cluster, kind: Kind, body: Object) -> bool:
    """Whether nobody has written to an object since."""
    meta = body["metadata"]
    now = await cluster.client.get(kind, meta["name"], namespace=meta.get("namespace"))
    return bool(now["metadata"]["uid"] == meta["uid"] and now.get("spec") == body.get("spec"))


async def goes_on_without(cluster: Cluster, kind: Kind, theirs: Object, name: str) -> None:
    """What is somebody else's is as they left it, and once they take it away the policy is carried out."""
    assert await is_as_it_was(cluster, kind, theirs)
    await cluster.client.delete(kind, theirs["metadata"]["name"])
    await ready(cluster, name)


async def variant(cluster: Cluster, where: Site, layout: Object) -> Object:
    """The DaemonSet that the operator makes for a layout."""
    base = await cluster.client.get(DAEMON_SETS, where.base.daemon_set, namespace=where.base.namespace)
    driver = {
        "type": "ExampleDriver",
        "exampleDriver": {
            "daemonSet": {"namespace": where.base.namespace, "name": where.base.daemon_set},
            "gpusPerNode": 8,
        },
    }
    facts = NodeFacts(node=await cluster.client.get(NODES, where.nodes[0]))
    config = BACKENDS[DriverType.EXAMPLE_DRIVER].compile(
        DriverSpec.model_validate(driver),
        PolicySpec.model_validate(policy("any", where.driver, layout)["spec"]),
        facts,
        Installed(daemon_sets=[base]),
    )
    (body,) = config.objects
    return dict(body)


@pytest.mark.newest
async def test_a_taint_rule_of_somebody_else_is_not_taken_for_the_nodes_own(cluster: Cluster) -> None:
    where = await site(cluster, 2)
    taken, free = where.nodes
    theirs = await rule_under_the_name_of(cluster, taken)
    first = await operator(cluster, resync=0.3)
    async with Watcher(cluster) as history:
        await apply(cluster, policy("careful", where.driver, equal(2)))
        await stalled(cluster, "careful", "NameTaken")
        record = await reaches(cluster, taken, "Skipped")
        assert record["status"]["reason"] == "NameTaken"
        assert theirs["metadata"]["name"] in record["status"]["message"]
        await reaches(cluster, free, "UpToDate")
        await looks_again(first)
        assert history.assignments(taken) == [None]
        await goes_on_without(cluster, DEVICE_TAINT_RULES, theirs, "careful")
    await at_rest(cluster)


async def test_a_daemon_set_of_somebody_else_under_the_name_of_a_layouts_is_refused_and_left_alone(
    cluster: Cluster,
) -> None:
    where = await site(cluster, 1)
    body = await variant(cluster, where, equal(2))
    theirs: dict[str, Any] = {**body, "metadata": {**body["metadata"], "annotations": {}, "labels": {}}}
    pod = theirs["spec"]["template"]["spec"]
    image = {**pod["containers"][0], "image": "registry.example/somebody-elses:v1"}
    template = {**theirs["spec"]["template"], "spec": {**pod, "containers": [image]}}
    created = await cluster.client.create(DAEMON_SETS, {**theirs, "spec": {**theirs["spec"], "template": template}})
    try:
        first = await operator(cluster, resync=0.3)
        await apply(cluster, policy("careful", where.driver, equal(2)))
        refused = await said(cluster, "careful", "Accepted", "False", "ConfigChanged")
        assert created["metadata"]["name"] in str(refused["status"]["conditions"])
        await looks_again(first)
        assert await is_as_it_was(cluster, DAEMON_SETS, created)
        assert set((await phases(cluster)).values()) <= {"Pending"}
    finally:
        meta = created["metadata"]
        await cluster.client.delete(DAEMON_SETS, meta["name"], namespace=meta["namespace"])
    await ready(cluster, "careful")
    await at_rest(cluster)


async def test_a_slice_of_somebody_else_under_the_name_of_ours_is_said_and_left_alone(cluster: Cluster) -> None:
    own = await publishing(cluster, gpus(1))
    (node,) = own.nodes
    body = {
        "apiVersion": RESOURCE_SLICES.api_version,
        "kind": "ResourceSlice",
        "metadata": {"name": slice_name(own.driver, node, 0)},
        "spec": {
            "driver": "somebody-elses",
            "nodeName": node,
            "pool": {"name": "far-away", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "theirs"}],
        },
    }
    theirs = await cluster.client.create(RESOURCE_SLICES, body)
    await own.want(equal(2))
    refused = await stalled(cluster, "own", "NameTaken")
    assert theirs["metadata"]["name"] in condition(refused, "Ready")["message"]
    await goes_on_without(cluster, RESOURCE_SLICES, theirs, "own")
    await at_rest(cluster)


async def test_a_slice_of_another_node_in_a_nodes_pool_keeps_it_from_being_changed_until_it_is_gone(
    cluster: Cluster,
) -> None:
    """The scheduler takes a pool for one thing, whichever nodes its slices are of: at a higher generation this one hides the node's own."""
    where = await site(cluster, 1)
    (node,), (liar,) = where.nodes, await cluster.nodes(1, pool="elsewhere")
    body = {
        "apiVersion": RESOURCE_SLICES.api_version,
        "kind": "ResourceSlice",
        "metadata": {"name": f"{liar}-lies"},
        "spec": {
            "driver": where.base.driver,
            "nodeName": liar,
            "pool": {"name": node, "generation": 99, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0"}],
        },
    }
    theirs = await cluster.client.create(RESOURCE_SLICES, body)
    await operator(cluster)
    await apply(cluster, policy("careful", where.driver, equal(2)))
    refused = await stalled(cluster, "careful", "NameTaken")
    assert f"of node {liar}" in condition(refused, "Ready")["message"]
    await goes_on_without(cluster, RESOURCE_SLICES, theirs, "careful")
    await at_rest(cluster)


def afloat(driver: str, pool: str, *devices: str, generation: int = 99) -> Object:
    """A slice of a pool that is there for all nodes."""
    return {
        "apiVersion": RESOURCE_SLICES.api_version,
        "kind": "ResourceSlice",
        "metadata": {"name": f"{driver}-afloat"},
        "spec": {
            "driver": driver,
            "allNodes": True,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": 1},
            "devices": [{"name": name} for name in devices],
        },
    }


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_slice_of_no_one_node_in_a_nodes_pool_is_said_and_left_alone(cluster: Cluster, when: str) -> None:
    """Whatever has a driver's name and a pool's is a part of that pool for the scheduler: it gives out what this one says, and nothing else."""
    where = await site(cluster, 1)
    (node,) = where.nodes
    body = afloat(where.base.driver, node, "theirs")
    theirs = await cluster.client.create(RESOURCE_SLICES, body) if when == "before" else None
    first = await operator(cluster, drift=1, resync=0.3)
    await apply(cluster, policy("careful", where.driver, equal(2)))
    if theirs is None:
        await ready(cluster, "careful")
        theirs = await cluster.client.create(RESOURCE_SLICES, body)
    users = Users(cluster=cluster, namespace=where.base.namespace, driver=where.base.driver, node=node)
    await users.ask("user")
    assert await users.device("user") == "theirs"
    await users.end("user")
    async with Watcher(cluster) as history:
        refused = await stalled(cluster, "careful", "NameTaken")
        assert f"{theirs['metadata']['name']} (of no one node) is in its pool" in condition(refused, "Ready")["message"]
        await looks_again(first)
    assert len(history.assignments(node)) == 1, "nothing is done about it"
    await goes_on_without(cluster, RESOURCE_SLICES, theirs, "careful")


async def test_a_slice_of_no_one_node_is_taken_out_of_a_pool_of_ours_and_told_of_elsewhere(cluster: Cluster) -> None:
    own = await publishing(cluster, gpus(1))
    await own.gets(equal(2))
    offered = await own.offers()
    theirs = await cluster.client.create(RESOURCE_SLICES, afloat(own.driver, own.pool_name(), "theirs"))
    await cluster.gone(RESOURCE_SLICES, theirs["metadata"]["name"])
    assert await own.offers() == offered
    await ready(cluster, "own")

    theirs = await cluster.client.create(RESOURCE_SLICES, afloat(own.driver, f"{own.driver}/nobodys", "theirs"))
    await own.want(equal(4))
    refused = await stalled(cluster, "own", "DriverNameTaken")
    assert theirs["metadata"]["name"] in condition(refused, "Ready")["message"]
    await goes_on_without(cluster, RESOURCE_SLICES, theirs, "own")
    await at_rest(cluster)


async def test_a_file_of_layouts_that_is_something_else_is_said_and_what_others_have_in_it_stays(
    cluster: Cluster,
) -> None:
    where = await mig.site(cluster, f"1x {H100}")
    name, namespace = where.software.config_map, where.software.operator_namespace
    theirs = {"config.yaml": "notes: of somebody, [who: never closed a bracket\n", "shopping.txt": "milk"}
    await cluster.client.patch(CONFIG_MAPS, name, {"data": theirs}, namespace=namespace)
    await where.wants(mig.profiles(("1g.10gb", 7)))
    await said(cluster, mig.POLICY, "Accepted", "False", "ConfigUnreadable")
    assert (await cluster.client.get(CONFIG_MAPS, name, namespace=namespace))["data"] == theirs

    entry = [{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 1}}]
    file = yaml.safe_dump({"version": "v1", "mig-configs": {"somebodys": entry}})
    await cluster.client.patch(CONFIG_MAPS, name, {"data": {"config.yaml": file}}, namespace=namespace)
    await where.gets(mig.profiles(("1g.10gb", 7)))
    after = (await cluster.client.get(CONFIG_MAPS, name, namespace=namespace))["data"]
    assert after["shopping.txt"] == "milk"
    configs = yaml.safe_load(after["config.yaml"])["mig-configs"]
    assert configs["somebodys"] == entry
    assert await where.assigned(where.nodes[0]) in configs


async def test_a_record_that_somebody_made_up_is_believed_in_nothing(cluster: Cluster) -> None:
    """It says of another Node of this name, for a policy that is not there, that all is done."""
    where = await site(cluster, 1)
    (node,) = where.nodes
    body = {
        "apiVersion": names.API_VERSION,
        "kind": "GpuPartitionNodeState",
        "metadata": {"name": node},
        "spec": {"policyRef": {"name": "nobodys", "uid": "nobodys"}, "nodeUID": "another", "driver": where.driver},
        "status": {"phase": "UpToDate", "token": "somebodys", "step": "somebodys"},
    }
    await cluster.client.create(NODE_STATES, body)
    await operator(cluster)
    async with Watcher(cluster) as history:
        await apply(cluster, policy("careful", where.driver, equal(2)))
        await ready(cluster, "careful")
        await cluster.published(devices(2), node=node, driver=where.base.driver)
        await at_rest(cluster)
    assert len(history.assignments(node)) == 2
