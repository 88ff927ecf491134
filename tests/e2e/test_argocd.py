"""Argo CD, the real one: what it shows of policies, what its actions write, and what syncs do to nodes."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
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
from tests.e2e.gitops import APPLICATIONS, PROJECTS, Application, History, Repository, application
from tests.e2e.harness import DRIVERS, POLICIES, eventually
from tests.e2e.publishing import gpus as gpu_group
from tests.e2e.rollout import Watcher, equal, fault, looks_again, operator, policy, ready, says
from tests.e2e.stage import HALVES, WHOLE, stage
from tests.e2e.test_helm import freeze, unfreeze
from tests.unit import test_conditions as situations
from tests.unit.test_conditions import Row
from tests.unit.test_docs import blocks
from tests.unit.worlds import T0

from gpupartition.api.v1alpha1 import PolicyStatus
from gpupartition.controller.records import dump
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
from gpupartition.names import API_VERSION, GROUP, RETRY

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


# ── what it shows ─────────────────────────────────────────────────────────────────────────────────────────────────────

PRINT_CHANGED: Final = """sh -c 'cat "$1"'"""  # in the place of diff, which is given both


@dataclass(frozen=True, slots=True, kw_only=True)
class Lua:
    """What the scripts of the manifests make of an object, in Argo CD's own machine for them."""

    argocd: ArgoCD
    settings: Path
    """The ConfigMap."""

    async def _said(self, body: Object, command: str, *arguments: str) -> str:
        path = self.settings.with_name(f"{id(body)}.yaml")
        await asyncio.to_thread(path.write_text, yaml.safe_dump(body))
        which = ("admin", "settings", "resource-overrides", command, path, "--argocd-cm-path", self.settings)
        return await self.argocd(*which, *arguments, env={"KUBECTL_EXTERNAL_DIFF": PRINT_CHANGED})

    async def health(self, body: Object) -> tuple[str, str]:
        """Its health, and that in words."""
        said = re.fullmatch(r"STATUS: (.*)\nMESSAGE: (.*)\n", await self._said(body, "health"))
        assert said is not None
        return said[1], said[2]

    async def may(self, body: Object) -> set[str]:
        """The actions that are offered."""
        _, *rows = (await self._said(body, "list-actions")).splitlines()
        return {name for name, disabled in map(str.split, rows) if disabled == "false"}

    async def after(self, body: Object, action: str, **parameters: str) -> Object:
        """It after an action. Raises TestbedError with the words of the action."""
        given = [f"--param={name}={value}" for name, value in parameters.items()]
        said = await self._said(body, "run-action", action, *given)
        changed: Object = yaml.safe_load(said.removeprefix("Following fields have been changed:\n"))
        return changed


@pytest.fixture(scope="module")
async def lua(argocd: ArgoCD, tmp_path_factory: pytest.TempPathFactory) -> Lua:
    settings = tmp_path_factory.mktemp("lua") / "argocd-cm"
    settings.write_text(await argocd.controlplane.kubectl("kustomize", str(CUSTOMIZATIONS)))
    return Lua(argocd=argocd, settings=settings)


PATIENT: Final = situations.SPEC.model_copy(
    update={"rollout": situations.SPEC.rollout.model_copy(update={"progress_deadline_seconds": 60})}
)
LATE: Final = Row(
    "past its deadline",
    situations.rollout(situations.HELD, spec=PATIENT, reason="RollingOut"),
    ready=False,
    reason="ProgressDeadlineExceeded",
    stalled=True,
)
ROWS: Final = (*situations.TABLE, LATE)


def standing(row: Row, **annotations: str) -> Object:
    """A policy in a situation, as the API server has it."""
    status = situations.status(row.of, generation=3)
    if row is LATE:
        status = situations.status(row.of, before=status, generation=3, now=T0 + timedelta(hours=1))
    body = policy("situation", "example", equal(2))
    body["metadata"] |= {"generation": 3, "annotations": dict(annotations)}
    if row.accepted is None:
        body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {**body, "status": dump(status)}


