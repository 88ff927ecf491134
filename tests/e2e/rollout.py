"""What tests of roll-outs speak: an operator, a driver and policies, and waiting for what their status says."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import yaml
from testbed.controlplane import ROOT
from tests.e2e.harness import DRIVERS, NODE_STATES, POLICIES, eventually, taint_rules
from tests.e2e.history import AT_REST

from gpupartition.kube import CONFIG_MAPS, NODES, PODS, Kind
from gpupartition.names import API_VERSION, FREEZE_CONFIG_MAP, OPERATOR_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from testbed.programs import Program
    from tests.e2e.harness import BaseDriver, Cluster

    from gpupartition.kube import Object

# ── the operator ──────────────────────────────────────────────────────────────────────────────────────────────────────


def fast(**seconds: float) -> dict[str, str]:
    """The environment of an operator that waits briefly; `fast(settle=1, draining_wait=30)` sets what a test is about.

    Names are those of `settings.py` without prefix and unit. Where a race is tested, settle must not be shorter than a second.
    """
    short = {"settle": 0.3, "idle_gap": 0.3, "min_ready": 0.3, "summary": 0.3, "arriving": 3} | seconds
    env = {f"GPUPARTITION_{name.upper()}_SECONDS": f"{value:g}" for name, value in short.items()}
    return {"GPUPARTITION_HOST": "127.0.0.1", "GPUPARTITION_PORT": "0", **env}


async def operator(cluster: Cluster, kubeconfig: Path | None = None, /, **seconds: float) -> Program:
    """Start an operator that waits briefly; it answers on a port of its own. Waits until it has read everything."""
    other = ("--kubeconfig", str(kubeconfig)) if kubeconfig else ()
    program = await cluster.start_operator(*other, env=fast(**seconds))
    await eventually(lambda: asks(program, "/readyz"))
    return program


async def asks(program: Program, path: str) -> str:
    """What an operator answers on its page for probes and metrics; an AssertionError while it does not answer 200."""
    log = await asyncio.to_thread(program.log.read_text)
    found = re.findall(r"probes and metrics on ([\d.]+:\d+)", log)
    assert found, log[-500:]
    assert program.alive, log[-2000:]
    try:
        async with aiohttp.ClientSession() as session, session.get(f"http://{found[-1]}{path}") as answer:
            text = await answer.text()
            assert answer.status == 200, text
            return text
    except aiohttp.ClientError as error:
        raise AssertionError(str(error)) from error


def writes(cluster: Cluster, *, since: int = 0) -> list[str]:
    """All that operators wrote, leaving out the first `since`: "patch nodes/n1", "update gpupartitionpolicies/inference/status"."""
    mutating = {"create", "update", "patch", "delete", "deletecollection"}
    account = f"system:serviceaccount:{OPERATOR_NAMESPACE}:"
    found = []
    for each in cluster.audit(user=account):
        if each["verb"] in mutating and "dryRun=" not in each["requestURI"]:
            about = each["objectRef"]
            path = [about["resource"], about.get("name", ""), about.get("subresource", "")]
            found.append(f"{each['verb']} {'/'.join(part for part in path if part)}")
    return found[since:]


async def turns(program: Program, loop: str = "policy") -> float:
    """How often an operator has looked at a policy (or a node) since it was started."""
    page = await asks(program, "/metrics")
    found = re.search(rf'^gpupartition_turn_seconds_count{{loop="{loop}"}} (\S+)$', page, re.MULTILINE)
    return float(found[1]) if found else 0.0


async def looks_again(program: Program, *, times: int = 5) -> None:
    """Wait until an operator has looked at its policies so many times more: what it has not done by then, it does not do.

    Quick only with an operator that looks often by itself: `operator(cluster, resync=0.3)`.
    """
    before = await turns(program)

    async def again() -> bool:
        return await turns(program) >= before + times

    await eventually(again)


# ── what users write ──────────────────────────────────────────────────────────────────────────────────────────────────


async def driver(
    cluster: Cluster, base: BaseDriver, *, name: str = "", gpus: int = 8, max_unavailable: int | str = "100%"
) -> str:
    """Apply the GpuPartitionDriver of a base DaemonSet; returns its name. Installs the CRDs and the operator's rights if need be."""
    if not await asyncio.to_thread(cluster.controlplane.files.kubeconfig("operator").exists):
        await cluster.controlplane.install_operator()
    await grant_namespace(cluster, base.namespace)
    where = {"namespace": base.namespace, "name": base.daemon_set}
    await apply(cluster, driver_of(name or base.pool, where, gpus=gpus, max_unavailable=max_unavailable))
    return name or base.pool


