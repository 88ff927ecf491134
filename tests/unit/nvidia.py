"""Nodes whose GPUs mig-manager cuts, as it and NVIDIA's DRA driver show them, and what is installed beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.unit import vendor
from tests.unit.vendor import pod, policy

from gpupartition.api.v1alpha1 import DriverSpec, DriverType
from gpupartition.backends import BACKENDS
from gpupartition.backends.nvidia_mig import CONFIG, STATE
from gpupartition.domain.backend import Cluster, Config, NodeFacts, Observation
from gpupartition.domain.pool import Pool

BACKEND = BACKENDS[DriverType.NVIDIA_MIG]
H100 = "NVIDIA H100 80GB HBM3"
A100 = "NVIDIA A100-SXM4-40GB"
A30 = "NVIDIA A30"
Layouts = Sequence[Mapping[str, Any]]


def driver(**more: Any) -> DriverSpec:
    spec = {
        "migManager": {"namespace": "gpu-operator", "name": "nvidia-mig-manager"},
        "config": "gpp-mig",
        "plugin": {"namespace": "dra-driver", "name": "kubelet-plugin"},
    }
    return DriverSpec.model_validate({"type": "NvidiaMig", "nvidiaMig": spec | more})


def profiles(*named: str | tuple[str, int], **more: Any) -> dict[str, Any]:
    counts = [(n, 1) if isinstance(n, str) else n for n in named]
    wanted = [{"name": name, "count": count} for name, count in counts]
    return {"match": {"all": True}, "type": "Profiles", "profiles": wanted, **more}


def whole(**more: Any) -> dict[str, Any]:
    return {"match": {"all": True}, "type": "Whole", **more}


def device(gpu: int, product: str, profile: str = "", place: str = "19-0", **more: Any) -> dict[str, Any]:
    plain = profile.replace(".", "").replace("+", "-")
    attributes = {
        "type": {"string": "mig" if profile else "gpu"},
        "productName": {"string": product},
        "resource.kubernetes.io/pciBusID": {"string": f"0000:{more.get('bus', gpu):02x}:00.0"},
    }
    return {
        "name": f"gpu-{gpu}-mig-{plain}-{place}" if profile else f"gpu-{gpu}",
        "attributes": attributes | ({"profile": {"string": profile}} if profile else {}),
        "capacity": {"memory": {"value": more.get("memory", "9984Mi")}},
    }


def cut(gpu: int, product: str, *named: str, **more: Any) -> list[dict[str, Any]]:
    """The devices of one GPU; without profiles, the whole."""
    return [device(gpu, product, n, f"1-{place}", **more) for place, n in enumerate(named)] or [
        device(gpu, product, **more)
    ]


def node(
    value: str | None = "all-disabled", state: str | None = "success", step: str = "", **more: Any
) -> dict[str, Any]:
    return vendor.node({CONFIG: value, STATE: state, **more.pop("labels", {})}, step, **more)


PLUGIN = pod("dra-driver", "kubelet-plugin")
MIG_MANAGER = pod("gpu-operator", "nvidia-mig-manager")


def facts(
    *devices: list[dict[str, Any]],
    on: Mapping[str, Any] | None = None,
    pods: Sequence[Mapping[str, Any]] = (PLUGIN, MIG_MANAGER),
    known: Pool | None = None,
) -> NodeFacts:
    return vendor.facts("gpu.nvidia.com", devices, on or node(), pods, known)


def daemon_set(
    namespace: str, name: str, *, env: Mapping[str, str] | None = None, config: str = "gpp-mig", **labels: str
) -> dict[str, Any]:
    container = {"name": "c", "env": [{"name": k, "value": v} for k, v in (env or {}).items()]}
    volumes = [{"name": "config", "configMap": {"name": config}}]
    return {
        "metadata": {"namespace": namespace, "name": name, "uid": name, "labels": labels},
        "spec": {"template": {"metadata": {}, "spec": {"containers": [container], "volumes": volumes}}},
    }


INSTALLED = [daemon_set("gpu-operator", "nvidia-mig-manager"), daemon_set("dra-driver", "kubelet-plugin")]


def installed(*config_maps: Mapping[str, Any], sets: Sequence[Mapping[str, Any]] = INSTALLED) -> Cluster:
    return Cluster(daemon_sets=sets, config_maps=config_maps)


def compiled(
    *layouts: Mapping[str, Any], on: NodeFacts, of: DriverSpec | None = None, cluster: Cluster | None = None
) -> Config:
    return BACKEND.compile(of or driver(), policy(*layouts), on, cluster or installed())


def observed(of: NodeFacts, *config_maps: Mapping[str, Any]) -> Observation:
    return BACKEND.observe(driver(), of, installed(*config_maps))


EIGHT = [cut(gpu, H100) for gpu in range(8)]
SEVENTHS = [cut(gpu, H100, *["1g.10gb"] * 7) for gpu in range(2)]