def shown(row: Row) -> str:
    """The health of a policy in a situation that is no deletion."""
    if row.ready:
        return "Healthy"
    if row.stalled:
        return "Degraded"
    return "Suspended" if row.reason in {"Paused", "Frozen"} else "Progressing"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.situation)
async def test_each_situation_is_shown_with_its_reason_in_words(lua: Lua, row: Row) -> None:
    body = standing(row)
    (said,) = (each for each in body["status"]["conditions"] if each["type"] == "Ready")
    assert said["reason"] == row.reason
    health, words = await lua.health(body)
    if row.accepted is None:
        assert health == "Progressing"
        return
    assert health == shown(row)
    assert words == f"{said['reason']}: {said['message']}"


async def test_what_the_operator_has_not_looked_at_is_progressing_whatever_was_said_before(lua: Lua) -> None:
    for row in (each for each in ROWS if each.reason in {"RolloutComplete", "RolledBack", "Paused"}):
        body = standing(row)
        body["metadata"]["generation"] += 1
        assert (await lua.health(body))[0] == "Progressing"
    for status in {"status": dump(PolicyStatus())}, {}:
        body = {**policy("fresh", "example", equal(2)), **status}
        body["metadata"]["generation"] = 1
        assert await lua.health(body) == (
            "Progressing",
            "the operator has not looked at this version of the policy yet",
        )


IGNORED: Final = {"argocd.argoproj.io/ignore-healthcheck": "true"}


@pytest.mark.parametrize(
    ("situation", "health"),
    [
        ("rolling", "Healthy"),
        ("paused, not complete", "Healthy"),
        ("all verified", "Healthy"),
        ("halted", "Degraded"),
        ("refused", "Degraded"),
        ("deleting", "Progressing"),
    ],
)
async def test_no_sync_waits_for_a_policy_whose_health_shall_be_ignored_once_it_is_accepted(
    lua: Lua, situation: str, health: str
) -> None:
    (row,) = (each for each in ROWS if each.situation == situation)
    body = standing(row, **IGNORED)
    assert (await lua.health(body))[0] == health
    body["status"] = dump(PolicyStatus())
    assert (await lua.health(body))[0] == "Progressing"


@pytest.mark.parametrize(
    ("ready", "reason", "observed", "health"),
    [
        ("True", "Ready", 2, "Healthy"),
        ("True", "Ready", 1, "Progressing"),
        ("False", "BaseMissing", 2, "Progressing"),
        ("False", "Terminating", 2, "Progressing"),
    ],
)
async def test_a_driver_is_waited_for_and_fails_no_sync(
    lua: Lua, ready: str, reason: str, observed: int, health: str
) -> None:
    said = {"type": "Ready", "status": ready, "reason": reason, "message": "in words", "observedGeneration": observed}
    body = {
        "apiVersion": API_VERSION,
        "kind": "GpuPartitionDriver",
        "metadata": {"name": "driver", "generation": 2},
        "status": {"observedGeneration": observed, "conditions": [said]},
    }
    found, words = await lua.health(body)
    assert found == health
    assert words.startswith(f"{reason}: in words" if observed == 2 else "the operator has not looked")


# ── what its actions write ────────────────────────────────────────────────────────────────────────────────────────────

(ROLLING,) = (each for each in ROWS if each.situation == "rolling")
(HALTED,) = (each for each in ROWS if each.situation == "halted")


async def test_a_pause_says_who_why_and_until_when_as_everybody_says_it(lua: Lua) -> None:
    body = standing(ROLLING, unrelated="kept")
    before = datetime.now(UTC).replace(microsecond=0)
    paused = await lua.after(body, "pause", reason="storage is being moved", hours="1.5")
    found = of_policy(paused)
    assert found is not None
    assert (found.by, found.reason) == ("Argo CD", "storage is being moved")
    assert found.until.endswith("Z")
    assert found.ends is not None
    assert timedelta(0) <= found.ends - before - timedelta(hours=1.5) < timedelta(minutes=1)
    assert await lua.after(paused, "resume") == body, "and nothing else was touched"
    assert await lua.may(paused) == {"resume"}


