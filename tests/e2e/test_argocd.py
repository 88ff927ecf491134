"""Argo CD, the real one: what syncs do to nodes, and what nodes do to syncs. What it makes of an object: test_argocd_scripts.py."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import yaml
from testbed.argocd import NAMESPACE, ArgoCD
from testbed.controlplane import ROOT, ControlPlane, Shape
from testbed.programs import TestbedError
from testbed.progress import Progress
from tests.e2e.claims import device_class
from tests.e2e.gitops import APPLICATIONS, PROJECTS, Application, History, Repository, application, example
from tests.e2e.harness import DRIVERS, POLICIES, eventually
from tests.e2e.history import Watcher
from tests.e2e.publishing import gpus as gpu_group
from tests.e2e.rollout import equal, fault, freeze, looks_again, operator, policy, ready, says, unfreeze
from tests.e2e.stage import HALVES, WHOLE, stage
from tests.unit.pages import blocks

from gpupartition.domain.suspension import of_policy
from gpupartition.kube import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    DEVICE_TAINT_RULES,
    NAMESPACES,
    NODES,
    RESOURCE_SLICES,
    NotFound,
)
from gpupartition.names import API_VERSION, GROUP

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from tests.e2e.harness import Cluster

    from gpupartition.kube import Object

CUSTOMIZATIONS: Final = ROOT / "manifests" / "argocd"


@pytest.fixture(scope="module")
async def controlplane(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ControlPlane]:
    """Start a control plane for these tests alone: Argo CD reads and prunes all over a cluster."""
    folder = tmp_path_factory.mktemp("argocd-testbed")
    async with ControlPlane(folder, shape=Shape(nodes=0), progress=Progress(sys.stderr)) as running:
        await running.install_operator()
        yield running


@pytest.fixture(scope="module")
async def argocd(controlplane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ArgoCD]:
    folder = tmp_path_factory.mktemp("argocd")
    async with ArgoCD(controlplane, folder, progress=Progress(sys.stderr)) as running:
        await controlplane.kubectl("apply", "--server-side", "-k", str(CUSTOMIZATIONS))
        yield running


# ── syncs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def gpus(cluster: Cluster, argocd: ArgoCD, tmp_path: Path) -> AsyncIterator[Application]:
    async with application(cluster, argocd, tmp_path / "gpus") as own:
        yield own


def published(cluster: Cluster) -> Object:
    """A driver of this test, for which the operator publishes: not live, so that a Ready policy's layout is all that is offered."""
    inventory = {"gpus": [gpu_group(2)]}
    publish = {"driverName": f"{cluster.name}.publish.example", "inventory": inventory, "live": False}
    spec = {"type": "Publish", "publish": publish, "maxUnavailable": "100%"}
    return {"apiVersion": API_VERSION, "kind": "GpuPartitionDriver", "metadata": {"name": cluster.name}, "spec": spec}


def wanted(cluster: Cluster, parts: int, name: str = "") -> Object:
    """A policy over this test's nodes, all at once."""
    return policy(name or cluster.name, cluster.name, equal(parts), rollout={"maxUnavailable": "100%"})


async def offered(cluster: Cluster) -> dict[str, set[str]]:
    """The kinds of parts that this test's nodes offer, by node."""
    slices = await cluster.client.list(RESOURCE_SLICES, field_selector=f"spec.driver={cluster.name}.publish.example")
    found: dict[str, set[str]] = {}
    for each in slices.items:
        names = {device["name"].rsplit("-", 1)[1] for device in each["spec"].get("devices", ())}
        found.setdefault(each["spec"]["nodeName"], set()).update(name[1:] for name in names if name != "full")
    return found


