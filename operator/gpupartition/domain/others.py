"""Who else is at work on a node: what others have written on it says so, and is never touched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpupartition import names

_TAINTS: Final = {
    "karpenter.sh/disrupted": "Karpenter is about to remove it",
    "ToBeDeletedByClusterAutoscaler": "the cluster autoscaler is about to remove it",
    "DeletionCandidateOfClusterAutoscaler": "the cluster autoscaler may remove it",
}
_DRIVER_UPGRADE: Final = "nvidia.com/gpu-driver-upgrade-state"
_NO_UPGRADE: Final = frozenset({"", "unknown", "upgrade-done"})


def at_work(node: Mapping[str, Any]) -> str:
    """What others are doing to the node, for people; "" when nothing is known of any."""
    spec, labels = node.get("spec", {}), node["metadata"].get("labels", {})
    found = [
        f"{_TAINTS[taint['key']]} (taint {taint['key']})"
        for taint in sorted(spec.get("taints", ()), key=lambda t: str(t["key"]))
        if taint["key"] in _TAINTS
    ]
    upgrade = labels.get(_DRIVER_UPGRADE, "")
    if upgrade not in _NO_UPGRADE:
        found.append(f"its GPU driver is being upgraded ({_DRIVER_UPGRADE}: {upgrade})")
    if spec.get("unschedulable") and names.CORDONED not in node["metadata"].get("annotations", {}):
        found.append("it is cordoned")
    return "; ".join(found)


def skips(node: Mapping[str, Any]) -> bool:
    """Whether somebody asked by a label to leave the node alone."""
    value: str | None = node["metadata"].get("labels", {}).get(names.SKIP)
    return value not in {None, "false"}


def writer(node: Mapping[str, Any], label: str) -> str:
    """Who wrote a label of the node last, as the API server noted it: a field manager; "somebody" when that cannot be told.

    A label that was taken away has no owner any more: then it is whoever changed the node last, leaving out status and ourselves.
    """
    entries = [e for e in node["metadata"].get("managedFields", ()) if not e.get("subresource")]
    foreign = [e for e in entries if not str(e.get("manager", "")).startswith(names.FIELD_MANAGER)]
    owners = [e for e in foreign if f"f:{label}" in e.get("fieldsV1", {}).get("f:metadata", {}).get("f:labels", {})]
    last: Mapping[str, Any] = max(owners or foreign, key=lambda e: str(e.get("time", "")), default={})
    return str(last.get("manager", "")) or "somebody"
