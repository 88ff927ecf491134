"""What is the same whoever makes a node's GPUs: a policy of layouts, and a pod of a DaemonSet."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gpupartition.api.v1alpha1 import PolicySpec

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)


def policy(*layouts: Mapping[str, Any]) -> PolicySpec:
    named = [{**each, "name": f"l{number}"} for number, each in enumerate(layouts)]
    return PolicySpec.model_validate({"driver": "d", "nodeSelector": {"matchLabels": {"a": "b"}}, "layouts": named})


def pod(namespace: str, name: str, *, ready: bool = True, uid: str = "", created: datetime = T0) -> dict[str, Any]:
    owner = {"kind": "DaemonSet", "name": name, "uid": name, "controller": True}
    return {
        "metadata": {
            "namespace": namespace,
            "name": f"{name}-x",
            "uid": uid or name,
            "ownerReferences": [owner],
            "creationTimestamp": created.isoformat(),
        },
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]},
    }
