"""Records of a fleet's nodes, as the operator leaves them."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from gpupartition.api.v1alpha1 import NodeStateStatus, Phase
from gpupartition.controller.records import NODE_STATES, dump, new_record

if TYPE_CHECKING:
    from tests.unit.fleet import Fleet

SINCE: Final = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def record(fleet: Fleet, node: str, phase: Phase, *, policy: str = "inference", **state: Any) -> None:
    """Add the record of a node that has been in this phase since noon."""
    uid = str(uuid.uuid5(uuid.NAMESPACE_DNS, node))  # as the fleet's nodes have it
    body = new_record(node=node, node_uid=uid, policy=policy, policy_uid=policy, driver="example")
    body["metadata"] |= {"uid": f"record-{node}", "resourceVersion": "1"}
    body["status"] = dump(NodeStateStatus(phase=phase, since=SINCE, **state))
    fleet.objects[NODE_STATES].append(body)
