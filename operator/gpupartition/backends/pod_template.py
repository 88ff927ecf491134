"""The canonical form of a pod template: the one that was sent and the one that the server gives back are equal in it.

Unset fields and the API server's defaults are left out, quantities are exact (1024Mi = 1Gi), lists stay in their order (that of env variables
has a meaning). Fingerprints are made of it, and are for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpupartition.domain import quantity
from gpupartition.domain.fingerprint import Json

Default = str | int | bool | dict[str, Any] | Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the API server fills in at one place of a pod template; a default may depend on the fields beside it."""

    defaults: Mapping[str, Default] = field(default_factory=dict)
    fields: Mapping[str, Shape] = field(default_factory=dict)
    quantities: bool = False


def _pull_policy(container: Mapping[str, Any]) -> str:
    name, _, pinned = str(container.get("image", "")).partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    return "IfNotPresent" if pinned or tag not in ("", "latest") else "Always"


# Source: k8s.io/kubernetes pkg/apis/core/v1/defaults.go and zz_generated.defaults.go, 1.37 (PodTemplateSpec as reached from a DaemonSet).
_ANYTHING: Final = Shape()
_HTTP: Final = Shape(defaults={"path": "/", "scheme": "HTTP"})
_HANDLER: Final = Shape(fields={"httpGet": _HTTP})
_PROBE: Final = Shape(
    defaults={"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3, "initialDelaySeconds": 0},
    fields={"httpGet": _HTTP, "grpc": Shape(defaults={"service": ""})},
)  # fmt: skip
_FIELD_REF: Final = Shape(fields={"fieldRef": Shape(defaults={"apiVersion": "v1"})})
_AMOUNTS: Final = Shape(quantities=True)
_RESOURCES: Final = Shape(fields={"limits": _AMOUNTS, "requests": _AMOUNTS})


def _container(port: Mapping[str, Default]) -> Shape:
    return Shape(
        defaults={
            "imagePullPolicy": _pull_policy,
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
            "resources": {},
            "securityContext": {},
        },
        fields={
            "env": Shape(defaults={"value": ""}, fields={"valueFrom": _FIELD_REF}),
            "ports": Shape(defaults={"protocol": "TCP", **port}),
            "resources": _RESOURCES,
            "volumeMounts": Shape(defaults={"readOnly": False}),
            "securityContext": Shape(defaults={"procMount": "Default"}),
            "livenessProbe": _PROBE,
            "readinessProbe": _PROBE,
            "startupProbe": _PROBE,
            "lifecycle": Shape(fields={"postStart": _HANDLER, "preStop": _HANDLER}),
        },
    )


_MODE: Final = {"defaultMode": 0o644}
_DOWNWARD: Final = Shape(defaults=_MODE, fields={"items": _FIELD_REF})
_SOURCES: Final = Shape(
    fields={"serviceAccountToken": Shape(defaults={"expirationSeconds": 3600}), "downwardAPI": _DOWNWARD}
)
_VOLUME: Final = Shape(
    defaults={"emptyDir": {}},
    fields={
        "hostPath": Shape(defaults={"type": ""}),
        "secret": Shape(defaults=_MODE),
        "configMap": Shape(defaults=_MODE),
        "downwardAPI": _DOWNWARD,
        "projected": Shape(defaults=_MODE, fields={"sources": _SOURCES}),
        "emptyDir": Shape(defaults={"medium": ""}),
    },
)


def _pod(*, host_network: bool) -> Shape:
    # On the host's network every container port is the host's port as well.
    container = _container({"hostPort": lambda port: port.get("containerPort")} if host_network else {})
    return Shape(
        defaults={
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "schedulerName": "default-scheduler",
            "securityContext": {},
            "serviceAccount": lambda spec: spec.get("serviceAccountName"),
            "hostNetwork": False,
            "hostPID": False,
            "hostIPC": False,
        },
        fields={"containers": container, "initContainers": container, "volumes": _VOLUME, "overhead": _AMOUNTS},
    )


_TEMPLATES: Final = {
    host_network: Shape(
        defaults={"metadata": {}, "$patch": "replace"},  # a ControllerRevision holds its template as a patch
        fields={"spec": _pod(host_network=host_network)},
    )
    for host_network in (False, True)
}


def canonical(template: Mapping[str, Any]) -> dict[str, Any]:
    """That of a PodTemplateSpec."""
    host_network = bool(template.get("spec", {}).get("hostNetwork"))
    return _canonical_map(template, _TEMPLATES[host_network])


def _canonical_value(value: Json, shape: Shape) -> Json:
    if isinstance(value, list):
        return [_canonical_value(each, shape) for each in value]
    return _canonical_map(value, shape) if isinstance(value, Mapping) else value


def _canonical_map(value: Mapping[str, Any], shape: Shape) -> dict[str, Json]:
    if shape.quantities:
        return {name: str(quantity.exact(str(amount))) for name, amount in value.items()}
    kept = {name: _canonical_value(each, shape.fields.get(name, _ANYTHING)) for name, each in value.items()}
    return {name: each for name, each in kept.items() if not _unset(name, each, value, shape)}


def _unset(name: str, value: Json, beside: Mapping[str, Any], shape: Shape) -> bool:
    if value is None or value == []:
        return True
    if name not in shape.defaults:
        return False
    default = shape.defaults[name]
    expected = default(beside) if callable(default) else default
    return type(value) is type(expected) and bool(value == expected)