async def test_an_application_is_healthy_exactly_when_every_node_has_its_layout(
    cluster: Cluster, gpus: Application
) -> None:
    nodes = await cluster.nodes(2, pool=cluster.name)
    async with History(gpus) as history, Watcher(cluster, POLICIES) as policies:
        await gpus.commits(driver=[published(cluster)], policy=[wanted(cluster, 2)])
        await gpus.shows(cluster.name, "Progressing", "the operator has not looked at this version")
        await freeze(cluster)
        await operator(cluster)
        assert await gpus.shows(cluster.name, "Suspended") == "Frozen: no reason was given"
        await gpus.becomes("Suspended")
        assert await offered(cluster) == {}
        await unfreeze(cluster)
        await gpus.becomes("Healthy")
        assert await offered(cluster) == {node: {"of2"} for node in nodes}
        await policies.caught_up()
    done = next(each.version for each in policies.changes(POLICIES) if says(each.body, "Ready")[0] == "True")
    assert history.became("Healthy") > done
    await gpus.shows(cluster.name, "Healthy", "RolloutComplete: all 2 nodes are verified")


async def test_a_commit_that_is_reverted_brings_the_nodes_back_even_under_way(
    cluster: Cluster, gpus: Application
) -> None:
    first, other = nodes = await cluster.nodes(2, pool=cluster.name)
    await operator(cluster)
    await gpus.commits(driver=[published(cluster)], policy=[wanted(cluster, 2)])
    await gpus.becomes("Healthy")
    holder = await cluster.namespace("users")
    await device_class(cluster, f"{cluster.name}.publish.example")
    await cluster.holder("holder", namespace=holder, node=other, device_class=f"{cluster.name}.publish.example")
    await cluster.running("holder", namespace=holder)
    await gpus.commits(policy=[wanted(cluster, 4)])
    await eventually(partial(offers, cluster, {first: {"of4"}, other: {"of2"}}))
    await gpus.shows(cluster.name, "Progressing")
    await gpus.repository.git("revert", "--no-edit", "HEAD")
    await gpus.synced()
    await gpus.becomes("Healthy")
    assert await offered(cluster) == {node: {"of2"} for node in nodes}


async def offers(cluster: Cluster, what: Mapping[str, set[str]]) -> bool:
    assert await offered(cluster) == what
    return True


async def test_who_is_on_duty_pauses_resumes_and_retries_and_git_does_not_take_it_back(
    cluster: Cluster, gpus: Application
) -> None:
    nodes = await cluster.nodes(2, pool=cluster.name)
    await operator(cluster)
    await gpus.commits(driver=[published(cluster)], policy=[wanted(cluster, 2)])
    await gpus.becomes("Healthy")
    name = cluster.name
    await gpus.acts(name, "pause", reason="storage is being moved", hours="2")
    await gpus.commits(policy=[wanted(cluster, 4)])
    await gpus.shows(name, "Suspended", "Paused: storage is being moved (by Argo CD, until ")
    with pytest.raises(TestbedError, match=r"paused already: storage is being moved \(by Argo CD\); resume it first"):
        await gpus.acts(name, "pause")
    with pytest.raises(TestbedError, match="nothing has failed"):
        await gpus.acts(name, "retry")
    body = await gpus.refreshed()
    assert body["status"]["sync"]["status"] == "Synced"
    assert of_policy(await cluster.client.get(POLICIES, name)) is not None
    assert await offered(cluster) == {node: {"of2"} for node in nodes}
    await gpus.argocd("app", "actions", "run", name, "resume", "--kind", "GpuPartitionPolicy")
    await gpus.becomes("Healthy")
    await eventually(partial(offers, cluster, {node: {"of4"} for node in nodes}))
    asked = cluster.audit(user=f"system:serviceaccount:{NAMESPACE}:argocd-server")
    about = [e for e in asked if e["verb"] != "get" and e["objectRef"]["resource"] == POLICIES.plural]
    assert [(e["verb"], e["responseStatus"]["code"]) for e in about] == [("patch", 200)] * 2, (
        "so much it may, and no more"
    )


KEEP: Final = {"name": "as-it-is", "match": {"all": True}, "type": "Keep"}
"""A layout that a driver cannot have for which the operator publishes."""


