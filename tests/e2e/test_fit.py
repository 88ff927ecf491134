"""What will fit: what is said beforehand is what the real scheduler does afterwards, and it takes no right to write."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import yaml
from tests.e2e.harness import eventually
from tests.e2e.rollout import Site, apply, equal, operator, policy, ready, site, whole
from tests.e2e.shell import PLANNER, Answer, account_of, gpupartition, only_read

from gpupartition.kube import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS

if TYPE_CHECKING:
    from tests.e2e.harness import Cluster

    from gpupartition.kube import Object

POLICY: Final = "inference"
FOUND: Final = 3


def smaller_than(where: Site, memory: str) -> str:
    return f'device.capacity["{where.base.driver}"].memory.isLessThan(quantity("{memory}"))'


def by_name(told: Any, namespace: str) -> dict[str, Any]:
    """What is said of the pods of a namespace: other tests have theirs in the same cluster at the same time."""
    return {each["name"]: each for each in told if each["namespace"] == namespace}


async def planned(cluster: Cluster, body: Object, *more: str) -> Answer:
    kubeconfig = await account_of(cluster, PLANNER)
    return await gpupartition(cluster, "plan", "-f", "-", "-o", "json", *more, stdin=body, kubeconfig=kubeconfig)


async def unschedulable(cluster: Cluster, name: str, namespace: str) -> None:
    """Wait until the scheduler has said of a pod that no node has what it needs."""

    async def said() -> bool:
        pod = await cluster.client.get(PODS, name, namespace=namespace)
        conditions = {each["type"]: each for each in pod.get("status", {}).get("conditions", ())}
        assert conditions.get("PodScheduled", {}).get("reason") == "Unschedulable", pod["status"]
        return True

    await eventually(said)


async def devices_of(cluster: Cluster, pod: str, namespace: str) -> list[tuple[str, str]]:
    """Pool and name of the devices that a pod's claim has."""
    claims = (await cluster.client.list(RESOURCE_CLAIMS, namespace=namespace)).items
    return [
        (result["pool"], result["device"])
        for claim in claims
        if any(user["name"] == pod for user in claim.get("status", {}).get("reservedFor", ()))
        for result in claim["status"]["allocation"]["devices"]["results"]
    ]


async def test_who_is_said_to_fit_after_a_change_runs_then_and_who_is_not_does_not(cluster: Cluster) -> None:
    where = await site(cluster, 2)
    user, node = where.user, where.nodes[1]
    driver = where.base.driver
    half, tiny = smaller_than(where, "50Gi"), smaller_than(where, "1Gi")
    await cluster.holder("half", namespace=user, node=node, device_class=driver, cel=half)
    await cluster.holder("tiny", namespace=user, device_class=driver, cel=tiny)
    for pod in ("half", "tiny"):
        await unschedulable(cluster, pod, user)
    body = policy(POLICY, where.driver, equal(2))

    answer = await planned(cluster, body, "--fail-on=unschedulable")
    told = by_name(answer.data["fit"]["pending"], user)
    assert {name: (each["now"]["fits"], each["after"]["fits"]) for name, each in told.items()} == {
        "half": ("DoesNotFit", "Fits"),
        "tiny": ("DoesNotFit", "DoesNotFit"),
    }
    assert told["half"]["after"]["node"] == node
    assert only_read(cluster, PLANNER)

    await operator(cluster)
    await apply(cluster, body)
    await ready(cluster, POLICY)
    await cluster.running("half", namespace=user)
    foretold = [(each["pool"], each["device"]) for each in told["half"]["after"]["devices"]]
    assert await devices_of(cluster, "half", user) == foretold
    await unschedulable(cluster, "tiny", user)
    assert (await cluster.client.get(PODS, "tiny", namespace=user))["status"]["phase"] == "Pending"


