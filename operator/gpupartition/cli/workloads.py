"""Claims, templates, pods and what makes pods, as people write them: what is wrong with them, and who will ask for devices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from gpupartition.cli.documents import OURS, Document, Kinds
from gpupartition.cli.offline import METADATA, MOST, Schema, misshapen
from gpupartition.domain import quantity
from gpupartition.domain.asks import Ask, Desk, alone, key_of

if TYPE_CHECKING:
    from gpupartition.kube import Object

MOST_PODS: Final = 10_000  # of one workload


# What is read of them, in the form that the API has it: what else they say is theirs.


def _map(*required: str, **properties: Any) -> Schema:
    return {"type": "object", "required": required, "properties": properties}


def _open(*required: str, **properties: Any) -> Schema:
    return {**_map(*required, **properties), "x-kubernetes-preserve-unknown-fields": True}


def _list(items: Schema, **bounds: int) -> Schema:
    return {"type": "array", "items": items, **bounds}


_TEXT: Final = {"type": "string"}
_NAME: Final = {"type": "string", "minLength": 1, "maxLength": 253}
_EXPRESSION: Final = {"type": "string", "maxLength": 10_240}
_AMOUNTS: Final = {"type": "object", "additionalProperties": {}}  # numbers, or texts
_TOLERATIONS: Final = _list(_open(key=_TEXT, operator=_TEXT, value=_TEXT, effect=_TEXT))

_SELECTORS: Final = _list(_map("cel", cel=_map("expression", expression=_EXPRESSION)), maxItems=32)
_ASKED: Final = {
    "deviceClassName": _NAME,
    "selectors": _SELECTORS,
    "allocationMode": {"type": "string", "enum": ["ExactCount", "All"]},
    "count": {"type": "integer", "minimum": 1},
    "tolerations": _TOLERATIONS,
    "capacity": _map(requests=_AMOUNTS),
}
_REQUEST: Final = _map(
    "name",
    name=_NAME,
    exactly=_map("deviceClassName", **_ASKED, adminAccess={"type": "boolean"}),
    firstAvailable=_list(_map("name", "deviceClassName", name=_NAME, **_ASKED), minItems=1, maxItems=8),
)
_CLAIM: Final = _map(
    devices=_map(
        requests=_list(_REQUEST, maxItems=32),
        constraints=_list(_map(requests=_list(_TEXT), matchAttribute=_TEXT, distinctAttribute=_TEXT)),
        config=_list(_open()),
    )
)

_OPERATOR: Final = {"type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]}
_TERM: Final = _list(_map("key", "operator", key=_TEXT, operator=_OPERATOR, values=_list(_TEXT)))
_TERMS: Final = _list(_map(matchExpressions=_TERM, matchFields=_TERM))
_AFFINITY: Final = _open(
    nodeAffinity=_open(
        requiredDuringSchedulingIgnoredDuringExecution=_map("nodeSelectorTerms", nodeSelectorTerms=_TERMS),
    ),
)
_CONTAINERS: Final = _list(_open(resources=_open(limits=_AMOUNTS, requests=_AMOUNTS)))
_POD: Final = _open(
    containers=_CONTAINERS,
    initContainers=_CONTAINERS,
    resourceClaims=_list(_map("name", name=_NAME, resourceClaimName=_NAME, resourceClaimTemplateName=_NAME)),
    nodeSelector={"type": "object", "additionalProperties": _TEXT},
    nodeName=_TEXT,
    priority={"type": "integer"},
    tolerations=_TOLERATIONS,
    affinity=_AFFINITY,
)
_NUMBER: Final = {"type": "integer", "minimum": 0, "maximum": MOST_PODS}
_TEMPLATE: Final = _open("spec", spec=_POD)
_REPLICAS: Final = "apps/v1", _open("template", template=_TEMPLATE, replicas=_NUMBER)

SPECS: Final[Mapping[str, tuple[str, Schema]]] = {
    "ResourceClaim": ("resource.k8s.io/v1", _CLAIM),
    "ResourceClaimTemplate": ("resource.k8s.io/v1", _map("spec", spec=_CLAIM, metadata=_open())),
    "Pod": ("v1", _POD),
    "Deployment": _REPLICAS,
    "StatefulSet": _REPLICAS,
    "ReplicaSet": _REPLICAS,
    "Job": ("batch/v1", _open("template", template=_TEMPLATE, parallelism=_NUMBER)),
    "DeviceClass": ("resource.k8s.io/v1", _open(selectors=_SELECTORS, extendedResourceName=_TEXT)),
}
_MANY: Final = {"Deployment": "replicas", "StatefulSet": "replicas", "ReplicaSet": "replicas", "Job": "parallelism"}


def _refused(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    if body["kind"] in OURS.versions:
        return OURS.refused(dict(body))
    schema = _open("metadata", "spec", metadata=METADATA, spec=SPECS[body["kind"]][1])
    return list(islice(misshapen(body, schema, ""), MOST)) or list(_against_rules(body))


def _against_rules(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    at, spec = "spec", body["spec"]
    if body["kind"] == "ResourceClaimTemplate":
        at, spec = "spec.spec", spec["spec"]
    for number, request in enumerate(spec.get("devices", {}).get("requests", ())):
        where = f"{at}.devices.requests[{number}]"
        if ("exactly" in request) == ("firstAvailable" in request):
            yield where, "write exactly, or firstAvailable, and not both"
        for asked in (request.get("exactly", {}), *request.get("firstAvailable", ())):
            for name, amount in asked.get("capacity", {}).get("requests", {}).items():
                if not _is_amount(amount):
                    yield f"{where}: capacity.requests[{name}]", "write a quantity, such as 40Gi"
    pod = _pod_of(body)
    for number, entry in enumerate(pod.get("resourceClaims", ())):
        if ("resourceClaimName" in entry) == ("resourceClaimTemplateName" in entry):
            yield f"resourceClaims[{number}]", "write resourceClaimName, or resourceClaimTemplateName, and not both"
    required = pod.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
    for term in required.get("nodeSelectorTerms", ()):
        for rule in (*term.get("matchExpressions", ()), *term.get("matchFields", ())):
            if rule["operator"] in {"Gt", "Lt"} and not re.fullmatch(r"-?\d{1,18}", " ".join(rule.get("values", ()))):
                yield f"affinity.nodeAffinity: {rule['key']}", f"{rule['operator']} takes one whole number, as a text"


def _is_amount(value: Any) -> bool:
    try:
        quantity.exact(str(value))
    except ValueError:
        return False
    return isinstance(value, str | int | float)


KINDS: Final = Kinds(
    versions={**OURS.versions, **{kind: version for kind, (version, _) in SPECS.items()}},
    refused=_refused,
    done="simulated",
    nothing=f"none of {', '.join(SPECS)} in there",
)


def _pod_of(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The spec of the pods that it is or makes; an empty one where it makes none."""
    found: Mapping[str, Any] = (
        body["spec"] if body["kind"] == "Pod" else body["spec"].get("template", {}).get("spec", {})
    )
    return found