async def test_a_policy_that_cannot_be_is_degraded_with_the_field_and_the_fix(
    cluster: Cluster, gpus: Application
) -> None:
    (node,) = await cluster.nodes(1, pool=cluster.name)
    await operator(cluster)
    refused = wanted(cluster, 2)
    refused["spec"]["layouts"] = [KEEP]
    await gpus.commits(driver=[published(cluster)], policy=[refused])
    await gpus.shows(cluster.name, "Degraded", "spec.layouts[0].type")
    await gpus.becomes("Degraded")
    await gpus.commits(policy=[wanted(cluster, 2)])
    await gpus.becomes("Healthy")
    assert await offered(cluster) == {node: {"of2"}}


async def test_a_node_that_fails_is_told_with_its_reason_and_tried_again_on_request(
    cluster: Cluster, gpus: Application
) -> None:
    scene = await stage(cluster, 2)
    failing, _ = scene.nodes
    await fault(cluster, failing, "wrong-layout@partitions=2")
    await operator(cluster, applying=3, verifying=3)
    name = cluster.name
    await gpus.commits(policy=[policy(name, scene.driver, equal(2))])
    await gpus.becomes("Degraded")
    await gpus.shows(name, "Degraded", f"RolledBack: node {failing}: ")
    await scene.publishes(WHOLE)
    await fault(cluster, failing, None)
    await gpus.acts(name, "retry", reason="the GPU was replaced")
    await gpus.becomes("Healthy")
    await scene.publishes(HALVES)


async def test_a_policy_that_gets_another_name_hands_its_nodes_over_and_nothing_else_happens(
    cluster: Cluster, gpus: Application
) -> None:
    nodes = await cluster.nodes(2, pool=cluster.name)
    await operator(cluster)
    await gpus.commits(driver=[published(cluster)], former=[wanted(cluster, 2, "former")])
    await gpus.becomes("Healthy")
    async with Watcher(cluster, NODES, RESOURCE_SLICES, DEVICE_TAINT_RULES) as things:
        await gpus.commits(former=None, later=[wanted(cluster, 2, "later")])
        await ready(cluster, "later")
        await gpus.becomes("Healthy")
        await cluster.gone(POLICIES, "former")
    assert [str(each) for kind in (RESOURCE_SLICES, DEVICE_TAINT_RULES) for each in things.changes(kind)] == []
    assert {each for node in nodes for each in things.assignments(node)} == {None}


async def test_with_prune_last_a_policy_waits_for_the_former_one_until_somebody_deletes_that(
    cluster: Cluster, argocd: ArgoCD, tmp_path: Path
) -> None:
    nodes = await cluster.nodes(2, pool=cluster.name)
    program = await operator(cluster, resync=0.3)
    async with application(cluster, argocd, tmp_path / "gpus", sync=[SERVER_SIDE, "PruneLast=true"]) as gpus:
        await gpus.commits(driver=[published(cluster)], former=[wanted(cluster, 2, "former")])
        await gpus.becomes("Healthy")
        await gpus.repository.commit(former=None, later=[wanted(cluster, 2, "later")])
        await gpus.refreshed()
        await gpus.shows("later", "Progressing", "Conflict: also claimed by policy former")
        await looks_again(program)
        await eventually(partial(waits_for, gpus, "GpuPartitionPolicy/later"))
        await cluster.kubectl("delete", "gpp", "former")
        await gpus.synced()
        await gpus.becomes("Healthy")
        assert await offered(cluster) == {node: {"of2"} for node in nodes}


async def waits_for(gpus: Application, what: str) -> bool:
    operation = (await gpus.get())["status"]["operationState"]
    assert operation["phase"] == "Running", operation
    assert f"waiting for healthy state of gpupartition.dev/{what}" in operation.get("message", ""), operation
    return True


