"""Pods that are in the way, and may be evicted."""

from __future__ import annotations

from typing import Any, Final

from gpupartition.api.v1alpha1 import Drain, DrainMode
from gpupartition.domain.eviction import Occupant

EVICT: Final = Drain(mode=DrainMode.EVICT)
OWNED: Final = {"kind": "ReplicaSet", "name": "web", "uid": "r", "controller": True}


def pod(
    name: str = "claim-pod", *, owner: Any = OWNED, protected: bool = False, refusal: Any = None, **more: Any
) -> Occupant:
    """A pod of a Deployment, unless told otherwise: `more` are fields of its metadata, spec or status."""
    meta = {"namespace": "team", "name": name, "uid": f"uid-{name}", "ownerReferences": [owner] if owner else []}
    meta |= {k: v for k, v in more.items() if k in {"annotations", "labels", "namespace", "deletionTimestamp"}}
    body = {
        "metadata": meta,
        "spec": {"volumes": more.get("volumes", [])},
        "status": {"phase": more.get("phase", "Running")},
    }
    return Occupant(body=body, protected=protected, refusal=refusal)