def placed(documents: Iterable[Document], namespace: str) -> list[Object]:
    """Their objects, those that say no namespace in this one."""
    return [
        {**d.body, "metadata": {"namespace": namespace, **d.body["metadata"]}}
        for d in documents
        if d.kind not in OURS.versions
    ]


def asks_of(bodies: Sequence[Object], desk: Desk) -> list[Ask]:
    """Who asks, in the order of the files: pods, those that others make, and claims that none of them names."""
    named = {
        (key_of(body)[0], entry["resourceClaimName"])
        for body in bodies
        for entry in _pod_of(body).get("resourceClaims", ())
        if "resourceClaimName" in entry
    }
    return [ask for body in bodies for ask in _asks(body, desk, is_named=key_of(body) in named)]


def _asks(body: Object, desk: Desk, *, is_named: bool) -> Iterator[Ask]:
    kind, (namespace, name) = body["kind"], key_of(body)
    if kind == "ResourceClaim" and not is_named:
        yield alone(body)
    if kind == "Pod" or kind in _MANY:
        many = body["spec"].get(_MANY[kind], 1) if kind in _MANY else 1
        for number in range(1, many + 1):
            pod = {"metadata": {"namespace": namespace, "name": f"{name}-{number}"}, "spec": _pod_of(body)}
            ask = desk.next_start(pod)
            yield replace(ask, kind=kind, name=f"{name} ({number} of {many})" if many > 1 else name)
