"""What is the same whoever makes a node's GPUs: a policy of layouts, a node and its pods, and what was written for its layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from gpupartition.api.v1alpha1 import PolicySpec
from gpupartition.domain.backend import Config, NodeFacts
from gpupartition.domain.pool import Pool
from gpupartition.names import STEP

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)


def policy(*layouts: Mapping[str, Any]) -> PolicySpec:
    named = [{**each, "name": f"l{number}"} for number, each in enumerate(layouts)]
    return PolicySpec.model_validate({"driver": "d", "nodeSelector": {"matchLabels": {"a": "b"}}, "layouts": named})


def node(labels: Mapping[str, str | None], step: str, **more: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "n1",
            "resourceVersion": "7",
            "labels": {k: v for k, v in labels.items() if v is not None},
            "annotations": {STEP: step} if step else {},
        },
        **more,
    }


def facts(
    driver: str,
    gpus: Sequence[Sequence[Mapping[str, Any]]],
    on: Mapping[str, Any],
    pods: Sequence[Mapping[str, Any]],
    known: Pool | None,
) -> NodeFacts:
    """A node with the devices of these GPUs in one slice of this driver name; without any, in none."""
    spec = {
        "driver": driver,
        "nodeName": "n1",
        "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
        "devices": [device for each in gpus for device in each],
    }
    slices = [{"metadata": {"name": "s"}, "spec": spec}] if gpus else []
    return NodeFacts(node=on, slices=slices, pods=pods, known=known or Pool())


def config_map_of(*configs: Config) -> dict[str, Any]:
    """The ConfigMap into which these layouts were written."""
    found: dict[str, Any] | None = None
    for config in configs:
        (body,) = config.objects
        found = body["document"].with_entry(found, body["key"], body["content"], T0)
    assert found is not None
    return found


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
