"""The charts, in the hands of the real Helm: they install the operator, wait for roll-outs, and leave nodes alone."""

from __future__ import annotations

import asyncio
import shutil
import sys
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml
from testbed.controlplane import ROOT, ControlPlane, Shape
from testbed.programs import TestbedError
from testbed.progress import Progress
from tests.e2e.harness import DRIVERS, POLICIES, Cluster, eventually
from tests.e2e.helm import CHART, POLICIES_CHART, RELEASE, STATUSES, Helm, real_helm
from tests.e2e.prometheus import POD_MONITORS, RULES, prometheus
from tests.e2e.publishing import gpus
from tests.e2e.rollout import (
    apply,
    devices,
    equal,
    fault,
    freeze,
    looks_again,
    operator,
    policy,
    ready,
    said,
    says,
    unfreeze,
    writes,
)
from tests.e2e.stage import stage
from tests.unit.pages import blocks

from gpupartition.kube import (
    CLUSTER_ROLES,
    CRDS,
    DEPLOYMENTS,
    NAMESPACES,
    RESOURCE_SLICES,
    ApiError,
    NotFound,
)
from gpupartition.names import API_VERSION, GROUP, OPERATOR_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from testbed.programs import Program
    from tests.e2e.stage import Stage

    from gpupartition.kube import Object

NO_POD: Final = ("--set", "replicas=0")  # the operator is a process of this machine
VENDORS: Final = ("gpu-operator", "dra-driver-nvidia-gpu", "kube-amd-gpu", "k8s-gpu-dra-driver")


@pytest.fixture(scope="module")
async def controlplane(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ControlPlane]:
    """Start a control plane for these tests alone: on that of all others the manifests are installed, by somebody else than Helm."""
    folder = tmp_path_factory.mktemp("helm-testbed")
    async with ControlPlane(folder, shape=Shape(nodes=0), progress=Progress(sys.stderr)) as running:
        yield running


@pytest.fixture(scope="module")
async def helm(controlplane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return await real_helm(controlplane, tmp_path_factory.mktemp("helm"))


# ── installed ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_with_everything_switched_on_it_is_installed_and_waited_for(cluster: Cluster, helm: Helm) -> None:
    await cluster.nodes(1)
    namespaces = [await cluster.namespace("driver"), *VENDORS]
    for name in VENDORS:
        await cluster.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    switched_on = ("evict=true", "forceDelete=true", "nvidiaMig.enabled=true", "amdDcm.enabled=true", "replicas=2")
    values = [f"--set={value}" for value in (*switched_on, f"driverNamespaces={{{namespaces[0]}}}")]
    try:
        await helm.installed("--wait", "--timeout", "60s", *values)
        deployment = await cluster.client.get(DEPLOYMENTS, "gpupartition", namespace=OPERATOR_NAMESPACE)
        assert deployment["status"]["readyReplicas"] == 2
        for namespace in namespaces:
            assert "gpupartition-" in await cluster.kubectl("get", "roles", "-n", namespace, "-o", "name")
    finally:
        await helm.installed(*NO_POD)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("prometheus.enabled=true", "prometheus.enabled: the cluster has no PodMonitors; install the CRDs"),
        (
            "driverNamespaces={nowhere}",
            "driverNamespaces: there is no namespace nowhere; create it, or name another one",
        ),
        (
            "nvidiaMig.enabled=true,nvidiaMig.namespace=nowhere,nvidiaMig.pluginNamespace=default",
            "nvidiaMig.namespace: ",
        ),
        ("amdDcm.enabled=true,amdDcm.pluginNamespace=nowhere,amdDcm.namespace=default", "amdDcm.pluginNamespace: "),
        ("grafana.enabled=true,grafana.namespace=nowhere", "grafana.namespace: there is no namespace nowhere"),
    ],
)
async def test_what_a_cluster_lacks_is_told_before_anything_is_changed(
    cluster: Cluster, helm: Helm, value: str, told: str
) -> None:
    await helm.installed(*NO_POD)
    with pytest.raises(TestbedError, match=told):
        await helm.installed(*NO_POD, "--set=evict=true", f"--set={value}")
    with pytest.raises(NotFound):
        await cluster.client.get(CLUSTER_ROLES, "gpupartition-evict")