def driver_of(name: str, daemon_set: Object, *, gpus: int = 8, max_unavailable: int | str = "100%") -> Object:
    """A GpuPartitionDriver of this name for the example driver of this base DaemonSet."""
    return {
        "apiVersion": API_VERSION,
        "kind": "GpuPartitionDriver",
        "metadata": {"name": name},
        "spec": {
            "type": "ExampleDriver",
            "exampleDriver": {"daemonSet": daemon_set, "gpusPerNode": gpus},
            "maxUnavailable": max_unavailable,
        },
    }


async def grant_namespace(cluster: Cluster, namespace: str) -> None:
    """Give the operator the rights that it needs in a driver's namespace, as its manifests give them."""
    manifest = ROOT / "manifests" / "components" / "driver-namespace" / "role.yaml"
    bodies = list(yaml.safe_load_all(await asyncio.to_thread(manifest.read_text)))
    for body in bodies:
        body["metadata"]["namespace"] = namespace
    await cluster.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(bodies))


@asynccontextmanager
async def granting(cluster: Cluster, *components: str) -> AsyncIterator[None]:
    """Grant what components of the manifests grant, and take it back: other tests share the control plane."""
    folders = [ROOT / "manifests" / "components" / name for name in components]
    files = [folder / file for folder in folders for file in ("role.yaml", "admission.yaml")]
    bodies = [b for file in files for b in yaml.safe_load_all(await asyncio.to_thread(file.read_text))]
    text = yaml.safe_dump_all(bodies)
    await cluster.kubectl("apply", "--server-side", "-f", "-", stdin=text)
    try:
        yield
    finally:
        await cluster.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=text)


@dataclass(frozen=True, slots=True)
class Site:
    """Some nodes with an example driver of their own, whose base publishes whole GPUs, and its GpuPartitionDriver."""

    base: BaseDriver
    driver: str
    """Name of the GpuPartitionDriver; its nodes carry `pool: <this>`."""
    nodes: list[str]
    user: str
    """A namespace for those who use the GPUs."""


async def site(
    cluster: Cluster, nodes: int, *, max_unavailable: int | str = "100%", env: Mapping[str, str] | None = None
) -> Site:
    """Furnish so many nodes, and wait until each has published its 8 GPUs (as the base's `env` says)."""
    base = await cluster.example_driver(env=env)
    names = await cluster.nodes(nodes, pool=base.pool)
    name = await driver(cluster, base, max_unavailable=max_unavailable)
    user = await cluster.namespace("user")
    parts = int((env or {}).get("GPU_PARTITIONS", 0))
    for node in names:
        await cluster.published(devices(parts), node=node, driver=base.driver)
    return Site(base, name, names, user)


def devices(parts: int) -> int:
    """How many devices a node with 8 GPUs publishes; 0 parts: in one piece."""
    return 8 * (parts + 1)


def whole(**more: Any) -> Object:
    """A layout: every GPU in one piece."""
    return {"name": "whole", "match": {"all": True}, "type": "Whole", **more}


def equal(parts: int, **more: Any) -> Object:
    """A layout: every GPU in equal parts."""
    return {"name": f"parts-{parts}", "match": {"all": True}, "type": "Equal", "equal": {"parts": parts}, **more}


def policy(
    name: str,
    driver: str,
    *layouts: Object,
    selector: Mapping[str, str] | None = None,
    rollout: Object | None = None,
    **spec: Any,
) -> Object:
    """A policy over the nodes with `pool: <driver>`, or those of the selector. `rollout` and further fields as users write them."""
    return {
        "apiVersion": API_VERSION,
        "kind": "GpuPartitionPolicy",
        "metadata": {"name": name},
        "spec": {
            "driver": driver,
            "nodeSelector": {"matchLabels": dict(selector or {"pool": driver})},
            "layouts": list(layouts),
            **({"rollout": rollout} if rollout else {}),
            **spec,
        },
    }


KINDS: Final = {"GpuPartitionDriver": DRIVERS, "GpuPartitionPolicy": POLICIES}


async def apply(cluster: Cluster, body: Object) -> Object:
    """Apply one of our objects as GitOps does, server-side; what is left out of it is taken away."""
    return await cluster.client.apply(KINDS[body["kind"]], body, field_manager="gitops", force=True)


async def annotate(cluster: Cluster, kind: Kind, name: str, **notes: str | None) -> None:
    """Annotate an object under `gpupartition.dev/`; None takes an annotation away. `_` stands for `-`."""
    prefixed = {f"gpupartition.dev/{note.replace('_', '-')}": value for note, value in notes.items()}
    await cluster.client.patch(kind, name, {"metadata": {"annotations": prefixed}})


