"""What stands in a fresh cluster: simulated nodes, and GPU drivers as a platform team would install them."""

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from gpupartition.kube import (
    CONFIG_MAPS,
    DAEMON_SETS,
    DEVICE_CLASSES,
    NAMESPACES,
    SERVICE_ACCOUNTS,
    Kind,
    Object,
)
from testbed.build import RELEASES, release

MANIFEST: Final = Path(__file__).parent / "manifests" / "example-driver.yaml"
NVIDIA_MANIFEST: Final = MANIFEST.with_name("nvidia.yaml")
NVIDIA_LABELS: Final[Mapping[str, str]] = {
    "nvidia.com/gpu.present": "true",
    "nvidia.com/mig.capable": "true",
    "nvidia.com/mig.strategy": "mixed",
    "nvidia.com/mig.config": "all-disabled",
    "nvidia.com/gpu.deploy.mig-manager": "true",
    "nvidia.com/gpu.deploy.dcgm-exporter": "true",
}
"""What the GPU operator puts on a node with GPUs that can be cut, as far as anybody here reads it."""
NVIDIA_QUICK: Final[Mapping[str, str]] = {
    "TESTBED_MOUNT_SECONDS": "1",
    "TESTBED_STEP_SECONDS": "0.05",
    "TESTBED_POLL_SECONDS": "0.1",
    "TESTBED_POD_WAIT_SECONDS": "20",
    "TESTBED_REBOOT_SECONDS": "1",
    "TESTBED_SYNC_SECONDS": "1",
    "TESTBED_WIPE_SECONDS": "30",
}
"""How long things take in tests; without it as long as in reality."""
AMD_MANIFEST: Final = MANIFEST.with_name("amd.yaml")
AMD_LABELS: Final[Mapping[str, str]] = {"feature.node.kubernetes.io/amd-gpu": "true"}
"""What node feature discovery puts on a node with AMD's GPUs. A profile of the Device Config Manager is named by whoever wants one."""
AMD_QUICK: Final[Mapping[str, str]] = {
    "TESTBED_MOUNT_SECONDS": "1",
    "TESTBED_STEP_SECONDS": "0.05",
    "TESTBED_LOAD_SECONDS": "0.5",
    "TESTBED_RETRY_SECONDS": "1",
    "TESTBED_GIVE_UP_SECONDS": "30",
    "TESTBED_SYNC_SECONDS": "1",
    "TESTBED_WIPE_SECONDS": "30",
}
"""How long things take in tests; without it as long as in reality."""
DRIVER_NAMESPACE: Final = "gpu-driver"
BASE_DAEMON_SET: Final = "dra-example-driver-kubeletplugin"
KUBELET: Final = "testbed.gpupartition.dev/kubelet"
"""Annotation of a node: `stopped` silences its simulated kubelet."""
ZONES: Final = ("zone-a", "zone-b")

KINDS: Final[Mapping[str, Kind]] = {
    "Namespace": NAMESPACES,
    "ServiceAccount": SERVICE_ACCOUNTS,
    "DeviceClass": DEVICE_CLASSES,
    "ConfigMap": CONFIG_MAPS,
    "DaemonSet": DAEMON_SETS,
}


def names(count: int) -> list[str]:
    """node-1 … node-9, or node-01 … node-12: in the order of their numbers when sorted."""
    return [f"node-{number:0{len(str(count))}}" for number in range(1, count + 1)]


def node(name: str, *, zone: str, labels: Mapping[str, str] | None = None) -> Object:
    """A Node as its kubelet registers it, freshly booted, with room for any workload."""
    room = {"cpu": "256", "memory": "2Ti", "pods": "1k"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "topology.kubernetes.io/zone": zone,
                "type": "kwok",
                "pool": "gpu",
                **(labels or {}),
            },
        },
        "status": {"capacity": room, "allocatable": room, "nodeInfo": node_info()},
    }


def node_info() -> dict[str, str]:
    """What a kubelet says of its machine; the boot ID is a new one each time."""
    return {
        "machineID": uuid.uuid4().hex,
        "systemUUID": str(uuid.uuid4()),
        "bootID": str(uuid.uuid4()),
        "kernelVersion": "6.12.0",
        "osImage": "simulated by kwok",
        "containerRuntimeVersion": "containerd://2.2.0",
        "kubeletVersion": f"v{RELEASES[release()][0]}",
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": "amd64",
    }


def example_driver(gpus: int) -> Iterator[tuple[Kind, Object]]:
    """The objects of the example driver in the order of their creation, for nodes with so many GPUs."""
    for body in yaml.safe_load_all(MANIFEST.read_text()):
        if body["kind"] == "DaemonSet":
            set_env(body, NUM_DEVICES=str(gpus))
        yield KINDS[body["kind"]], body


def nvidia(times: Mapping[str, str] = NVIDIA_QUICK) -> Iterator[tuple[Kind, Object]]:
    """The objects of NVIDIA's install in the order of their creation: mig-manager, dcgm-exporter and the DRA driver's kubelet plugin."""
    return _timed(NVIDIA_MANIFEST, times)


def amd(times: Mapping[str, str] = AMD_QUICK) -> Iterator[tuple[Kind, Object]]:
    """The objects of AMD's install in the order of their creation: the Device Config Manager and the DRA driver's kubelet plugin."""
    return _timed(AMD_MANIFEST, times)


def _timed(manifest: Path, times: Mapping[str, str]) -> Iterator[tuple[Kind, Object]]:
    for body in yaml.safe_load_all(manifest.read_text()):
        if body["kind"] == "DaemonSet":
            set_env(body, **times)
        yield KINDS[body["kind"]], body


def set_env(daemon_set: dict[str, Any], **values: str) -> None:
    """Set environment variables of the driver's container, in place."""
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    for entry in container.get("env", ()):
        if entry["name"] in values:
            entry["value"] = values[entry["name"]]


def is_ready(body: Object) -> bool:
    """Whether a Node or a Pod says Ready."""
    conditions = body.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
