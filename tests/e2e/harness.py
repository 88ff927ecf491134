"""What end-to-end tests speak: a cluster of their own on a shared control plane, and waiting for conditions.

Tests of one worker run one after another on one control plane. Each makes its own nodes, namespaces and drivers; when it ends, all
that it and the operator left behind is swept away, so the next one finds a fresh cluster.
"""

import asyncio
import contextlib
import inspect
import json
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar, overload

from testbed import nodes
from testbed.admin import Admin
from testbed.controlplane import ControlPlane, python_env
from testbed.programs import Program

from gpupartition import kinds
from gpupartition.kube import (
    CONFIG_MAPS,
    DAEMON_SETS,
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_SLICES,
    SERVICE_ACCOUNTS,
    ApiError,
    Client,
    Kind,
    NotFound,
    NotServed,
    Object,
)
from gpupartition.names import FREEZE_CONFIG_MAP, GROUP, OPERATOR_NAMESPACE

T = TypeVar("T")

TEST_LABEL: Final = "testbed.gpupartition.dev/test"
POLL_SECONDS: Final = 0.05
TURNED_AWAY: Final = {0, 429}  # no answer, and "ask later"

DRIVERS, NODE_STATES, POLICIES = kinds.DRIVERS, kinds.NODE_STATES, kinds.POLICIES


async def taint_rules(client: Client) -> list[Object]:
    """All DeviceTaintRules; none where the API server does not serve them, as by default on Kubernetes 1.36."""
    with contextlib.suppress(NotServed):
        return (await client.list(DEVICE_TAINT_RULES)).items
    return []


@overload
async def eventually(condition: Callable[[], Coroutine[Any, Any, T]], *, within: float = 30) -> T: ...
@overload
async def eventually(condition: Callable[[], T], *, within: float = 30) -> T: ...
async def eventually(condition: Callable[[], Any], *, within: float = 30) -> Any:
    """Ask until `condition` gives something true, and return that.

    An AssertionError, NotFound or NotServed in it means "not yet". After `within` seconds: AssertionError with its last answer.
    """
    deadline = time.monotonic() + within
    while True:
        last: object
        try:
            answer = condition()
            value = await answer if inspect.isawaitable(answer) else answer
            if value:
                return value
            last = value
        except (AssertionError, NotFound, NotServed) as error:
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(f"not so after {within:g} s: {_source(condition)}\nlast answer: {last!r}")
        await asyncio.sleep(POLL_SECONDS)


