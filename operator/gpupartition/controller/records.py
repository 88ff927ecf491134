"""A node's record as it is on the API server: typed, with what a compare-and-swap needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpupartition import names
from gpupartition.api.v1alpha1 import DriverStatus, NodeStateSpec, NodeStateStatus, PolicyStatus
from gpupartition.kinds import DRIVERS, NODE_STATES, POLICIES

__all__ = ["DRIVERS", "NODE_STATES", "POLICIES", "Record", "dump", "new_record", "with_state"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One GpuPartitionNodeState."""

    name: str
    uid: str
    resource_version: str
    spec: NodeStateSpec
    state: NodeStateStatus
    pinned: bool  # carries our finalizer: it cannot vanish while its token is in the ledger
    deleting: bool

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Record:
        """Read the object; raises pydantic's ValidationError for one that nobody of ours wrote."""
        meta = body["metadata"]
        return cls(
            name=meta["name"],
            uid=meta["uid"],
            resource_version=meta["resourceVersion"],
            spec=NodeStateSpec.model_validate(body["spec"]),
            state=NodeStateStatus.model_validate(body.get("status", {})),
            pinned=names.FINALIZER in meta.get("finalizers", ()),
            deleting="deletionTimestamp" in meta,
        )


def new_record(
    *, node: str, node_uid: str, policy: str, policy_uid: str, driver: str, token: str = ""
) -> dict[str, Any]:
    """A record at rest, owned by its Node so that it goes with it."""
    body: dict[str, Any] = {
        "apiVersion": names.API_VERSION,
        "kind": "GpuPartitionNodeState",
        "metadata": {"name": node},
        "spec": {"policyRef": {"name": policy, "uid": policy_uid}, "nodeUID": node_uid, "driver": driver},
        "status": dump(NodeStateStatus(token=token, since=datetime.now(UTC))),
    }
    if token:
        body["metadata"]["finalizers"] = [names.FINALIZER]
    else:
        owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid}
        body["metadata"]["ownerReferences"] = [owner]
    return body


def with_state(body: Mapping[str, Any], state: NodeStateStatus) -> dict[str, Any]:
    """The record as it is to be PUT: the whole status, and the finalizer exactly while a token is held."""
    meta = dict(body["metadata"])
    finalizers = [f for f in meta.get("finalizers", ()) if f != names.FINALIZER]
    meta["finalizers"] = [*finalizers, names.FINALIZER] if state.token else finalizers
    meta.pop("managedFields", None)
    return {**body, "metadata": meta, "status": dump(state)}


def dump(status: NodeStateStatus | PolicyStatus | DriverStatus) -> dict[str, Any]:
    """As the API server stores it: nothing for what is not set."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)
