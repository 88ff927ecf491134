"""Nodes whose GPUs Device Config Manager partitions, as it and AMD's DRA driver show them, and what is installed beside."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.unit import vendor
from tests.unit.vendor import pod, policy

from gpupartition.api.v1alpha1 import DriverSpec, DriverType
from gpupartition.backends import BACKENDS
from gpupartition.backends.amd_dcm import PROFILE, STATE
from gpupartition.domain.backend import Cluster, Config, NodeFacts, Observation
from gpupartition.domain.pool import Pool

BACKEND = BACKENDS[DriverType.AMD_DCM]
MI300X = "AMD_Instinct_MI300X_OAM"
COUNTS = {"spx": 1, "dpx": 2, "qpx": 4, "cpx": 8, "tpx": 3}
Gpu = list[dict[str, Any]]


def driver(**more: Any) -> DriverSpec:
    spec = {
        "configManager": {"namespace": "kube-amd-gpu", "name": "config-manager"},
        "config": "gpp-amd",
        "plugin": {"namespace": "dra-driver", "name": "kubelet-plugin"},
    }
    return DriverSpec.model_validate({"type": "AmdDcm", "amdDcm": spec | more})


def mode(compute: str, memory: str, **more: Any) -> dict[str, Any]:
    return {"match": {"all": True}, "type": "Mode", "mode": {"compute": compute, "memory": memory}, **more}


def gpu(number: int, profile: str = "spx_nps1", product: str = MI300X, count: int | None = None, first: int = 0) -> Gpu:
    """The devices of one GPU; "" for one that has no modes."""
    attributes = {
        "type": {"string": "amdgpu" if profile.startswith("spx") else "amdgpu-partition"},
        "productName": {"string": product},
        "resource.kubernetes.io/pciBusID": {"string": f"0000:{0x05 + 0x20 * number:02x}:00.0"},
    }
    attributes |= {"partitionProfile": {"string": profile}} if profile else {}
    parts = COUNTS.get(profile[:3], 1) if count is None else count
    minors = (first + 8 * number + part for part in range(parts))
    return [{"name": f"gpu-{minor}-{128 + minor}", "attributes": attributes} for minor in minors]


EIGHT = [gpu(number) for number in range(8)]


def node(
    value: str | None = None, state: str | None = None, step: str = "", allocatable: Mapping[str, str] | None = None
) -> dict[str, Any]:
    return vendor.node({PROFILE: value, STATE: state}, step, status={"allocatable": dict(allocatable or {})})


PLUGIN = pod("dra-driver", "kubelet-plugin")


def facts(
    *gpus: Gpu,
    on: Mapping[str, Any] | None = None,
    pods: Sequence[Mapping[str, Any]] = (PLUGIN,),
    known: Pool | None = None,
) -> NodeFacts:
    return vendor.facts("gpu.amd.com", gpus, on or node(), pods, known)


def daemon_set(namespace: str, name: str, *args: str, config: str = "gpp-amd", gates: str = "") -> dict[str, Any]:
    env = [{"name": "FEATURE_GATES", "value": gates}] if gates else []
    spec = {"containers": [{"name": "c", "args": args, "env": env}], "volumes": [{"configMap": {"name": config}}]}
    return {"metadata": {"namespace": namespace, "name": name, "uid": name}, "spec": {"template": {"spec": spec}}}


MANAGER = daemon_set("kube-amd-gpu", "config-manager")
INSTALLED = [MANAGER, daemon_set("dra-driver", "kubelet-plugin")]


def installed(*config_maps: Mapping[str, Any], sets: Sequence[Mapping[str, Any]] = INSTALLED) -> Cluster:
    return Cluster(daemon_sets=sets, config_maps=config_maps)


def compiled(*layouts: Mapping[str, Any], on: NodeFacts, cluster: Cluster | None = None) -> Config:
    return BACKEND.compile(driver(), policy(*layouts), on, cluster or installed())


def item(compute: str, memory: str, number: int) -> dict[str, Any]:
    return {"computePartition": compute, "memoryPartition": memory, "numGPUsAssigned": number}


def with_profiles(*configs: Config, **more: Any) -> dict[str, Any]:
    """The ConfigMap into which these layouts were written."""
    written = vendor.config_map_of(*configs)
    written["data"]["config.json"] = json.dumps(json.loads(written["data"]["config.json"]) | more)
    return written


def theirs(**profiles: Any) -> dict[str, Any]:
    """A ConfigMap that somebody else has filled."""
    text = json.dumps({"gpu-config-profiles": profiles})
    return {"metadata": {"namespace": "kube-amd-gpu", "name": "gpp-amd"}, "data": {"config.json": text}}


def observed(of: NodeFacts, *config_maps: Mapping[str, Any]) -> Observation:
    return BACKEND.observe(driver(), of, installed(*config_maps))


CPX = mode("CPX", "NPS1")
CPX_NPS4 = mode("CPX", "NPS4")