async def test_a_pause_needs_no_reason_and_no_end(lua: Lua) -> None:
    body = standing(ROLLING)
    del body["metadata"]["annotations"]
    for given in {}, {"reason": "", "hours": ""}:
        found = of_policy(await lua.after(body, "pause", **given))
        assert found is not None
        assert (found.by, found.reason, found.until) == ("Argo CD", "", "")


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/Los_Angeles", "Asia/Kathmandu"])
async def test_a_pause_ends_at_the_same_time_wherever_argo_cd_runs(
    lua: Lua, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    found = of_policy(await lua.after(standing(ROLLING), "pause", hours="30"))
    assert found is not None
    assert found.ends is not None
    assert abs(found.ends - datetime.now(UTC) - timedelta(hours=30)) < timedelta(minutes=1)


PAUSED: Final = {
    "gpupartition.dev/paused": "true",
    "gpupartition.dev/paused-reason": "driver upgrade",
    "gpupartition.dev/paused-by": "alice",
}


@pytest.mark.parametrize(
    ("row", "annotations", "spec", "offered", "refused"),
    [
        (ROLLING, {}, {}, {"pause"}, {"resume": "it is not paused", "retry": "nothing has failed"}),
        (ROLLING, {"gpupartition.dev/paused": "false"}, {}, {"pause"}, {}),
        (ROLLING, PAUSED, {}, {"resume"}, {"pause": r"paused already: driver upgrade \(by alice\); resume it first"}),
        (ROLLING, {}, {"paused": True}, {"pause"}, {"resume": "have spec.rollout.paused be false"}),
        (HALTED, {}, {}, {"pause", "retry"}, {}),
    ],
)
async def test_what_makes_no_sense_is_neither_offered_nor_done(
    lua: Lua, row: Row, annotations: Mapping[str, str], spec: Object, offered: set[str], refused: Mapping[str, str]
) -> None:
    body = standing(row, **annotations)
    body["spec"]["rollout"] = spec
    assert await lua.may(body) == offered
    for action, words in refused.items():
        with pytest.raises(TestbedError, match=words):
            await lua.after(body, action)


@pytest.mark.parametrize("hours", ["soon", "-1", "0", "9000", "nan", "inf"])
async def test_a_pause_for_no_number_of_hours_is_refused(lua: Lua, hours: str) -> None:
    with pytest.raises(TestbedError, match=f"hours: {hours} is not between 0 and 8760; leave it empty"):
        await lua.after(standing(ROLLING), "pause", hours=hours)


async def test_a_retry_says_when_who_and_why_as_everybody_says_it(lua: Lua) -> None:
    body = standing(HALTED)
    for given, words in ({}, " by Argo CD"), ({"reason": "GPU 3 was replaced"}, " by Argo CD: GPU 3 was replaced"):
        notes = (await lua.after(body, "retry", **given))["metadata"]["annotations"]
        said = re.fullmatch(r"(\S+Z)(.*)", notes.pop(RETRY))
        assert said is not None
        assert abs(datetime.now(UTC) - datetime.fromisoformat(said[1])) < timedelta(minutes=1)
        assert (said[2], notes) == (words, {})


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
        assert await gpus.shows(cluster.name, "Suspended") == "Frozen: everything is frozen: no reason was given"
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
    await gpus.shows(name, "Suspended", "Paused: paused: storage is being moved (by Argo CD, until ")
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
    await gpus.commits(driver=[published(cluster)], **canary(cluster, **IGNORED))
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
                program = await operator(cluster)
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
    for example in (folder / "manifests/argocd/examples").iterdir():
        example.write_text(example.read_text().replace(REPOSITORIES, f"file://{folder}/"))


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
