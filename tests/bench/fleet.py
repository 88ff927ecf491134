"""A large cluster, written straight to an API server: nodes with GPUs, slices as the operator publishes them, claims that have devices."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from gpupartition.api.v1alpha1 import DriverSpec, DriverType, PolicySpec
from gpupartition.backends import BACKENDS
from gpupartition.backends.slices import Target
from gpupartition.domain.backend import Cluster, NodeFacts
from gpupartition.kube import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES

if TYPE_CHECKING:
    from collections.abc import Iterable

    import aiohttp

    from gpupartition.domain.backend import Config
    from gpupartition.kube import Client, Kind

Object = dict[str, Any]

DRIVER_NAME: Final = "gpu.example.org"
PRODUCT: Final = "NVIDIA H100 80GB HBM3"
GPUS: Final = 8
LANES: Final = 48
LABELS: Final = {"pool": "fleet", "nvidia.com/gpu.product": PRODUCT.replace(" ", "-")}
HALVES: Final[Object] = {"name": "cut", "match": {"all": True}, "type": "Equal", "equal": {"parts": 2}}
QUARTERS: Final[Object] = HALVES | {"equal": {"parts": 4}}
PROFILES: Final = ("1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
CHOICES: Final[Object] = {"name": "cut", "match": {"all": True}, "type": "Choices", "choices": {"profiles": PROFILES}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """So many nodes of this layout, with so many claims each."""

    nodes: int
    claims: int
    layout: Object

    def names(self) -> list[str]:
        """The nodes, in order."""
        return [f"node-{number:05}" for number in range(self.nodes)]

    def config(self, layout: Object) -> Config:
        """What a policy with this layout comes to on each of the nodes."""
        wanted = PolicySpec.model_validate(policy("fleet", layout)["spec"])
        backend = BACKENDS[DriverType.PUBLISH]
        return backend.compile(
            DriverSpec.model_validate(driver()["spec"]), wanted, NodeFacts(node=node("n")), Cluster()
        )

    async def populate(self, client: Client) -> int:
        """Write all of it; returns how many slices that was."""
        names = self.names()
        async with client.session() as session:
            writer = _Writer(client.server, session)
            there = await writer.each(NODES, (node(name) for name in names))
            uids = {each["metadata"]["name"]: str(each["metadata"]["uid"]) for each in there}
            config = self.config(self.layout)
            slices = [body for name in names for body in published(config, name, uids[name])]
            await writer.each(RESOURCE_SLICES, slices)
            devices = [device.name for device in config.pool.devices if not device.name.endswith("full")]
            claims = [
                claim(f"{name}-{number}", name, devices[number]) for name in names for number in range(self.claims)
            ]
            made = await writer.each(RESOURCE_CLAIMS, ({**each, "status": {}} for each in claims), namespace="default")
            version = {each["metadata"]["name"]: each["metadata"] for each in made}
            await writer.each(
                RESOURCE_CLAIMS,
                ({**each, "metadata": version[each["metadata"]["name"]]} for each in claims),
                namespace="default",
                subresource="status",
            )
        return len(slices)

    async def beat(self, client: Client) -> None:
        """Have the kubelet of every node say that it is alive."""
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        async with client.session() as session:
            bodies = map(node, self.names())
            alive = ({**body, "status": _alive(body["status"], now)} for body in bodies)
            await _Writer(client.server, session).each(NODES, alive, subresource="status")


class _Writer:
    """Writes many objects, LANES at once."""

    def __init__(self, server: str, session: aiohttp.ClientSession) -> None:
        self._server = server
        self._session = session

    async def each(
        self, kind: Kind, bodies: Iterable[Object], *, namespace: str | None = None, subresource: str = ""
    ) -> list[Object]:
        """Create each, or replace a subresource of each; returns what the server has of them."""
        todo = iter(bodies)
        answers: list[Object] = []

        async def lane() -> None:
            for body in todo:
                name = body["metadata"]["name"] if subresource else ""
                url = self._server + kind.path(namespace, name) + (f"/{subresource}" if subresource else "")
                send = self._session.put if subresource else self._session.post
                text = json.dumps({"apiVersion": kind.api_version, **body})
                async with send(url, data=text, headers={"Content-Type": "application/json"}) as response:
                    answer = await response.json()
                    assert response.status < 300, answer
                    answers.append(answer)

        async with asyncio.TaskGroup() as lanes:
            for _ in range(LANES):
                lanes.create_task(lane())
        return answers


def _alive(status: Object, now: str) -> Object:
    return {**status, "conditions": [{**each, "lastHeartbeatTime": now} for each in status["conditions"]]}


def node(name: str) -> Object:
    """A Node as a kubelet registers it, Ready."""
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    others = [
        {"type": kind, "status": "False", "reason": "KubeletHas", "message": "kubelet has sufficient resources"}
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure")
    ]
    info = {
        "bootID": f"boot-of-{name}",
        "architecture": "amd64",
        "containerRuntimeVersion": "containerd://2.1.4",
        "kernelVersion": "6.8.0-60-generic",
        "kubeProxyVersion": "",
        "kubeletVersion": "v1.37.0",
        "machineID": f"machine-of-{name}",
        "operatingSystem": "linux",
        "osImage": "Ubuntu 24.04.2 LTS",
        "systemUUID": f"system-of-{name}",
    }
    images = [{"names": [f"registry.example.com/team/image-{n}:1.{n}"], "sizeBytes": 10**9 + n} for n in range(20)]
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": LABELS | {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
        "spec": {"providerID": f"example:///{name}"},
        "status": {
            "capacity": {"cpu": "192", "memory": "2Ti", "pods": "110"},
            "allocatable": {"cpu": "190", "memory": "1900Gi", "pods": "110"},
            "conditions": [*others, ready],
            "addresses": [{"type": "Hostname", "address": name}],
            "nodeInfo": info,
            "images": images,
        },
    }


def published(config: Config, name: str, uid: str) -> list[Object]:
    """A node's slices."""
    backend = BACKENDS[DriverType.PUBLISH]
    of = {"metadata": {"name": name, "uid": uid}}
    pool_name = backend.pool_name(DriverSpec.model_validate(driver()["spec"]), name)
    target = Target(driver=DRIVER_NAME, pool_name=pool_name, nodes=[of], pool=config.pool, assignment=config.assignment)
    return target.bodies(1, "step")