async def test_a_policy_that_is_taken_out_of_git_leaves_its_nodes_as_they_are(
    cluster: Cluster, gpus: Application
) -> None:
    nodes = await cluster.nodes(2, pool=cluster.name)
    await operator(cluster)
    await gpus.commits(driver=[published(cluster)], policy=[wanted(cluster, 2)])
    await gpus.becomes("Healthy")
    async with Watcher(cluster, RESOURCE_SLICES, DEVICE_TAINT_RULES) as things:
        await gpus.commits(policy=None)
        await cluster.gone(POLICIES, cluster.name)
        await gpus.becomes("Healthy")
    assert [str(each) for kind in (RESOURCE_SLICES, DEVICE_TAINT_RULES) for each in things.changes(kind)] == []
    assert await offered(cluster) == {node: {"of2"} for node in nodes}


def in_wave(wave: int, body: Object, **annotations: str) -> Object:
    notes = {"argocd.argoproj.io/sync-wave": str(wave), **annotations}
    return {**body, "metadata": {**body["metadata"], "annotations": notes}}


def canary(cluster: Cluster, **annotations: str) -> dict[str, list[Object]]:
    """Two policies, of which the second one waits for the first."""
    first = policy("canary", cluster.name, equal(2), selector={"lane": f"{cluster.name}-canary"})
    rest = policy("rest", cluster.name, equal(2), selector={"lane": f"{cluster.name}-rest"})
    return {"canary": [in_wave(1, first, **annotations)], "rest": [in_wave(2, rest)]}


async def test_the_next_wave_waits_until_every_node_of_the_one_before_has_its_layout(
    cluster: Cluster, gpus: Application
) -> None:
    (first,) = await cluster.nodes(1, labels={"lane": f"{cluster.name}-canary"})
    (other,) = await cluster.nodes(1, labels={"lane": f"{cluster.name}-rest"})
    await operator(cluster)
    async with Watcher(cluster, POLICIES) as policies:
        await gpus.commits(driver=[published(cluster)], **canary(cluster))
        await gpus.becomes("Healthy")
    done = next(e.version for e in policies.changes(POLICIES, "canary") if says(e.body, "Ready")[0] == "True")
    assert policies.changes(POLICIES, "rest")[0].version > done
    assert await offered(cluster) == {first: {"of2"}, other: {"of2"}}


async def test_no_wave_waits_for_a_policy_whose_health_shall_be_ignored(cluster: Cluster, gpus: Application) -> None:
    await cluster.nodes(1, labels={"lane": f"{cluster.name}-canary"})
    await freeze(cluster)
    await operator(cluster)
    await gpus.commits(
        driver=[published(cluster)], **canary(cluster, **{"argocd.argoproj.io/ignore-healthcheck": "true"})
    )
    await gpus.shows("canary", "Healthy", "Frozen: ")
    await gpus.becomes("Healthy")


async def test_a_wave_that_cannot_be_ends_the_sync_before_the_next_one(cluster: Cluster, gpus: Application) -> None:
    await cluster.nodes(1, labels={"lane": f"{cluster.name}-canary"})
    await operator(cluster)
    files = canary(cluster)
    files["canary"][0]["spec"]["layouts"] = [KEEP]
    await gpus.repository.commit(driver=[published(cluster)], **files)
    await gpus.refreshed()
    operation = await eventually(gpus.failed, within=60)
    assert "completed unsuccessfully" in operation["message"]
    (told,) = (each for each in operation["syncResult"]["resources"] if each["name"] == "canary")
    assert "spec.layouts[0].type" in told["message"]
    assert [each["metadata"]["name"] for each in (await cluster.client.list(POLICIES)).items] == ["canary"]
    await gpus.commits(**canary(cluster))
    await gpus.becomes("Healthy")


ACTION: Final = f"action/{GROUP}/GpuPartitionPolicy/"


