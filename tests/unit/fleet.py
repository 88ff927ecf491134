"""A cluster as lists: nodes of an example driver, their pods and slices, as an API server would list them. It answers nothing else."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, cast

import pytest
from testbed.drivers.example import Settings, draw
from testbed.nodes import BASE_DAEMON_SET, DRIVER_NAMESPACE, ZONES, example_driver, names, node

from gpupartition.controller.records import DRIVERS, POLICIES
from gpupartition.kube import (
    CONTROLLER_REVISIONS,
    DAEMON_SETS,
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Client,
    Kind,
    Listing,
    NotFound,
    Object,
)
from gpupartition.names import API_VERSION

REVISION: Final = "5d8f7c"
DRIVER: Final = "gpu.example.com"
RACK: Final = "example.com/rack"
READY: Final = [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]


class Fleet:
    """So many nodes with 8 GPUs in one piece, and the driver `example`."""

    def __init__(self, count: int) -> None:
        self.objects: dict[Kind, list[Object]] = defaultdict(list)
        (base,) = [body for kind, body in example_driver(8) if kind is DAEMON_SETS]
        base["metadata"] |= {"uid": "base", "generation": 1, "resourceVersion": "1"}
        self.objects[DAEMON_SETS] = [base]
        self.objects[CONTROLLER_REVISIONS] = [
            {
                "metadata": {
                    "name": f"{BASE_DAEMON_SET}-{REVISION}",
                    "namespace": DRIVER_NAMESPACE,
                    "ownerReferences": [OWNER],
                },
                "data": {"spec": {"template": base["spec"]["template"]}},
            }
        ]
        self.objects[DRIVERS] = [driver()]
        self.objects[DEVICE_CLASSES] = [device_class(DRIVER, f"device.driver == '{DRIVER}'")]
        self.nodes = names(count)
        for number, name in enumerate(self.nodes):
            self._add(name, ZONES[number % len(ZONES)])

    def is_connected_to(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whoever connects to a cluster comes to this one."""

        @asynccontextmanager
        async def connect(*_: object, **__: object) -> AsyncIterator[Client]:
            yield self.client

        monkeypatch.setattr(Client, "connect", connect)

    def _add(self, name: str, zone: str) -> None:
        body = node(name, zone=zone)
        body["metadata"] |= {"uid": str(uuid.uuid5(uuid.NAMESPACE_DNS, name)), "resourceVersion": "1"}
        body["status"]["conditions"] = READY
        self.objects[NODES].append(body)
        pod = {
            "metadata": {
                "name": f"{BASE_DAEMON_SET}-{name}",
                "namespace": DRIVER_NAMESPACE,
                "uid": f"pod-{name}",
                "labels": {"controller-revision-hash": REVISION},
                "ownerReferences": [OWNER],
            },
            "spec": {"nodeName": name},
            "status": {"phase": "Running", "conditions": READY},
        }
        self.objects[PODS].append(pod)
        self.publish(name)

    def publish(self, node: str, *, parts: int = 0) -> None:
        """Have a node publish its GPUs in so many parts."""
        kept = [s for s in self.objects[RESOURCE_SLICES] if s["spec"]["nodeName"] != node] if parts else None
        contents = draw(Settings(node=node, partitions=parts))
        pool = {"name": node, "generation": 1, "resourceSliceCount": len(contents)}
        made = [
            {
                "metadata": {"name": f"{node}-{place}", "resourceVersion": "1"},
                "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, **content},
            }
            for place, content in enumerate(contents)
        ]
        if kept is not None:
            self.objects[RESOURCE_SLICES] = kept
        self.objects[RESOURCE_SLICES] += made

    def hold(self, node: str, *, claim: str = "team-a/job-7", device: str = "gpu-0", ending: bool = False) -> None:
        """Allocate a device of a node to a claim, which a pod of the same name uses."""
        namespace, _, name = claim.partition("/")
        result = {"driver": DRIVER, "pool": node, "device": device, "request": "gpu"}
        body: Object = {
            "metadata": {"name": name, "namespace": namespace, "uid": claim},
            "spec": asking(),
            "status": {
                "allocation": {"devices": {"results": [result]}},
                "reservedFor": [{"resource": "pods", "name": name, "uid": name}],
            },
        }
        if ending:
            body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        self.objects[RESOURCE_CLAIMS].append(body)

    def want(self, claim: str, spec: Object | None = None, **metadata: str) -> None:
        """Have somebody wait for a device of the driver's class, or for what the spec says."""
        namespace, _, name = claim.partition("/")
        meta = {"name": name, "namespace": namespace, "uid": claim, **metadata}
        self.objects[RESOURCE_CLAIMS].append({"metadata": meta, "spec": spec or asking()})

    def run(self, pod: str, *, kind: str = "ReplicaSet") -> None:
        """Have the pod of a claim (of the same name), made by a controller of this kind, or by nobody ("")."""
        namespace, _, name = pod.partition("/")
        owners = [{"kind": kind, "name": "o", "uid": "o", "controller": True}] if kind else []
        meta = {"name": name, "namespace": namespace, "uid": name, "ownerReferences": owners}
        spec = {"nodeName": "somewhere", "resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}
        self.objects[PODS].append({"metadata": meta, "spec": spec, "status": {"phase": "Running"}})

    def in_racks(self, **racks: Sequence[str]) -> None:
        """Put nodes into racks, and add the driver `racks` that publishes their GPUs together, two in each node."""
        for name, nodes in racks.items():
            for body in self.objects[NODES]:
                if body["metadata"]["name"] in nodes:
                    body["metadata"]["labels"] |= {RACK: name, "kubernetes.io/hostname": body["metadata"]["name"]}
        publish = {
            "driverName": "racks.example.com",
            "inventory": {"gpus": [{"count": 2, "product": "H100", "memory": "80Gi"}]},
            "multiNode": {"groupLabel": RACK, "sizes": [2]},
        }
        spec = {"type": "Publish", "publish": publish, "maxUnavailable": "100%"}
        meta = {"name": "racks"}
        self.apply({"apiVersion": API_VERSION, "kind": "GpuPartitionDriver", "metadata": meta, "spec": spec})

    def not_ready(self, node: str) -> None:
        """Take the node's kubelet away, just now."""
        (body,) = [n for n in self.objects[NODES] if n["metadata"]["name"] == node]
        body["status"] = {**body["status"], "conditions": [{"type": "Ready", "status": "Unknown"}]}

    def apply(self, body: Object) -> None:
        """Add a policy (or a driver)."""
        kind = {"GpuPartitionPolicy": POLICIES, "GpuPartitionDriver": DRIVERS}[body["kind"]]
        name = body["metadata"]["name"]
        self.objects[kind] = [o for o in self.objects[kind] if o["metadata"]["name"] != name]
        self.objects[kind].append({**body, "metadata": {**body["metadata"], "uid": name, "generation": 1}})

    @property
    def client(self) -> Client:
        """This, as a client: it lists, and says that everything is served."""
        return cast("Client", self)

    async def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Object:
        """The object of this name. Raises NotFound."""
        for body in self.objects[kind]:
            if (body["metadata"]["name"], body["metadata"].get("namespace")) == (name, namespace):
                return body
        raise NotFound(f"get {kind} {name}", 404, "NotFound", "it is not there")

    async def find(self, kind: Kind, name: str, *, namespace: str | None = None) -> Object | None:
        """The object of this name, if there is one."""
        try:
            return await self.get(kind, name, namespace=namespace)
        except NotFound:
            return None

    async def list(
        self,
        kind: Kind,
        *,
        keep: Callable[[Object], Object | None] = lambda body: body,
        field_selector: str = "",
        **_: Any,
    ) -> Listing:
        """All objects of the kind, or those on one node (`spec.nodeName=`) or cordoned, or what `keep` makes of them."""
        found = self.objects[kind]
        field, node = field_selector.partition("=")[::2]
        if field == "spec.nodeName":
            found = [body for body in found if body["spec"].get("nodeName", "") == node]
        if field == "spec.unschedulable":
            found = [body for body in found if body.get("spec", {}).get("unschedulable")]
        return Listing(list(filter(None, map(keep, found))), "1")

    async def pages(self, kind: Kind, **_: Any) -> AsyncGenerator[Listing]:
        """All objects of the kind, at once."""
        yield await self.list(kind)

    async def raw(self, method: str, path: str) -> Any:
        """What a group serves."""
        assert (method, path) == ("GET", f"/apis/{DEVICE_TAINT_RULES.api_version}")
        return {"resources": [{"name": DEVICE_TAINT_RULES.plural}]}


OWNER: Final = {
    "apiVersion": "apps/v1",
    "kind": "DaemonSet",
    "name": BASE_DAEMON_SET,
    "uid": "base",
    "controller": True,
}


def asking(*selectors: str, device_class: str = DRIVER, **more: Any) -> Object:
    """The spec of a claim: one device of the class that all these expressions select."""
    chosen = [{"cel": {"expression": each}} for each in selectors]
    exactly = {"deviceClassName": device_class, **({"selectors": chosen} if chosen else {}), **more}
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}