async def follow(
    client: Client, kind: Kind, version: str, *, namespace: str | None = None, field_selector: str = ""
) -> AsyncGenerator[tuple[str, Object]]:
    """Yield (ADDED | MODIFIED | DELETED, object) for ever, from just after `version`.

    Goes on where it was when a watch ends, is cut off, or is turned away for a while, as all of a custom kind are when another
    kind is installed ("storage is (re)initializing"), or all when etcd is away. Raises Gone and all else.
    """
    while True:
        try:
            async for what, body in client.watch(
                kind, resource_version=version, namespace=namespace, field_selector=field_selector
            ):
                version = body["metadata"]["resourceVersion"]
                if what != "BOOKMARK":
                    yield what, body
        except ApiError as error:
            if error.status not in TURNED_AWAY and error.status < 500:
                raise
            await asyncio.sleep(POLL_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseDriver:
    """An example driver of one test: the base DaemonSet that a GpuPartitionDriver names."""

    namespace: str
    daemon_set: str
    driver: str
    """DRIVER_NAME, and the name of its DeviceClass."""
    pool: str
    """Its nodes carry `pool: <this>`."""


@dataclass(kw_only=True)
class Cluster:
    """One test's view of the control plane. `client` is the administrator's."""

    name: str
    controlplane: ControlPlane
    client: Admin
    operators: list[Program] = field(default_factory=list)
    _nodes: list[str] = field(default_factory=list)
    _created: list[tuple[Kind, str, str | None]] = field(default_factory=list)
    _audit_from: int = 0

    @property
    def labels(self) -> dict[str, str]:
        """On every node of this test, and on nobody else's."""
        return {TEST_LABEL: self.name}

    async def create(self, kind: Kind, body: Object) -> Object:
        """Create an object that is deleted when the test ends."""
        made = await self.client.create(kind, body)
        self._created.append((kind, made["metadata"]["name"], made["metadata"].get("namespace")))
        return made

    async def namespace(self, suffix: str = "") -> str:
        """Make a namespace in which pods can be created."""
        name = f"{self.name}-{suffix}" if suffix else self.name
        await self.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        await eventually(lambda: self.client.get(SERVICE_ACCOUNTS, "default", namespace=name))
        return name

    async def nodes(
        self,
        count: int = 1,
        *,
        pool: str = "none",
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Object] = (),
    ) -> list[str]:
        """Make Ready nodes, alternating between two zones; `pool="gpu"` gives them the example driver that all tests share."""
        first = len(self._nodes)
        names = [f"{self.name}-n{number}" for number in range(first + 1, first + count + 1)]
        for number, name in enumerate(names, first):
            zone = nodes.ZONES[number % len(nodes.ZONES)]
            own = {**self.labels, "pool": pool, **(labels or {})}
            self._nodes.append(name)
            body = nodes.node(name, zone=zone, labels=own)
            await self.client.create(NODES, {**body, "spec": {"taints": list(taints)}})
        await eventually(lambda: self._all_ready(names))
        return names

    async def example_driver(self, *, gpus: int = 8, env: Mapping[str, str] | None = None) -> BaseDriver:
        """Install an example driver for this test alone, with a driver name, DeviceClass, namespace and pool of its own."""
        namespace = await self.namespace("driver")
        base = BaseDriver(
            namespace=namespace, daemon_set=nodes.BASE_DAEMON_SET, driver=f"{self.name}.example.com", pool=self.name
        )
        for kind, body in nodes.example_driver(gpus):
            if kind is NAMESPACES:
                continue
            if kind.namespaced:
                body["metadata"]["namespace"] = namespace
            if kind is DEVICE_CLASSES:
                body["metadata"]["name"] = base.driver
                body["spec"]["selectors"] = [{"cel": {"expression": f"device.driver == '{base.driver}'"}}]
            if kind is DAEMON_SETS:
                _make_own(body, base, env or {})
            await self.create(kind, body)
        return base

    async def published(self, count: int, *, node: str, driver: str = "gpu.example.com") -> list[Object]:
        """Wait until a node's pool of a driver has exactly `count` devices; returns its slices."""

        async def complete() -> list[Object]:
            slices = (
                await self.client.list(RESOURCE_SLICES, field_selector=f"spec.nodeName={node},spec.driver={driver}")
            ).items
            devices = [device["name"] for each in slices for device in each["spec"].get("devices", [])]
            assert len(devices) == count, devices
            assert all(each["spec"]["pool"]["resourceSliceCount"] == len(slices) for each in slices)
            return slices

        return await eventually(complete)

    async def pod(
        self, name: str, *, namespace: str, spec: Object | None = None, **metadata: Mapping[str, str]
    ) -> Object:
        """Create a pod on one of this test's nodes, with `spec` laid over a plain one. Does not wait for it."""
        plain: Object = {"containers": [{"name": "main", "image": "busybox"}], "nodeSelector": self.labels}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, **metadata},
            "spec": {**plain, **(spec or {})},
        }
        return await self.client.create(PODS, body)

    async def holder(
        self,
        name: str,
        *,
        namespace: str,
        node: str = "",
        device_class: str = "gpu.example.com",
        cel: str = "",
        tolerating: bool = False,
        **metadata: Mapping[str, str],
    ) -> Object:
        """Create a pod that claims one device of the class (that fits `cel`). Does not wait for it.

        On `node`, if given; `tolerating` every taint of devices, if asked.
        """
        exactly: Object = {"deviceClassName": device_class}
        if cel:
            exactly["selectors"] = [{"cel": {"expression": cel}}]
        if tolerating:
            exactly["tolerations"] = [{"operator": "Exists"}]
        template = {
            "apiVersion": RESOURCE_CLAIM_TEMPLATES.api_version,
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
        }
        await self.client.create(RESOURCE_CLAIM_TEMPLATES, template)
        spec: Object = {
            "containers": [{"name": "main", "image": "busybox", "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": name}],
        }
        if node:
            spec["nodeSelector"] = {"kubernetes.io/hostname": node}
        return await self.pod(name, namespace=namespace, spec=spec, **metadata)

    async def running(self, name: str, *, namespace: str) -> Object:
        """Wait until a pod is Running; returns it."""
        return await self.in_phase("Running", name, namespace=namespace)

    async def in_phase(self, phase: str, name: str, *, namespace: str) -> Object:
        """Wait until a pod is in a phase; returns it."""

        async def look() -> Object:
            pod = await self.client.get(PODS, name, namespace=namespace)
            assert pod["status"].get("phase") == phase, pod["status"]
            return pod

        return await eventually(look)

    async def gone(self, kind: Kind, name: str, *, namespace: str | None = None, within: float = 30) -> None:
        """Wait until an object does not exist."""

        async def look() -> bool:
            try:
                await self.client.get(kind, name, namespace=namespace)
            except NotFound:
                return True
            return False

        await eventually(look, within=within)

    async def kubelet_stops(self, node: str) -> None:
        """Make a node NotReady, as when its kubelet has died."""
        await self.client.patch(NODES, node, {"metadata": {"annotations": {nodes.KUBELET: "stopped"}}})
        ready = {
            "type": "Ready",
            "status": "False",
            "reason": "KubeletNotReady",
            "message": "the simulated kubelet is stopped",
            "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        body = await self.client.get(NODES, node)
        others = [each for each in body["status"]["conditions"] if each["type"] != "Ready"]
        await self.client.patch(NODES, node, {"status": {"conditions": [*others, ready]}}, subresource="status")

    async def kubelet_starts(self, node: str, *, rebooted: bool = False) -> None:
        """Make a node Ready again, after a reboot with a new boot ID."""
        if rebooted:
            status = {"status": {"nodeInfo": {"bootID": nodes.node_info()["bootID"]}}}
            await self.client.patch(NODES, node, status, subresource="status")
        await self.client.patch(NODES, node, {"metadata": {"annotations": {nodes.KUBELET: None}}})
        await eventually(lambda: self._all_ready([node]))

    async def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """Run kubectl as the administrator; returns what it prints."""
        return await self.controlplane.kubectl(*arguments, stdin=stdin)

    def audit(self, *, user: str = "", user_agent: str = "") -> list[dict[str, Any]]:
        """All requests since the test began, oldest first, of users and user agents that begin so."""
        with self.controlplane.files.audit_log.open("rb") as log:
            log.seek(self._audit_from)
            lines = log.read().splitlines(keepends=True)
        # The test may have begun, and may look, in the middle of a line.
        entries = [json.loads(line) for line in lines if line.startswith(b"{") and line.endswith(b"\n")]
        return [
            each
            for each in entries
            if each["user"]["username"].startswith(user) and each.get("userAgent", "").startswith(user_agent)
        ]

    async def start_operator(
        self, *arguments: str, env: Mapping[str, str] | None = None, module: str = "gpupartition"
    ) -> Program:
        """Run `gpupartition run` with the operator's own rights until the test ends. Does not wait until it is ready."""
        kubeconfig = self.controlplane.files.kubeconfig("operator")
        if not await asyncio.to_thread(kubeconfig.exists):
            await self.controlplane.install_operator()
        number = len(self.operators) + 1
        log = self.controlplane.files.log(f"{self.name}-operator-{number}")
        command: list[str | Path] = [
            sys.executable,
            "-m",
            module,
            "run",
            "--kubeconfig",
            kubeconfig,
            *arguments,
        ]
        program = Program(f"operator {number}", command, log=log, env={**python_env(), **(env or {})})
        self.operators.append(program)
        await program.start()
        return program

    async def sweep(self) -> None:
        """Stop the operators and remove all that the test and they have made."""
        for program in self.operators:
            await program.stop()
        for kind in (POLICIES, NODE_STATES, DRIVERS):
            with contextlib.suppress(NotServed):  # the CRDs are installed by the tests that need them
                for each in (await self.client.list(kind)).items:
                    await self._remove(kind, each["metadata"]["name"])
        for kind, label in ((CONFIG_MAPS, GROUP), (DAEMON_SETS, GROUP)):
            for each in (await self.client.list(kind, namespace=nodes.DRIVER_NAMESPACE)).items:
                if any(key.startswith(label) for key in each["metadata"].get("labels") or {}):
                    await self._remove(kind, each["metadata"]["name"], nodes.DRIVER_NAMESPACE)
        for each in await taint_rules(self.client):
            await self._remove(DEVICE_TAINT_RULES, each["metadata"]["name"])
        await self._remove(CONFIG_MAPS, FREEZE_CONFIG_MAP, OPERATOR_NAMESPACE)
        for each in (await self.client.list(LEASES, namespace=OPERATOR_NAMESPACE)).items:
            await self._remove(LEASES, each["metadata"]["name"], OPERATOR_NAMESPACE)
        for kind, name, namespace in reversed(self._created):
            await self._remove(kind, name, namespace)
        for name in self._nodes:
            await self._remove(NODES, name)
            # A node that is gone has no kubelet to end its pods.
            for pod in (await self.client.list(PODS, field_selector=f"spec.nodeName={name}")).items:
                with contextlib.suppress(NotFound):
                    await self.client.kill(PODS, pod["metadata"]["name"], namespace=pod["metadata"]["namespace"])

    async def _remove(self, kind: Kind, name: str, namespace: str | None = None) -> None:
        with contextlib.suppress(NotFound):
            if kind is not NAMESPACES:
                await self.client.patch(kind, name, {"metadata": {"finalizers": None}}, namespace=namespace)
            await self.client.delete(kind, name, namespace=namespace)

    async def _all_ready(self, names: list[str]) -> bool:
        listing = await self.client.list(NODES, label_selector=f"{TEST_LABEL}={self.name}")
        ready = {each["metadata"]["name"] for each in listing.items if nodes.is_ready(each)}
        return ready.issuperset(names)


@asynccontextmanager
async def cluster(controlplane: ControlPlane, name: str) -> AsyncIterator[Cluster]:
    """Give one test its cluster, and sweep up after it."""
    async with controlplane.client() as client:
        size = controlplane.files.audit_log.stat().st_size
        own = Cluster(name=name, controlplane=controlplane, client=client, _audit_from=size)
        try:
            yield own
        finally:
            await own.sweep()


def _source(condition: Callable[[], Any]) -> str:
    try:
        return inspect.getsource(condition).strip()
    except (OSError, TypeError):  # a partial, or typed into a shell
        return repr(condition)


def _make_own(daemon_set: Object, base: BaseDriver, env: Mapping[str, str]) -> None:
    spec = daemon_set["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    for name, value in {"DRIVER_NAME": base.driver, **env}.items():
        container["env"] = [each for each in container["env"] if each["name"] != name]
        container["env"].append({"name": name, "value": value})
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    for term in required["nodeSelectorTerms"]:
        for expression in term["matchExpressions"]:
            if expression["key"] == "pool":
                expression["values"] = [base.pool]