async def freeze(cluster: Cluster, reason: str = "") -> None:
    """Have nothing begun."""
    metadata = {"name": FREEZE_CONFIG_MAP, "namespace": OPERATOR_NAMESPACE}
    body: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"reason": reason}}
    await cluster.client.create(CONFIG_MAPS, body)


async def unfreeze(cluster: Cluster) -> None:
    await cluster.client.delete(CONFIG_MAPS, FREEZE_CONFIG_MAP, namespace=OPERATOR_NAMESPACE)


async def fault(cluster: Cluster, node: str, switches: str | None) -> None:
    """Set the fault switches of a node's simulated driver (testbed/faults.py); None heals it."""
    await cluster.client.patch(NODES, node, {"metadata": {"annotations": {"testbed.gpupartition.dev/fault": switches}}})


# ── what status says ──────────────────────────────────────────────────────────────────────────────────────────────────


def condition(body: Object, kind: str) -> Object:
    """A condition of an object; {} where it is absent."""
    found = [each for each in body.get("status", {}).get("conditions", ()) if each["type"] == kind]
    return found[0] if found else {}


def says(body: Object, kind: str) -> tuple[str, str]:
    """Status and reason of a condition, as of the present generation; ("", "") where it is absent or of an earlier one."""
    found = condition(body, kind)
    current = body.get("status", {}).get("observedGeneration") == body["metadata"]["generation"]
    return (found["status"], found["reason"]) if found and current else ("", "")


async def said(cluster: Cluster, name: str, kind: str, status: str, reason: str = "", *, within: float = 60) -> Object:
    """Wait until a policy says so of its present generation; returns the policy."""

    async def look() -> Object:
        body = await cluster.client.get(POLICIES, name)
        answer = says(body, kind)
        assert answer[0] == status, body.get("status")
        assert reason in {"", answer[1]}, body.get("status")
        return body

    return await eventually(look, within=within)


async def ready(cluster: Cluster, name: str, reason: str = "RolloutComplete", *, within: float = 60) -> Object:
    """Wait until a policy is Ready=True with this reason; returns the policy."""
    return await said(cluster, name, "Ready", "True", reason, within=within)


async def stalled(cluster: Cluster, name: str, reason: str, *, within: float = 30) -> Object:
    """Wait until a policy is Stalled=True with this reason; returns the policy."""
    return await said(cluster, name, "Stalled", "True", reason, within=within)


async def records(cluster: Cluster) -> dict[str, Object]:
    """Every node's record, by node."""
    return {each["metadata"]["name"]: each for each in (await cluster.client.list(NODE_STATES)).items}


async def phases(cluster: Cluster) -> dict[str, str]:
    """Every recorded node's phase."""
    return {name: body.get("status", {}).get("phase", "") for name, body in (await records(cluster)).items()}


async def reaches(cluster: Cluster, node: str, phase: str, *, within: float = 30) -> Object:
    """Wait until a node is in a phase; returns its record. For phases that pass quickly look at a Watcher's history."""

    async def look() -> Object:
        record = await cluster.client.get(NODE_STATES, node)
        assert record["status"]["phase"] == phase, record["status"]
        return record

    return await eventually(look, within=within)


async def at_rest(cluster: Cluster, *, within: float = 30) -> None:
    """Wait until nothing of any attempt is left: records at rest without token and finalizer, empty ledgers, no rule."""

    async def look() -> bool:
        for body in (await records(cluster)).values():
            assert body["status"]["phase"] in AT_REST, body["status"]
            assert not body["status"].get("token"), body["status"]
            assert not body["metadata"].get("finalizers"), body["metadata"]
        for body in (await cluster.client.list(DRIVERS)).items:
            assert not body.get("status", {}).get("inFlight"), body["status"]
        rules = await taint_rules(cluster.client)
        assert not rules, [rule["metadata"]["name"] for rule in rules]
        return True

    await eventually(look, within=within)


async def driver_pod(cluster: Cluster, base: BaseDriver, node: str) -> Object:
    """The one pod of the example driver on a node that is not ending; waits for it."""

    async def look() -> Object:
        listed = await cluster.client.list(PODS, namespace=base.namespace, field_selector=f"spec.nodeName={node}")
        pods = [each for each in listed.items if (each["metadata"].get("labels") or {}).get("controller-revision-hash")]
        living = [each for each in pods if "deletionTimestamp" not in each["metadata"]]
        assert len(living) == 1, [each["metadata"]["name"] for each in pods]
        return living[0]

    return await eventually(look)
