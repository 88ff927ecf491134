"""What the API server refuses by itself: claims that would walk past the quiesce, and writes that are not the operator's."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.e2e.harness import eventually

from gpupartition.kube import (
    DAEMON_SETS,
    DEVICE_TAINT_RULES,
    NAMESPACES,
    NODES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    ApiError,
    Client,
    Object,
)
from gpupartition.names import CORDONED, FINGERPRINT, LAYOUT, STARTUP_TAINT, STEP, TAINT_KEY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.e2e.harness import Cluster

EVERYTHING = {"operator": "Exists"}
OURS = {"key": TAINT_KEY, "operator": "Exists", "effect": "NoSchedule"}
STARTING = {"key": STARTUP_TAINT, "effect": "NoSchedule"}
ANOTHERS = {"key": "example.com/mine", "effect": "NoSchedule"}
ANOTHER = {"key": "vendor.example.com/unhealthy", "operator": "Exists"}


def exactly(*tolerations: Object) -> Object:
    return {"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com", "tolerations": list(tolerations)}}


def first_available(*tolerations: Object) -> Object:
    subrequest = {"name": "half", "deviceClassName": "gpu.example.com", "tolerations": list(tolerations)}
    return {"name": "gpu", "firstAvailable": [subrequest]}


def claim(namespace: str, *requests: Object) -> Object:
    return {
        "apiVersion": RESOURCE_CLAIMS.api_version,
        "kind": "ResourceClaim",
        "metadata": {"generateName": "claim-", "namespace": namespace},
        "spec": {"devices": {"requests": list(requests)}},
    }


def template(namespace: str, *requests: Object) -> Object:
    inner = claim(namespace, *requests)
    return {**inner, "kind": "ResourceClaimTemplate", "spec": {"spec": inner["spec"]}}


async def refusal(request: Any) -> str:
    """What the API server says to a request that it refuses; "" when it does not."""
    try:
        await request
    except ApiError as error:
        return error.message
    return ""


async def refused(client: Client, body: Object) -> str:
    kind = RESOURCE_CLAIMS if body["kind"] == "ResourceClaim" else RESOURCE_CLAIM_TEMPLATES
    return await refusal(client.create(kind, body, dry_run=True))


@pytest.fixture
async def guarded(cluster: Cluster) -> Cluster:
    """A cluster with the operator's manifests, whose admission policies are in force."""
    await cluster.controlplane.install_operator()
    namespace = await cluster.namespace()
    await eventually(lambda: refused(cluster.client, claim(namespace, exactly(EVERYTHING))))
    await eventually(lambda: refused(cluster.client, template(namespace, exactly(EVERYTHING))))
    return cluster


@pytest.fixture
async def operator(guarded: Cluster) -> AsyncIterator[Client]:
    """A client with the operator's own token."""
    async with Client.connect(guarded.controlplane.files.kubeconfig("operator"), user_agent="intruder") as client:
        yield client


@pytest.mark.parametrize("make", [claim, template])
@pytest.mark.parametrize("request_of", [exactly, first_available])
@pytest.mark.parametrize("toleration", [EVERYTHING, OURS], ids=["everything", "ours"])
async def test_nobody_can_tolerate_the_taint_of_a_quiesced_node(
    guarded: Cluster, make: Any, request_of: Any, toleration: Object
) -> None:
    message = await refused(
        guarded.client, make(guarded.name, request_of(ANOTHER), {**request_of(toleration), "name": "b"})
    )
    assert "name the keys that" in message, message


@pytest.mark.parametrize("make", [claim, template])
@pytest.mark.parametrize("request_of", [exactly, first_available])
async def test_other_tolerations_are_left_alone(guarded: Cluster, make: Any, request_of: Any) -> None:
    assert not await refused(guarded.client, make(guarded.name, request_of(ANOTHER)))
    assert not await refused(guarded.client, make(guarded.name, request_of()))


