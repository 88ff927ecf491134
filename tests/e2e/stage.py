"""The scene of most roll-outs: nodes that publish whole GPUs, the driver that they have, and what happens on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tests.e2e import rollout
from tests.e2e.harness import DRIVERS, NODE_STATES, POLICIES, eventually, taint_rules

from gpupartition.kube import (
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Invalid,
)
from gpupartition.names import CORDONED, LAYOUT, STEP, TAINT_KEY

if TYPE_CHECKING:
    from tests.e2e.harness import BaseDriver, Cluster
    from tests.e2e.history import Instant, Watcher

    from gpupartition.kube import Client, Object

WHOLE: Final = 8  # devices that a node with 8 GPUs publishes
HALVES: Final = 24  # each GPU's two halves, and itself

WAIT: Final = {"drain": {"mode": "Wait"}}

IN_FLIGHT: Final = ("Admitted", "Quiescing", "Draining", "Applying", "Verifying", "Releasing")
ONCE: Final = [*IN_FLIGHT, "UpToDate"]
"""What a node goes through that is changed once, without a mishap."""
CLOSED: Final = frozenset({"Draining", "Applying", "Verifying", "RollingBack", "Failed"})
"""The phases in which a node must be closed to new claims."""

OPERATOR: Final = "system:serviceaccount:gpupartition-system:gpupartition"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Nodes in one piece, and the driver of this test; its policy is named like the test."""

    cluster: Cluster
    base: BaseDriver
    driver: str
    nodes: list[str]

    async def want_halves(self, **spec: Any) -> str:
        """Apply a policy that wants every GPU in halves; returns its name."""
        await rollout.apply(self.cluster, rollout.policy(self.cluster.name, self.driver, rollout.equal(2), **spec))
        return self.cluster.name

    async def publishes(self, count: int, *nodes: str) -> None:
        """Wait until each of these nodes (of all) publishes so many devices."""
        for node in nodes or self.nodes:
            await self.cluster.published(count, node=node, driver=self.base.driver)

    async def layout(self, node: str) -> str | None:
        """The assignment that a node carries; None: it runs the base."""
        labels = (await self.cluster.client.get(NODES, node))["metadata"]["labels"]
        return str(labels[LAYOUT]) if LAYOUT in labels else None

    async def rule(self, node: str) -> Object | None:
        """The node's DeviceTaintRule."""
        rules = await taint_rules(self.cluster.client)
        return next((r for r in rules if r["spec"]["deviceSelector"].get("pool") == node), None)

    async def closed_by(self, node: str) -> str:
        """What keeps new claims off a node, as it stands: the operator's rule, or its cordon where there are no rules; "": nothing."""
        rule = await self.rule(node)
        if rule is not None and rule["spec"]["taint"]["effect"] == "NoSchedule":
            return f"rule {rule['metadata']['uid']} {rule['metadata']['generation']}"
        body = await self.cluster.client.get(NODES, node)
        token = body["metadata"].get("annotations", {}).get(CORDONED)
        return f"cordon {token}" if token is not None and body["spec"].get("unschedulable") else ""

    async def in_flight(self) -> list[str]:
        """The nodes in the driver's ledger; none where the driver is gone."""
        drivers = (await self.cluster.client.list(DRIVERS)).items
        mine = [each for each in drivers if each["metadata"]["name"] == self.driver]
        return [grant["node"] for each in mine for grant in each.get("status", {}).get("inFlight", ())]

    async def pod_uid(self, node: str) -> str:
        """UID of the node's driver pod; waits for it."""
        return str((await rollout.driver_pod(self.cluster, self.base, node))["metadata"]["uid"])

    async def hold(self, node: str, *, tolerating: bool = False, name: str = "holder") -> Holder:
        """Have a pod claim a device of the node, `tolerating` even a quiesced one; waits until it runs."""
        client, namespace = self.cluster.client, self.base.namespace
        exactly: Object = {"deviceClassName": self.base.driver}
        if tolerating:
            exactly["tolerations"] = [{"key": TAINT_KEY, "operator": "Exists"}]
            # The admission policy keeps claims from doing so; a namespace can be let out, which takes the API server a moment to learn.
            label = {"metadata": {"labels": {"gpupartition.dev/may-tolerate": "true"}}}
            await client.patch(NAMESPACES, namespace, label)
        template = {
            "apiVersion": RESOURCE_CLAIM_TEMPLATES.api_version,
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
        }
        await eventually(lambda: _created(client, template))
        spec: Object = {
            "containers": [{"name": "main", "image": "busybox", "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": name}],
            "nodeSelector": {"kubernetes.io/hostname": node},
        }
        await self.cluster.pod(name, namespace=namespace, spec=spec)
        pod = await self.cluster.running(name, namespace=namespace)
        claim = pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
        return Holder(cluster=self.cluster, namespace=namespace, pod=name, claim=claim, node=node)