@pytest.mark.parametrize(
    ("action", "about", "may"),
    [
        *((f"{ACTION}{each}", "gpus/gpus", True) for each in ("pause", "resume", "retry")),
        ("get", "gpus/gpus", True),
        *((each, "gpus/gpus", False) for each in ("sync", "delete", "update", "action/apps/Deployment/restart")),
        (f"{ACTION}pause", "others/gpus", False),
    ],
)
async def test_the_project_lets_whoever_is_on_duty_act_on_policies_and_do_nothing_else(
    argocd: ArgoCD, tmp_path: Path, action: str, about: str, may: bool
) -> None:
    (role,) = example("project")["spec"]["roles"]
    policies = tmp_path / "policy.csv"
    policies.write_text("\n".join(role["policies"]))
    subject = f"proj:gpus:{role['name']}"
    asked = ("can", subject, action, "applications", about, "--policy-file", policies, "--strict=false")
    try:
        said = await argocd("admin", "settings", "rbac", *asked)
    except TestbedError as no:
        said = str(no).rpartition(": ")[2]
    assert said == ("Yes\n" if may else "")


async def test_a_controller_cannot_sync_without_the_right_to_update(cluster: Cluster) -> None:
    name = f"{cluster.name}-controller"
    rule = {"apiGroups": [GROUP], "resources": ["gpupartitionpolicies"], "verbs": ["get", "create", "patch"]}
    binding: Object = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}],
    }
    await cluster.create(CLUSTER_ROLES, {"metadata": {"name": name}, "rules": [rule]})
    await cluster.create(CLUSTER_ROLE_BINDINGS, binding)
    as_controller = partial(cluster.kubectl, "apply", "--server-side", "--as", name, "-f", "-")
    await as_controller(stdin=yaml.safe_dump(wanted(cluster, 2)))
    changes = partial(answered, as_controller, wanted(cluster, 4))
    # The API server needs a moment to learn of an admission policy, and of a role.
    await eventually(partial(changes, "that takes the right to update them"))
    allowed = [{**rule, "verbs": [*rule["verbs"], "update"]}]
    await cluster.client.patch(CLUSTER_ROLES, name, {"rules": allowed})
    await eventually(partial(changes, "serverside-applied"))


async def answered(apply: Callable[..., Awaitable[str]], body: Object, words: str) -> bool:
    """Whether these words come of trying to apply an object."""
    try:
        said = await apply("--dry-run=server", stdin=yaml.safe_dump(body))
    except TestbedError as refused:
        said = str(refused)
    return words in said


# ── the cluster and Git ───────────────────────────────────────────────────────────────────────────────────────────────

RESYNCS: Final = 20
SERVER_SIDE: Final = "ServerSideApply=true"


@pytest.mark.parametrize("sync", [[SERVER_SIDE], []], ids=["server-side", "client-side"])
async def test_what_was_applied_is_never_seen_to_differ_whatever_the_operator_writes(
    cluster: Cluster, argocd: ArgoCD, tmp_path: Path, sync: list[str]
) -> None:
    files = sorted((ROOT / "manifests/examples").glob("*.yaml"))
    examples = {each.stem: list(yaml.safe_load_all(each.read_text(encoding="utf-8"))) for each in files}
    await operator(cluster)
    async with application(cluster, argocd, tmp_path / "gpus", sync=sync) as gpus:
        await gpus.commits(**examples)
        await eventually(partial(all_looked_at, cluster))
        await gpus.refreshed()
        async with History(gpus) as history:
            for _ in range(RESYNCS):
                await gpus.refreshed()
        assert len(history.bodies) > RESYNCS
        assert history.syncs() == ["Synced"]


async def all_looked_at(cluster: Cluster) -> bool:
    for kind in (POLICIES, DRIVERS):
        found = (await cluster.client.list(kind)).items
        assert found
        assert all(each.get("status", {}).get("observedGeneration") == 1 for each in found)
    return True


# ── the page ──────────────────────────────────────────────────────────────────────────────────────────────────────────

PAGE: Final = (ROOT / "docs/argocd.md").read_text(encoding="utf-8")
REPOSITORIES: Final = "https://git.example.com/platform/"


