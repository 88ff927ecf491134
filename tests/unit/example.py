"""Nodes of the example driver, as its DaemonSets and pods show them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from gpupartition.api.v1alpha1 import DriverSpec, DriverType, PolicySpec
from gpupartition.backends import BACKENDS
from gpupartition.domain.backend import Cluster, NodeFacts
from gpupartition.names import DRIVER, LAYOUT, STEP

BACKEND = BACKENDS[DriverType.EXAMPLE_DRIVER]
BASE = "plugin"
AS_SENT: dict[str, Any] = {
    "metadata": {"labels": {"app.kubernetes.io/name": "dra-example-driver"}},
    "spec": {
        "serviceAccountName": "plugin",
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": LAYOUT, "operator": "DoesNotExist"}]}]
                }
            }
        },
        "tolerations": [{"operator": "Exists"}],
        "containers": [
            {
                "name": "plugin",
                "image": "registry.example/dra-example-driver:v0.4.0",
                "command": ["dra-example-kubeletplugin"],
                "env": [
                    {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                    {"name": "NUM_DEVICES", "value": "8"},
                    {"name": "GPU_PARTITIONS", "value": "0"},
                ],
                "resources": {"requests": {"memory": "1024Mi", "cpu": "0.1"}},
                "securityContext": {"privileged": True},
                "livenessProbe": {"grpc": {"port": 51515}, "failureThreshold": 3},
                "ports": [{"containerPort": 8080}],
                "volumeMounts": [{"name": "plugins", "mountPath": "/plugins"}],
            }
        ],
        "volumes": [
            {"name": "plugins", "hostPath": {"path": "/var/lib/kubelet/plugins"}},
            {"name": "cdi", "emptyDir": {}},
            {"name": "config", "configMap": {"name": "c"}},
        ],
    },
}


def as_the_server_gives_it_back() -> dict[str, Any]:
    """The same template after the API server has filled in its defaults and respelt quantities."""
    template = copy.deepcopy(AS_SENT)
    template["metadata"]["creationTimestamp"] = None
    spec, container = template["spec"], template["spec"]["containers"][0]
    spec |= {
        "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst", "securityContext": {},
        "schedulerName": "default-scheduler", "serviceAccount": "plugin",
    }  # fmt: skip
    container |= {
        "imagePullPolicy": "IfNotPresent", "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
        "resources": {"requests": {"memory": "1Gi", "cpu": "100m"}},
    }  # fmt: skip
    container["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] = "v1"
    container["ports"][0]["protocol"] = "TCP"
    container["livenessProbe"] = {
        "grpc": {"port": 51515, "service": ""}, "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3,
    }  # fmt: skip
    spec["volumes"][0]["hostPath"]["type"] = ""
    spec["volumes"][2]["configMap"]["defaultMode"] = 420
    return template


def driver(gpus: int = 8) -> DriverSpec:
    return DriverSpec.model_validate(
        {
            "type": "ExampleDriver",
            "exampleDriver": {"daemonSet": {"namespace": "gpu-driver", "name": BASE}, "gpusPerNode": gpus},
        }
    )


def policy(parts: int = 0, *, sharing: Mapping[str, Any] | None = None, **layout: Any) -> PolicySpec:
    cut = {"type": "Equal", "equal": {"parts": parts}} if parts else {"type": "Whole"}
    whole = {"name": "l", "match": {"all": True}, **cut, "sharing": sharing or {}, **layout}
    return policy_of(whole)


def policy_of(*layouts: Mapping[str, Any]) -> PolicySpec:
    return PolicySpec.model_validate(
        {"driver": "example", "nodeSelector": {"matchLabels": {"pool": "gpu"}}, "layouts": layouts}
    )


SHARED = {"mode": "Shared"}


def daemon_set(name: str = BASE, template: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "gpu-driver", "uid": f"uid-{name}"},
        "spec": {
            "updateStrategy": {"type": "OnDelete"},
            "template": copy.deepcopy(template or AS_SENT),
            **spec,
        },
    }


def revision(owner: str = BASE, name: str = "r1", template: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {
        "metadata": {"name": f"{owner}-{name}", "ownerReferences": [owned_by(owner)]},
        "data": {"spec": {"template": {**copy.deepcopy(template or AS_SENT), "$patch": "replace"}}},
    }


def owned_by(name: str) -> dict[str, Any]:
    return {"kind": "DaemonSet", "name": name, "uid": f"uid-{name}", "controller": True}


def pod(
    owner: str = BASE, name: str = "p1", *, ready: bool = True, ending: bool = False, revision: str = "r1"
) -> dict[str, Any]:
    labels = {"controller-revision-hash": revision} | ({DRIVER: BASE} if owner != BASE else {})
    metadata = {"namespace": "gpu-driver", "name": name, "uid": f"uid-{name}", "labels": labels}
    if ending:
        metadata["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    return {
        "metadata": metadata | {"ownerReferences": [owned_by(owner)]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]},
    }


def waiting(reason: str) -> dict[str, Any]:
    """A pod of which one container runs, and another one does not."""
    body = pod(ready=False)
    states = {"running": {"startedAt": "2030-01-01T00:00:00Z"}}, {"waiting": {"reason": reason, "message": "back-off"}}
    return {**body, "status": {**body["status"], "containerStatuses": [{"name": "c", "state": s} for s in states]}}


def node(assignment: str | None = None, step: str = "") -> dict[str, Any]:
    return {
        "metadata": {
            "name": "n1",
            "resourceVersion": "7",
            "labels": {LAYOUT: assignment} if assignment else {},
            "annotations": {STEP: step} if step else {},
        }
    }


def facts(*pods: Mapping[str, Any], assignment: str | None = None, step: str = "") -> NodeFacts:
    return NodeFacts(node=node(assignment, step), pods=pods)


CLUSTER = Cluster(daemon_sets=[daemon_set()], controller_revisions=[revision()])


def compiled(wanted: PolicySpec, template: Mapping[str, Any] | None = None, gpus: int = 8) -> str:
    return BACKEND.compile(
        driver(gpus), wanted, facts(), Cluster(daemon_sets=[daemon_set(template=template)])
    ).fingerprint


def with_env(*env: Mapping[str, Any], **container: Any) -> dict[str, Any]:
    template = copy.deepcopy(AS_SENT)
    template["spec"]["containers"][0] |= {"env": list(env), **container}
    return template


def change(template: dict[str, Any], **container: Any) -> dict[str, Any]:
    template = copy.deepcopy(template)
    template["spec"]["containers"][0] |= container
    return template