def claim(name: str, node_name: str, device: str) -> Object:
    """A claim that has one device of a node, for one pod."""
    request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER_NAME}}
    result = {"request": "gpu", "driver": DRIVER_NAME, "pool": f"{DRIVER_NAME}/{node_name}", "device": device}
    on = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node_name]}]}
    return {
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [request]}},
        "status": {
            "allocation": {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [on]}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": f"uid-of-{name}"}],
        },
    }


def driver(gpus: int = GPUS) -> Object:
    """The GpuPartitionDriver of all the nodes, of which each has so many GPUs."""
    group = {"count": gpus, "product": PRODUCT, "memory": "80Gi"}
    return {
        "apiVersion": "gpupartition.dev/v1alpha1",
        "kind": "GpuPartitionDriver",
        "metadata": {"name": "fleet"},
        "spec": {"type": "Publish", "publish": {"driverName": DRIVER_NAME, "inventory": {"gpus": [group]}}},
    }


def policy(name: str, layout: Object, **spec: Any) -> Object:
    """A policy for all the nodes."""
    return {
        "apiVersion": "gpupartition.dev/v1alpha1",
        "kind": "GpuPartitionPolicy",
        "metadata": {"name": name},
        "spec": {
            "driver": "fleet",
            "nodeSelector": {"matchLabels": {"pool": "fleet"}},
            "layouts": [layout],
            **spec,
        },
    }