async def test_a_workload_whose_next_start_is_said_to_find_nothing_finds_nothing(cluster: Cluster) -> None:
    where = await site(cluster, 2, env={"GPU_PARTITIONS": "2"})
    user = where.user
    half = smaller_than(where, "50Gi")
    by_class = {"selectors": [{"cel": {"expression": f"device.driver == '{where.base.driver}' && {half}"}}]}
    name = f"{cluster.name}-half"
    kind = {"apiVersion": DEVICE_CLASSES.api_version, "kind": "DeviceClass", "metadata": {"name": name}}
    await cluster.create(DEVICE_CLASSES, kind | {"spec": by_class})
    await cluster.holder("loses", namespace=user, node=where.nodes[0], device_class=name)
    await cluster.holder("keeps", namespace=user, node=where.nodes[1], device_class=where.base.driver)
    for pod in ("loses", "keeps"):
        await cluster.running(pod, namespace=user)
    body = policy(POLICY, where.driver, whole())

    answer = await planned(cluster, body, "--fail-on=unschedulable")
    assert answer.code == FOUND, answer.errors
    assert "found: unschedulable" in answer.errors
    told = json.loads(answer.out)["fit"]
    assert {n: each["after"]["fits"] for n, each in by_name(told["restarts"], user).items()} == {
        "loses": "DoesNotFit",
        "keeps": "Fits",
    }
    assert told["deviceClasses"] == [{"name": name, "after": "DoesNotFit"}]

    await operator(cluster)
    await apply(cluster, body)
    for pod, device_class, node in (("loses", name, 0), ("keeps", where.base.driver, 1)):
        await cluster.client.delete(PODS, pod, namespace=user)
        await cluster.gone(PODS, pod, namespace=user)
        await cluster.published(8, node=where.nodes[node], driver=where.base.driver)
        await cluster.holder(f"{pod}-again", namespace=user, node=where.nodes[node], device_class=device_class)
    await ready(cluster, POLICY)
    await cluster.running("keeps-again", namespace=user)
    await unschedulable(cluster, "loses-again", user)


# ─── classes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_pods_get_a_half_by_the_class_that_was_printed_and_by_its_extended_resource(cluster: Cluster) -> None:
    where = await site(cluster, 1)
    user, driver = where.user, where.base.driver
    await operator(cluster)
    await apply(cluster, policy(POLICY, where.driver, equal(2)))
    await ready(cluster, POLICY)
    prefix = f"{cluster.name}.example.com"
    planner = await account_of(cluster, PLANNER)
    answer = await gpupartition(cluster, "classes", POLICY, f"--extended-resource-prefix={prefix}", kubeconfig=planner)
    assert answer.code == 0, answer.errors
    for body in yaml.safe_load_all(answer.out):
        await cluster.create(DEVICE_CLASSES, body)

    await cluster.holder("by-class", namespace=user, device_class=f"half.{driver}")
    resources = {"limits": {f"{prefix}/gpu-half": "1"}}
    containers = [{"name": "main", "image": "busybox", "resources": resources}]
    await cluster.pod("by-resource", namespace=user, spec={"containers": containers})
    await cluster.holder("whole", namespace=user, device_class=f"whole.{driver}")
    for pod in ("by-class", "by-resource", "whole"):
        await cluster.running(pod, namespace=user)
        ((_, device),) = await devices_of(cluster, pod, user)
        assert ("full" if pod == "whole" else "partition") in device, (pod, device)


async def test_a_pod_that_asks_for_an_extended_resource_is_simulated_as_it_is_scheduled(cluster: Cluster) -> None:
    where = await site(cluster, 2, env={"GPU_PARTITIONS": "2"})
    user, driver = where.user, where.base.driver
    half = f"device.driver == '{driver}' && {smaller_than(where, '50Gi')}"
    resource = f"{cluster.name}.example.com/gpu-half"
    name = f"{cluster.name}-half"
    kind = {"apiVersion": DEVICE_CLASSES.api_version, "kind": "DeviceClass", "metadata": {"name": name}}
    spec = {"selectors": [{"cel": {"expression": half}}], "extendedResourceName": resource}
    await cluster.create(DEVICE_CLASSES, kind | {"spec": spec})
    containers = [{"name": "main", "image": "busybox", "resources": {"limits": {resource: "2"}}}]
    on_first = {"containers": containers, "nodeSelector": {"kubernetes.io/hostname": where.nodes[0]}}
    many = [{**containers[0], "resources": {"limits": {resource: "17"}}}]
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "two", "namespace": user}, "spec": on_first},
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "many", "namespace": user},
            "spec": {"containers": many},
        },
    ]
    every = {"apiVersion": "v1", "kind": "List", "items": pods}
    planner = await account_of(cluster, PLANNER)
    answer = await gpupartition(cluster, "simulate", "-f", "-", "-o", "json", stdin=every, kubeconfig=planner)
    told = by_name(answer.data["asks"], user)
    assert (told["two"]["now"]["fits"], told["two"]["now"]["node"]) == ("Fits", where.nodes[0])
    assert told["many"]["now"]["fits"] == "DoesNotFit"

    await cluster.pod("two", namespace=user, spec=on_first)
    await cluster.pod("many", namespace=user, spec={"containers": many})
    await cluster.running("two", namespace=user)
    foretold = [(each["pool"], each["device"]) for each in told["two"]["now"]["devices"]]
    assert sorted(await devices_of(cluster, "two", user)) == sorted(foretold)
    await unschedulable(cluster, "many", user)