def device_class(name: str, *selectors: str, **more: Any) -> Object:
    """A DeviceClass."""
    return {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": s}} for s in selectors], **more}}


def driver(*, max_unavailable: int | str = "100%") -> Object:
    """The driver of all these nodes."""
    ref = {"namespace": DRIVER_NAMESPACE, "name": BASE_DAEMON_SET}
    spec = {"type": "ExampleDriver", "exampleDriver": {"daemonSet": ref, "gpusPerNode": 8}}
    return {
        "apiVersion": API_VERSION,
        "kind": "GpuPartitionDriver",
        "metadata": {"name": "example", "uid": "example", "generation": 1},
        "spec": {**spec, "maxUnavailable": max_unavailable},
    }


def policy(
    name: str = "inference",
    *layouts: Object,
    rollout: Mapping[str, Any] | None = None,
    selector: Mapping[str, str] | None = None,
    **spec: Any,
) -> Object:
    """A policy over all nodes, or those of the selector; halves unless layouts are given."""
    return {
        "apiVersion": API_VERSION,
        "kind": "GpuPartitionPolicy",
        "metadata": {"name": name},
        "spec": {
            "driver": "example",
            "nodeSelector": {"matchLabels": dict(selector or {"pool": "gpu"})},
            "layouts": layouts or [equal(2)],
            "rollout": dict(rollout or {}),
            **spec,
        },
    }


def equal(parts: int) -> Object:
    """A layout: every GPU in equal parts."""
    return {"name": f"parts-{parts}", "match": {"all": True}, "type": "Equal", "equal": {"parts": parts}}


def whole() -> Object:
    """A layout: every GPU in one piece."""
    return {"name": "whole", "match": {"all": True}, "type": "Whole"}


__all__: Sequence[str] = ["DRIVER", "Fleet", "asking", "device_class", "driver", "equal", "policy", "whole"]