async def test_crds_are_upgraded_with_the_release_and_outlive_it_with_what_is_of_them(
    cluster: Cluster, helm: Helm, tmp_path: Path
) -> None:
    younger = policy("kept", "somebody", equal(2), rollout={"pauseBetweenSeconds": 60})
    await helm.installed(*NO_POD, chart=await aged(helm, tmp_path))
    await eventually(partial(takes, cluster, younger, None))
    await helm.installed(*NO_POD)
    await eventually(partial(takes, cluster, younger, 60))
    made = await apply(cluster, younger)

    await helm("uninstall", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--wait")
    with pytest.raises(NotFound):
        await cluster.client.get(DEPLOYMENTS, "gpupartition", namespace=OPERATOR_NAMESPACE)
    await cluster.client.get(CRDS, f"gpupartitionpolicies.{GROUP}")
    assert (await cluster.client.get(POLICIES, "kept"))["metadata"]["uid"] == made["metadata"]["uid"]

    await helm.installed(*NO_POD)
    assert (await cluster.client.get(POLICIES, "kept"))["spec"] == made["spec"]


async def aged(helm: Helm, folder: Path) -> Path:
    """Return a copy of the chart from before policies could pause between nodes."""
    chart = shutil.copytree(CHART, folder / "older")
    name = "templates/crds/gpupartitionpolicies.yaml"
    (crd,) = await helm.rendered("--show-only", name)
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["spec"]["properties"]["rollout"]["properties"]["pauseBetweenSeconds"]
    (chart / name).write_text(yaml.safe_dump(crd))
    return chart


async def takes(cluster: Cluster, body: Object, pause: int | None) -> bool:
    """Whether the API server keeps the pause of a policy (None: takes the policy without it)."""
    made = await cluster.client.create(POLICIES, body, dry_run=True)
    return bool(made["spec"]["rollout"].get("pauseBetweenSeconds") == pause)


async def test_what_kustomize_has_installed_can_be_taken_over_with_what_is_there(cluster: Cluster, helm: Helm) -> None:
    async with pristine(cluster, helm):
        await cluster.controlplane.install_operator()
        made = await apply(cluster, policy("older", "somebody", equal(2)))
        with pytest.raises(TestbedError, match="invalid ownership metadata"):
            await helm.installed(*NO_POD)
        await helm.installed(*NO_POD, "--take-ownership", "--force-conflicts")
        await helm.installed(*NO_POD, "--set=evict=true", "--set=settings.WORKERS=4", "--force-conflicts")
        assert (await cluster.client.get(POLICIES, "older"))["metadata"]["uid"] == made["metadata"]["uid"]


@asynccontextmanager
async def pristine(cluster: Cluster, helm: Helm) -> AsyncIterator[None]:
    """Have nothing installed. What is afterwards is taken away too: Helm and kubectl would go on owning what is written next."""
    await swept(cluster, helm)
    try:
        yield
    finally:
        await swept(cluster, helm)
        await helm.installed(*NO_POD)


async def swept(cluster: Cluster, helm: Helm) -> None:
    """Take away all that Helm and kubectl have installed."""
    await helm("uninstall", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--ignore-not-found", "--wait")
    for each in (await cluster.client.list(CRDS)).items:
        if each["spec"]["group"] == GROUP:
            await cluster.client.delete(CRDS, each["metadata"]["name"])
            await cluster.gone(CRDS, each["metadata"]["name"])


# ── roll-outs as releases ─────────────────────────────────────────────────────────────────────────────────────────────


def of(cluster: Cluster, *layouts: Object) -> Object:
    """Values of a release with one driver that the operator publishes for, and one policy over this test's nodes."""
    name = cluster.name
    # Not live, so that what is offered when a policy is Ready is all that there is, and stays.
    publish = {"driverName": f"{name}.publish.example", "inventory": {"gpus": [gpus(2)]}, "live": False}
    return {
        "drivers": {name: {"type": "Publish", "publish": publish, "maxUnavailable": "100%"}},
        "policies": {name: policy(name, name, *layouts, rollout={"maxUnavailable": "100%"})["spec"]},
    }


async def offered(cluster: Cluster, driver: str = "") -> dict[str, list[str]]:
    """The names of the devices that this test's nodes publish (of the driver in `of`), by node."""
    driver = driver or f"{cluster.name}.publish.example"
    slices = await cluster.client.list(RESOURCE_SLICES, field_selector=f"spec.driver={driver}")
    found: dict[str, list[str]] = {}
    for each in slices.items:
        found.setdefault(each["spec"]["nodeName"], []).extend(d["name"] for d in each["spec"].get("devices", ()))
    return {node: sorted(names) for node, names in found.items()}


async def release(helm: Helm, cluster: Cluster, *how: str, values: Object) -> str:
    """Install or upgrade the policies of this test, and wait as Helm waits."""
    command = ("upgrade", "--install", cluster.name, POLICIES_CHART, "--namespace", "default", "--wait")
    return await helm(*command, "--timeout", "120s", *how, values=values)


async def test_an_installation_is_there_exactly_when_every_node_has_its_layout(cluster: Cluster, helm: Helm) -> None:
    await helm.installed(*NO_POD)
    nodes = await cluster.nodes(2, pool=cluster.name)
    await freeze(cluster)
    program = await operator(cluster, resync=0.3)
    waiting = asyncio.create_task(release(helm, cluster, values=of(cluster, equal(2))))
    await said(cluster, cluster.name, "Ready", "False", "Frozen")
    await looks_again(program)
    assert not waiting.done(), "nothing is published, so nothing is there"
    await unfreeze(cluster)
    await waiting
    body = await cluster.client.get(POLICIES, cluster.name)
    assert says(body, "Ready") == ("True", "RolloutComplete")
    assert await offered(cluster) == dict.fromkeys(nodes, in_parts(2))

    await release(helm, cluster, values=of(cluster, equal(4)))
    assert await offered(cluster) == dict.fromkeys(nodes, in_parts(4))
    assert says(await cluster.client.get(POLICIES, cluster.name), "Ready") == ("True", "RolloutComplete")

    await helm("uninstall", cluster.name, "--namespace", "default", "--wait", "--timeout", "60s")
    for kind in (POLICIES, DRIVERS):
        await cluster.gone(kind, cluster.name)
    await looks_again_at_all(cluster)
    assert await offered(cluster) == dict.fromkeys(nodes, in_parts(4)), "Retain: nodes stay as they are"


def in_parts(parts: int) -> list[str]:
    """The names of the devices of a node whose two GPUs can be had in equal parts, or whole."""
    each = ("full", *(f"{number}of{parts}" for number in range(1, parts + 1)))
    return sorted(f"gpu-{gpu}-{part}" for gpu in (0, 1) for part in each)


async def looks_again_at_all(cluster: Cluster) -> None:
    """Let the operator bring another policy to an end, so that all that it was told before has been looked at."""
    await apply(cluster, policy("marker", "nobody", equal(2), selector={"pool": "nowhere"}))
    await said(cluster, "marker", "Accepted", "False", "DriverNotFound")


KEEP_AS_IT_IS: Final = {"name": "as-it-is", "match": {"all": True}, "type": "Keep"}
REFUSED: Final = r"(?s)GpuPartitionPolicy.*Failed.*spec.layouts\[0\].type"


async def test_a_roll_out_that_cannot_be_fails_the_release_with_the_reason_and_the_fix(
    cluster: Cluster, helm: Helm
) -> None:
    await helm.installed(*NO_POD)
    (node,) = await cluster.nodes(1, pool=cluster.name)
    await operator(cluster)
    with pytest.raises(TestbedError, match=REFUSED):
        await release(helm, cluster, values=of(cluster, KEEP_AS_IT_IS))
    await release(helm, cluster, values=of(cluster, equal(2)))
    assert await offered(cluster) == {node: in_parts(2)}
    with pytest.raises(TestbedError, match=REFUSED):
        await release(helm, cluster, "--rollback-on-failure", values=of(cluster, KEEP_AS_IT_IS))
    await ready(cluster, cluster.name)
    (layout,) = (await cluster.client.get(POLICIES, cluster.name))["spec"]["layouts"]
    assert layout["type"] == "Equal"
    assert await offered(cluster) == {node: in_parts(2)}
    await helm("uninstall", cluster.name, "--namespace", "default", "--wait", "--timeout", "60s")


async def test_a_release_fails_only_when_nothing_of_it_is_on_its_way_any_more(cluster: Cluster, helm: Helm) -> None:
    await helm.installed(*NO_POD)
    (node,) = await cluster.nodes(1, pool=cluster.name)
    await freeze(cluster)
    program = await operator(cluster, resync=0.3)
    values = of(cluster, equal(2))
    values["policies"]["refused"] = policy("refused", "nobody", equal(2), selector={"pool": "nowhere"})["spec"]
    waiting = asyncio.create_task(release(helm, cluster, values=values))
    await said(cluster, "refused", "Stalled", "True")
    await said(cluster, cluster.name, "Ready", "False", "Frozen")
    await looks_again(program)
    assert not waiting.done()
    await unfreeze(cluster)
    with pytest.raises(TestbedError, match=r"(?s)GpuPartitionPolicy//refused.*there is no GpuPartitionDriver nobody"):
        await waiting
    assert says(await cluster.client.get(POLICIES, cluster.name), "Ready") == ("True", "RolloutComplete")
    assert await offered(cluster) == {node: in_parts(2)}
    await helm("uninstall", cluster.name, "--namespace", "default", "--wait", "--timeout", "60s")


async def test_a_node_that_fails_fails_the_release_by_its_name_and_an_upgrade_or_a_rollback_leads_on(
    cluster: Cluster, helm: Helm
) -> None:
    await helm.installed(*NO_POD)
    scene = await stage(cluster, 2)
    failing, other = scene.nodes
    failed = (
        f"GpuPartitionPolicy//{cluster.name} not ready. status: Failed, message: node {failing}: .* 1 of 40 devices"
    )
    await fault(cluster, failing, "wrong-layout@partitions=4")
    await operator(cluster, verifying=2)
    with pytest.raises(TestbedError, match=failed):
        await release(helm, cluster, values=over(scene, 4, onFailure="Halt"))
    await release(helm, cluster, values=over(scene, 3))
    assert await published(scene) == {failing: devices(3), other: devices(3)}

    with pytest.raises(TestbedError, match=failed):
        await release(helm, cluster, values=over(scene, 4, maxFailed=2))  # so the other node is not spared
    assert await published(scene) == {failing: devices(3), other: devices(4)}
    await helm("rollback", cluster.name, "--namespace", "default", "--wait", "--timeout", "120s")
    assert await published(scene) == {failing: devices(3), other: devices(3)}
    assert says(await cluster.client.get(POLICIES, cluster.name), "Ready") == ("True", "RolloutComplete")


def over(scene: Stage, parts: int, **rollout: Any) -> Object:
    """Values of a release with a policy over both nodes at once, and without their driver."""
    body = policy(scene.driver, scene.driver, equal(parts), rollout={"maxUnavailable": "100%", **rollout})
    return {"policies": {scene.driver: body["spec"]}}


async def published(scene: Stage) -> dict[str, int]:
    """How many devices the nodes of this test publish just now."""
    return {node: len(names) for node, names in (await offered(scene.cluster, scene.base.driver)).items()}


# ── read-only ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_read_only_operator_tells_what_policies_would_change_and_is_refused_nothing(
    cluster: Cluster, helm: Helm
) -> None:
    try:
        await helm.installed(*NO_POD, "--set", "readOnly=true")
        own = of(cluster, equal(2))
        await cluster.nodes(2, pool=cluster.name)
        await eventually(partial(may_only_observe, cluster))
        program = await read_only_operator(cluster)
        own["policies"][cluster.name]["mode"] = "Observe"
        await release(helm, cluster, values=own)
        body = await cluster.client.get(POLICIES, cluster.name)
        assert says(body, "Ready") == ("True", "Observing")
        assert body["status"]["nodes"]["wouldChange"] == 2
        assert says(await cluster.client.get(DRIVERS, cluster.name), "Ready") == ("True", "Ready")
        await looks_again(program)
        written = {each.replace(f"/{cluster.name}/", "/") for each in writes(cluster)}
        assert written == {f"update {status}" for status in STATUSES}
        asked = cluster.audit(user=f"system:serviceaccount:{OPERATOR_NAMESPACE}:")
        assert {e["requestURI"] for e in asked if e["responseStatus"]["code"] in {401, 403}} == set()
        await helm("uninstall", cluster.name, "--namespace", "default", "--wait", "--timeout", "60s")
    finally:
        await helm.installed(*NO_POD)


async def read_only_operator(cluster: Cluster) -> Program:
    """Start an operator as the chart's Deployment says that it is to be started."""
    deployment = await cluster.client.get(DEPLOYMENTS, "gpupartition", namespace=OPERATOR_NAMESPACE)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    given = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    assert given == {"GPUPARTITION_LEADER_ELECTION": "false", "GPUPARTITION_READ_ONLY": "true"}
    local = {"GPUPARTITION_HOST": "127.0.0.1", "GPUPARTITION_PORT": "0", "GPUPARTITION_RESYNC_SECONDS": "0.3"}
    return await cluster.start_operator(env={**given, **local})


async def may_only_observe(cluster: Cluster) -> bool:
    await cluster.client.create(POLICIES, policy("trial", "nobody", equal(2), mode="Observe"), dry_run=True)
    try:
        await cluster.client.create(POLICIES, policy("trial", "nobody", equal(2)), dry_run=True)
    except ApiError as refused:
        return "write mode: Observe" in refused.message
    return False


async def test_read_only_is_refused_while_there_is_something_to_write(cluster: Cluster, helm: Helm) -> None:
    await helm.installed(*NO_POD)
    read_only = partial(helm.installed, *NO_POD, "--set", "readOnly=true")
    await apply(cluster, policy("enforced", "nobody", equal(2)))
    with pytest.raises(TestbedError, match="policy enforced does not observe; write mode: Observe"):
        await read_only()
    await apply(cluster, policy("enforced", "nobody", equal(2), mode="Observe"))
    made = await apply(cluster, {**DRIVER, "spec": of(cluster)["drivers"][cluster.name]})
    grant = {"node": "gpu-7", "uid": "u", "policy": "enforced", "token": "0123456789", "since": "2026-01-01T00:00:00Z"}
    await cluster.client.replace(DRIVERS, {**made, "status": {"inFlight": [grant]}}, subresource="status")
    with pytest.raises(TestbedError, match="node gpu-7 is still being changed; wait until"):
        await read_only()


DRIVER: Final = {"apiVersion": API_VERSION, "kind": "GpuPartitionDriver", "metadata": {"name": "moving"}}


# ── the page ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_the_page_says_can_be_typed_as_it_stands_there(cluster: Cluster, helm: Helm, tmp_path: Path) -> None:
    page = (ROOT / "docs/helm.md").read_text(encoding="utf-8")
    commands = [line.split() for block in blocks(page, "sh") for line in block.splitlines()]
    (values,) = blocks(page, "yaml")
    (tmp_path / "gpus.yaml").write_text(values)
    (tmp_path / "charts").symlink_to(ROOT / "charts")
    (node,) = await cluster.nodes(1, pool="inference")
    program = None
    async with prometheus(cluster), pristine(cluster, helm):
        for which, *arguments in commands:
            if which == "kubectl":
                await cluster.kubectl(*arguments)
                continue
            await helm(*arguments, folder=tmp_path)
            if program is None:  # what kwok runs as the operator's pod does nothing
                await helm.becomes_operator()
                program = await operator(cluster, arriving=30)
            if arguments[:2] in (["install", "inference"], ["upgrade", "inference"]):
                await cluster.published(8 * 3, node=node, driver="gpu.example.org")
            if any("prometheus.enabled=true" in each for each in arguments):
                for kind in (POD_MONITORS, RULES):
                    assert await cluster.client.get(kind, "gpupartition", namespace=OPERATOR_NAMESPACE)
            if "readOnly=true" in arguments:
                await program.stop()
    assert {verb for which, verb, *_ in commands if which == "helm"} == {"install", "upgrade", "uninstall"}