async def _created(client: Client, template: Object) -> bool:
    try:
        await client.create(RESOURCE_CLAIM_TEMPLATES, template)
    except Invalid:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A pod that has a device of a node, and its claim."""

    cluster: Cluster
    namespace: str
    pod: str
    claim: str
    node: str

    async def end(self) -> None:
        """End the pod; waits until its device is free."""
        await self.cluster.client.delete(PODS, self.pod, namespace=self.namespace)
        await self.cluster.gone(RESOURCE_CLAIMS, self.claim, namespace=self.namespace)

    def layouts(self, history: Watcher) -> list[tuple[str, ...]]:
        """The different complete sets of devices that the node published while this claim had one of them, in order."""
        seen: list[tuple[str, ...]] = []
        for now in history.instants():
            if not self._is_held(now):
                continue
            slices = [s["spec"] for s in now.objects(RESOURCE_SLICES) if s["spec"].get("nodeName") == self.node]
            devices = tuple(sorted(d["name"] for s in slices for d in s.get("devices", ())))
            if seen[-1:] != [devices]:
                seen.append(devices)
        return seen

    def _is_held(self, now: Instant) -> bool:
        return any(
            claim["metadata"]["name"] == self.claim and claim.get("status", {}).get("allocation")
            for claim in now.objects(RESOURCE_CLAIMS)
        )


async def stage(cluster: Cluster, count: int, *, labels: dict[str, str] | None = None, **env: str) -> Stage:
    """Set up so many nodes, with the example driver of this test; `env` is for the simulated driver."""
    base = await cluster.example_driver(env=env)
    driver = await rollout.driver(cluster, base)
    nodes = await cluster.nodes(count, pool=base.pool, labels=labels)
    scene = Stage(cluster=cluster, base=base, driver=driver, nodes=nodes)
    await scene.publishes(WHOLE)
    return scene


def writes(cluster: Cluster, *resources: str, name: str = "") -> list[dict[str, Any]]:
    """What the operator has written, dry runs and refused writes left out: to these resources (to any), to objects of that name."""
    return [
        each
        for each in cluster.audit(user=OPERATOR)
        if each["verb"] in {"create", "update", "patch", "delete", "deletecollection"}
        and each["responseStatus"]["code"] < 300
        and "dryRun" not in each["requestURI"]
        and (not resources or each["objectRef"]["resource"] in resources)
        and name in {"", each["objectRef"].get("name", "")}
    ]


def closed_while_at_work(history: Watcher) -> None:
    """At every instant a node in a phase in which it must be closed was unschedulable, and in the operator's name."""
    for now in history.instants():
        phases = now.phases()
        at_work = {name for name, phase in phases.items() if phase in CLOSED}
        assert at_work <= now.quiesced(), (phases, now.quiesced(), now.change and now.change.key)


async def gone_from(scene: Stage, *nodes: str) -> None:
    """Wait until nothing of the operator's own is left of these nodes: record, rule, grant, annotation."""

    async def look() -> bool:
        records = await rollout.records(scene.cluster)
        for node in nodes:
            assert node not in records, records[node]["status"]
            assert await scene.rule(node) is None
            assert node not in await scene.in_flight()
        living = {body["metadata"]["name"]: body for body in (await scene.cluster.client.list(NODES)).items}
        for node in living.keys() & set(nodes):
            notes = living[node]["metadata"].get("annotations", {})
            assert not [key for key in notes if key.startswith("gpupartition.dev/")], notes
        return True

    await eventually(look)


async def lose_what_is_ours(cluster: Cluster) -> None:
    """Delete policies, drivers and records, as a cluster is without them that was restored from a backup of everything else."""
    for kind in (POLICIES, NODE_STATES, DRIVERS):
        for each in (await cluster.client.list(kind)).items:
            await cluster.client.patch(kind, each["metadata"]["name"], {"metadata": {"finalizers": None}})
            await cluster.client.delete(kind, each["metadata"]["name"])


async def halted_in(scene: Stage, node: str, phase: str, **spec: object) -> Holder | None:
    """Apply the policy and wait until the node stands still in the phase: under a holder, or with a driver that is slow to start."""
    holder = None
    if phase in {"Pending", "Draining"}:
        holder = await scene.hold(node)
    if phase == "Applying":
        await rollout.fault(scene.cluster, node, "slow-start=3@partitions=2")
    drain = {"rollout": WAIT} if phase == "Draining" else {}
    await scene.want_halves(**drain, **spec)
    record = await rollout.reaches(scene.cluster, node, phase)
    if phase == "Pending":
        await eventually(lambda: is_blocked(scene.cluster, node))
    if phase == "Applying":
        await eventually(lambda: step_is_written(scene.cluster, node, record["status"]["step"]))
    return holder


async def is_blocked(cluster: Cluster, node: str) -> bool:
    """Whether the node's record names a blocker."""
    return bool((await cluster.client.get(NODE_STATES, node))["status"].get("blockers"))


async def step_is_written(cluster: Cluster, node: str, step: str) -> bool:
    """Whether the node carries this step."""
    body = await cluster.client.get(NODES, node)
    return bool(body["metadata"].get("annotations", {}).get(STEP) == step)