async def test_whoever_may_label_namespaces_can_let_one_out(guarded: Cluster) -> None:
    free = await guarded.namespace("free")
    label = {"metadata": {"labels": {"gpupartition.dev/may-tolerate": "true"}}}
    await guarded.client.patch(NAMESPACES, free, label)

    async def let_out() -> bool:
        assert not await refused(guarded.client, claim(free, exactly(EVERYTHING)))
        return True

    await eventually(let_out)
    assert await refused(guarded.client, claim(guarded.name, exactly(EVERYTHING)))


async def has_only_these_taints(guarded: Cluster, node: str) -> None:
    """Wait for the node controller, which takes its own taint away a moment after the node is Ready."""

    async def look() -> bool:
        taints = (await guarded.client.get(NODES, node))["spec"]["taints"]
        return {t["key"] for t in taints} == {STARTING["key"], ANOTHERS["key"]}

    await eventually(look)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"metadata": {"labels": {"pool": "mine"}}}, "no label of a node but its own"),
        ({"metadata": {"labels": {"kubernetes.io/hostname": None}}}, "no label of a node but its own"),
        ({"metadata": {"annotations": {"example.com/note": "x"}}}, "no annotation of a node but its own"),
        ({"spec": {"unschedulable": True}}, "only in its own name"),
        ({"spec": {"taints": [STARTING, {**ANOTHERS, "effect": "NoExecute"}]}}, "spec of a node"),
        ({"spec": {"taints": [STARTING]}}, "spec of a node"),
        ({"spec": {"taints": [ANOTHERS], "unschedulable": True}}, "only in its own name"),
        ({"metadata": {"finalizers": ["example.com/x"]}}, "finalizers or owners"),
    ],
    ids=[
        "label",
        "label away",
        "annotation",
        "cordon",
        "a taint",
        "a taint away",
        "a cordon with a taint",
        "finalizer",
    ],
)
async def test_the_operator_changes_nothing_of_a_node_but_what_is_its_own(
    guarded: Cluster, operator: Client, change: Object, says: str
) -> None:
    (node,) = await guarded.nodes(1, taints=[STARTING, ANOTHERS])

    await has_only_these_taints(guarded, node)
    assert says in await refusal(operator.patch(NODES, node, change, dry_run=True))


async def test_the_operator_may_take_away_its_own_startup_taint(guarded: Cluster, operator: Client) -> None:
    (node,) = await guarded.nodes(1, taints=[STARTING, ANOTHERS])
    await has_only_these_taints(guarded, node)
    taints = (await guarded.client.get(NODES, node))["spec"]["taints"]
    left = [taint for taint in taints if taint["key"] != STARTUP_TAINT]
    made = await operator.patch(NODES, node, {"spec": {"taints": left}}, dry_run=True)
    assert made["spec"]["taints"] == left


async def test_the_operator_may_assign_a_layout(guarded: Cluster, operator: Client) -> None:
    (node,) = await guarded.nodes(1)
    await operator.patch(
        NODES, node, {"metadata": {"labels": {LAYOUT: "abc"}, "annotations": {STEP: "1"}}}, dry_run=True
    )


async def test_the_operator_may_cordon_a_node_in_its_own_name_and_uncordon_what_it_has_cordoned(
    guarded: Cluster, operator: Client
) -> None:
    (node,) = await guarded.nodes(1)
    open_ = {"spec": {"unschedulable": None}}
    await guarded.client.patch(NODES, node, {"spec": {"unschedulable": True}})
    assert "only what it has cordoned" in await refusal(operator.patch(NODES, node, open_, dry_run=True))
    await guarded.client.patch(NODES, node, open_)
    mine = {"metadata": {"annotations": {CORDONED: "token"}}, "spec": {"unschedulable": True}}
    await operator.patch(NODES, node, mine)
    await operator.patch(NODES, node, {"metadata": {"annotations": {CORDONED: None}}, **open_})