async def test_what_the_page_says_can_be_typed_as_it_stands_there(
    cluster: Cluster, argocd: ArgoCD, tmp_path: Path
) -> None:
    await asyncio.to_thread(furnish, tmp_path)
    sources = await Repository.begun(tmp_path / "gpupartition.git")
    await sources.commit()
    policies = await Repository.begun(tmp_path / "gpus.git")
    await policies.commit(driver=[published(cluster)], inference=[wanted(cluster, 2, "inference")])
    (node,) = await cluster.nodes(1, pool=cluster.name)
    program = None
    try:
        for command in (line.split() for block in blocks(PAGE, "sh") for line in block.splitlines()):
            if command[0] == "kubectl":
                await argocd.controlplane.kubectl(*command[1:-1], str(tmp_path / command[-1]))
                continue
            await argocd(*command[1:], folder=tmp_path)
            if program is None and "wait" in command:  # what kwok runs as the operator's pod does nothing
                program = await operator(cluster, arriving=30)  # driver and policies come with one sync
            if "gpus" in command and "wait" in command:
                assert says(await cluster.client.get(POLICIES, "inference"), "Ready") == ("True", "RolloutComplete")
        assert await offered(cluster) == {node: {"of2"}}
        assert (await cluster.client.list(POLICIES)).items == []
    finally:
        await pristine(argocd)


def furnish(folder: Path) -> None:
    """Have what the page speaks of in a folder, with repositories that are there."""
    for each in ("crds", "manifests"):
        shutil.copytree(ROOT / each, folder / each)
        shutil.copytree(ROOT / each, folder / "gpupartition.git" / each)
    for path in (folder / "manifests/argocd/examples").iterdir():
        path.write_text(path.read_text().replace(REPOSITORIES, f"file://{folder}/"))


async def pristine(argocd: ArgoCD) -> None:
    """Have the operator installed as before, whatever Argo CD has made of it."""
    async with argocd.controlplane.client() as client:
        for kind, name in (APPLICATIONS, "gpus"), (APPLICATIONS, "gpupartition"), (PROJECTS, "gpus"):
            with contextlib.suppress(NotFound):
                await client.patch(kind, name, {"metadata": {"finalizers": None}}, namespace=NAMESPACE)
                await client.delete(kind, name, namespace=NAMESPACE)

        async def settled() -> bool:
            return not any("deletionTimestamp" in each["metadata"] for each in (await client.list(NAMESPACES)).items)

        await eventually(settled, within=60)
    await argocd.controlplane.install_operator()


async def test_who_installs_argo_cd_by_kustomize_adds_a_component(argocd: ArgoCD, tmp_path: Path) -> None:
    (overlay,) = (block for block in blocks(PAGE, "yaml") if "components" in block)
    await asyncio.to_thread(shutil.copytree, ROOT / "manifests", tmp_path / "manifests")
    await asyncio.to_thread(shutil.copy, argocd.source / "manifests/install.yaml", tmp_path)
    (tmp_path / "kustomization.yaml").write_text(overlay)
    ours, merged = [await settings_of(argocd, folder) for folder in (CUSTOMIZATIONS, tmp_path)]
    assert ours.items() <= merged.items()
    assert "resource.exclusions" in merged, "and what Argo CD has itself"


async def settings_of(argocd: ArgoCD, folder: Path) -> Mapping[str, str]:
    """The data of argocd-cm, as kustomize builds it from a folder."""
    built = yaml.load_all(await argocd.controlplane.kubectl("kustomize", str(folder)), yaml.CSafeLoader)
    (found,) = (each for each in built if (each["kind"], each["metadata"]["name"]) == ("ConfigMap", "argocd-cm"))
    data: Mapping[str, str] = found["data"]
    return data


async def test_the_policy_that_the_page_shows_is_one(cluster: Cluster) -> None:
    (body,) = (yaml.safe_load(block) for block in blocks(PAGE, "yaml") if "GpuPartitionPolicy" in block)
    await cluster.client.create(POLICIES, body, dry_run=True)
