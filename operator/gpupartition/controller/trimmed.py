"""What the copies keep of each kind, which is what decisions look at, and by what they find it."""

from __future__ import annotations

from collections.abc import Iterable
from sys import intern

from gpupartition import names
from gpupartition.controller.readiness import readiness
from gpupartition.controller.records import Record
from gpupartition.domain.leading import led, nodes_led
from gpupartition.domain.quiesce import is_ours
from gpupartition.kube import Object


def trim(body: Object, *more: str) -> Object:
    """Without what only the server's bookkeeping needs."""
    meta = {k: v for k, v in body["metadata"].items() if k != "managedFields"}
    return {**{k: v for k, v in body.items() if k not in more}, "metadata": meta}


def trim_node(body: Object) -> Object:
    """What decisions look at; heartbeats change nothing of it."""
    meta, status = body["metadata"], body.get("status", {})
    annotations = {k: v for k, v in meta.get("annotations", {}).items() if k.startswith(names.GROUP)}
    ready = [
        {"type": "Ready", "status": c["status"], "lastTransitionTime": c.get("lastTransitionTime", "")}
        for c in status.get("conditions", ())
        if c["type"] == "Ready"
    ]
    kept = {"name": meta["name"], "uid": meta["uid"], "labels": meta.get("labels", {}), "annotations": annotations}
    kept["creationTimestamp"] = meta.get("creationTimestamp", "")
    offered = {k: v for k, v in status.get("allocatable", {}).items() if "/" in k}
    return {
        "metadata": kept | ({"deletionTimestamp": ""} if "deletionTimestamp" in meta else {}),
        "spec": {k: v for k, v in body.get("spec", {}).items() if k in {"unschedulable", "taints"}},
        "status": {"conditions": ready, "nodeInfo": {"bootID": status.get("nodeInfo", {}).get("bootID", "")}}
        | ({"allocatable": offered} if offered else {}),
    }


def trim_claim(body: Object) -> Object | None:
    """Allocated claims only: what they have, and for whom."""
    status = body.get("status", {})
    if not status.get("allocation"):
        return None
    meta = {k: v for k, v in body["metadata"].items() if k in {"name", "namespace", "uid", "deletionTimestamp"}}
    results = [_shared(result) for result in status["allocation"].get("devices", {}).get("results", ())]
    kept: Object = {"allocation": {"devices": {"results": results}}}
    return {"metadata": meta, "status": kept | {k: status[k] for k in ("reservedFor",) if k in status}}


def _shared(result: Object) -> Object:
    """An allocated device, with the names of its driver and pool as the other claims have them."""
    return result | {name: intern(str(result[name])) for name in ("driver", "pool")}


def trim_rule(body: Object) -> Object | None:
    """Taint rules of our names whole: the conditions of ours prove that the feature is on."""
    return trim(body) if body["metadata"]["name"].startswith(names.TAINT_RULES) else None


def trim_daemon_set(body: Object) -> Object:
    """Without the status, which changes with every pod."""
    trimmed = trim(body, "status")
    trimmed["metadata"].pop("resourceVersion", None)
    return trimmed


def trim_pod(body: Object) -> Object:
    """Driver pods: whose they are, where they run, whether they are ready, and what their containers wait for."""
    status = body.get("status", {})
    waiting = [
        {"state": {"waiting": {"reason": reason}}}
        for container in status.get("containerStatuses") or ()
        if (reason := (container.get("state", {}).get("waiting") or {}).get("reason"))
    ]
    ready = [{"type": c["type"], "status": c["status"]} for c in status.get("conditions", ()) if c["type"] == "Ready"]
    meta = {k: v for k, v in body["metadata"].items() if k not in {"managedFields", "resourceVersion"}}
    return {
        "metadata": meta,
        "spec": {"nodeName": body.get("spec", {}).get("nodeName", "")},
        "status": {"phase": status.get("phase", ""), "conditions": ready, "containerStatuses": waiting},
    }


def rule_node(body: Object) -> Iterable[str]:
    """The node that one of our rules is about."""
    return (str(body["metadata"].get("annotations", {}).get(names.FULL_NODE_NAME, "")),) if is_ours(body) else ()


def claim_pools(body: Object) -> Iterable[str]:
    """The pools that an allocated claim has devices of."""
    results = body["status"]["allocation"].get("devices", {}).get("results", ())
    return {str(r["pool"]) for r in results}


def record_policy(record: Record) -> Iterable[str]:
    """The policy that has the node."""
    return (record.spec.policy_ref.name,)


def record_group(record: Record) -> Iterable[str]:
    """The group whose pool it has."""
    group = led(record.state)
    return (group,) if group else ()


def record_on(record: Record) -> Iterable[str]:
    """The keys of the nodes that a group's pool in it is on."""
    return nodes_led(record.state)


def node_ready(body: Object) -> Iterable[str]:
    """What it says of being Ready."""
    return (readiness(body),)


def pod_node(body: Object) -> Iterable[str]:
    """The node that it runs on."""
    node = body["spec"].get("nodeName", "")
    return (str(node),) if node else ()