@pytest.mark.newest
@pytest.mark.parametrize(
    ("name", "key", "selector", "effect", "says"),
    [
        ("gpp-x", TAINT_KEY, {}, "NoSchedule", "names driver and pool"),
        ("gpp-x", TAINT_KEY, {"driver": "d.example.com"}, "NoSchedule", "names driver and pool"),
        ("gpp-x", TAINT_KEY, {"driver": "d.example.com", "pool": "p"}, "NoExecute", "never evicts"),
        ("gpp-x", "example.com/x", {"driver": "d.example.com", "pool": "p"}, "NoSchedule", "rules of its own"),
        ("other", TAINT_KEY, {"driver": "d.example.com", "pool": "p"}, "NoSchedule", "rules of its own"),
    ],
)
async def test_the_operator_taints_one_pool_by_name_and_evicts_nobody(
    operator: Client, name: str, key: str, selector: Object, effect: str, says: str
) -> None:
    assert says in await refusal(operator.create(DEVICE_TAINT_RULES, rule(name, key, selector, effect), dry_run=True))


@pytest.mark.newest
async def test_the_operator_leaves_the_rules_of_others_alone(guarded: Cluster, operator: Client) -> None:
    name = f"{guarded.name}-somebodys"
    await guarded.create(DEVICE_TAINT_RULES, rule(name, "example.com/x", {"driver": "d.example.com"}, "None"))
    assert "rules of its own" in await refusal(operator.delete(DEVICE_TAINT_RULES, name))


async def test_the_operator_leaves_what_drivers_publish_alone(guarded: Cluster, operator: Client) -> None:
    (node,) = await guarded.nodes(1)
    theirs, own = (published("gpu.example.com", node, pool) for pool in (node, f"gpu.example.com/{node}"))
    await guarded.create(RESOURCE_SLICES, theirs)
    name = theirs["metadata"]["name"]
    there = await guarded.client.get(RESOURCE_SLICES, name)
    made = await asyncio.gather(
        refusal(operator.create(RESOURCE_SLICES, published("gpu.example.com", node, "other"), dry_run=True)),
        refusal(operator.replace(RESOURCE_SLICES, {**there, "spec": {**there["spec"], "devices": [{"name": "mine"}]}})),
        refusal(operator.delete(RESOURCE_SLICES, name)),
    )
    assert all("only pools of its own" in message for message in made), made
    await operator.create(RESOURCE_SLICES, own, dry_run=True)


def published(driver: str, node: str, pool: str) -> Object:
    """A slice with one device."""
    name = f"{node}-{pool.replace('/', '-')}-slice"
    return {
        "apiVersion": RESOURCE_SLICES.api_version,
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0"}],
        },
    }


async def test_the_operator_changes_no_daemon_set_but_those_of_layouts(operator: Client) -> None:
    base, body = "dra-example-driver-kubeletplugin", daemon_set("gpu-driver", "dra-example-driver-kubeletplugin-abc")
    made = await asyncio.gather(
        refusal(operator.create(DAEMON_SETS, {**body, "metadata": {**body["metadata"], "labels": {}}}, dry_run=True)),
        refusal(
            operator.patch(DAEMON_SETS, base, {"spec": {"minReadySeconds": 3}}, namespace="gpu-driver", dry_run=True)
        ),
        refusal(operator.delete(DAEMON_SETS, base, namespace="gpu-driver")),
    )
    assert all("made for a layout" in message for message in made), made
    await operator.create(DAEMON_SETS, body, dry_run=True)


def rule(name: str, key: str, selector: Object, effect: str) -> Object:
    return {
        "apiVersion": DEVICE_TAINT_RULES.api_version,
        "kind": "DeviceTaintRule",
        "metadata": {"name": name},
        "spec": {"deviceSelector": selector, "taint": {"key": key, "effect": effect}},
    }


def daemon_set(namespace: str, name: str) -> Object:
    labels = {LAYOUT: name.rsplit("-", 1)[1]}
    return {
        "apiVersion": DAEMON_SETS.api_version,
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": namespace, "labels": labels, "annotations": {FINGERPRINT: "abc"}},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "plugin", "image": "registry.example.com/driver:1"}]},
            },
        },
    }
