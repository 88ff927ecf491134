"""A driver's pods on a node: which of them runs by the node's assignment, from which template, and whether it is up."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from gpupartition.api.v1alpha1 import DaemonSetRef, ObjectRef
from gpupartition.domain.backend import Cluster, NodeFacts
from gpupartition.domain.objects import Object, controller_of
from gpupartition.names import DRIVER

Ref = DaemonSetRef | ObjectRef


def variant_name(base: str, layout: str) -> str:
    """Name of a layout's DaemonSet."""
    return f"{base}-{layout}"


def base_label(base: str) -> str:
    """The base's name as a label value; a name of more than 63 characters is cut and told apart by its hash."""
    if len(base) <= 63:
        return base
    return f"{base[:46].rstrip('-.')}-{hashlib.sha256(base.encode()).hexdigest()[:16]}"


def plugin_pod(base: Ref, facts: NodeFacts, assignment: str | None) -> Object | None:
    """The pod that belongs to the assignment, unless it is ending."""
    name = _daemon_set(base, assignment)
    return next(
        (
            pod
            for pod in _driver_pods(base, facts)
            if controller_of(pod)["name"] == name and "deletionTimestamp" not in pod["metadata"]
        ),
        None,
    )


def running_template(pod: Object | None, cluster: Cluster) -> Mapping[str, Any] | None:
    """The template from which the pod was made: its ControllerRevision, not its DaemonSet, which may have moved on."""
    if pod is None:
        return None
    owner = controller_of(pod)
    revision = pod["metadata"].get("labels", {}).get("controller-revision-hash")
    name = f"{owner.get('name')}-{revision}"
    found = next((r for r in cluster.controller_revisions if r["metadata"]["name"] == name), None)
    if found is None or controller_of(found).get("uid") != owner.get("uid"):
        return None
    return _template(found)


def _template(revision: Object) -> Mapping[str, Any] | None:
    """What a ControllerRevision holds; None where somebody wrote one of another shape, as of its data nothing is checked."""
    spec = revision["data"].get("spec")
    template = spec.get("template") if isinstance(spec, dict) else None
    pod = template.get("spec") if isinstance(template, dict) else None
    return template if isinstance(pod, dict) and pod.get("containers") else None


def why_not_ready(base: Ref, facts: NodeFacts, assignment: str | None, cluster: Cluster) -> str:
    """Why the assigned driver is not up; "" when its pod is Ready and alone: a former pod that still ends could publish once more."""
    name = _daemon_set(base, assignment)
    if cluster.daemon_set(base.namespace, name) is None:
        return f"its driver pod is not there: there is no DaemonSet {base.namespace}/{name}"
    pod = plugin_pod(base, facts, assignment)
    if pod is None:
        return f"its driver pod is not there: DaemonSet {base.namespace}/{name} has made none for it"
    if any(other["metadata"]["uid"] != pod["metadata"]["uid"] for other in _driver_pods(base, facts)):
        return "its former driver pod has not ended"
    if not _is_ready(pod):
        return f"its driver pod is not ready: {base.namespace}/{pod['metadata']['name']} is {standing(pod)}"
    return ""


def _daemon_set(base: Ref, assignment: str | None) -> str:
    return base.name if assignment is None else variant_name(base.name, assignment)


def _driver_pods(base: Ref, facts: NodeFacts) -> list[Object]:
    """The pods of the base and of its variants on the node, those that are ending included; pods that have ended are gone."""
    return [
        pod
        for pod in facts.pods
        if pod["metadata"]["namespace"] == base.namespace
        and controller_of(pod).get("kind") == "DaemonSet"
        and (
            controller_of(pod)["name"] == base.name
            or pod["metadata"].get("labels", {}).get(DRIVER) == base_label(base.name)
        )
        and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
    ]


def standing(pod: Object) -> str:
    """How a pod stands, as `kubectl get pods` says it: what one of its containers waits for, such as CrashLoopBackOff, else its phase."""
    status = pod.get("status", {})
    waiting = (c.get("state", {}).get("waiting") or {} for c in status.get("containerStatuses") or ())
    return next((w["reason"] for w in waiting if w.get("reason")), status.get("phase") or "Pending")


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
