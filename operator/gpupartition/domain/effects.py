"""What may be written, as data. controller/actuator.py has one short function for each.

Each carries the proof that nothing has changed since it was decided: the resourceVersion or UID of the object as it was read *before* the
node's record was read. A write that fails its proof (409, 404) is no error: the node is looked at again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpupartition.domain.objects import Object

TAINT_RULES: Final = "resource.k8s.io/v1"  # the version of DeviceTaintRules that all clusters will have one day


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchNode:
    """One patch of the Node under its resourceVersion: labels and annotations set, or removed where the value is None.

    `unschedulable` None: left as it is.
    """

    node: str
    resource_version: str
    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    unschedulable: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTaint:
    """Take one taint from the Node, by its place among them and under the resourceVersion of the Node as it was read."""

    node: str
    resource_version: str
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTaintRule:
    """Create the node's DeviceTaintRule, still without effect: an inert rule that comes too late harms nobody."""

    name: str
    node: str
    uid: str
    driver: str
    pool: str
    api_version: str = TAINT_RULES


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivateTaintRule:
    """Give the rule its NoSchedule effect, by a PUT of the rule as it was read."""

    rule: Object


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTaintRule:
    """Delete the rule under UID and resourceVersion: a late delete must not hit the rule of the next attempt."""

    name: str
    uid: str
    resource_version: str
    api_version: str = TAINT_RULES


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePod:
    """Delete one driver pod, by UID, so that the driver starts anew with what it has been assigned."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictPod:
    """Ask the Eviction API to end a holder's pod, by UID; disruption budgets may refuse. `grace_seconds` None: as long as the pod says."""

    namespace: str
    name: str
    uid: str
    grace_seconds: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteHolder:
    """Delete a holder's pod, by UID, with its own grace period: the drain's time is over, and a disruption budget still refuses."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsureConfig:
    """Create a config object, or touch its last-used annotation under its resourceVersion (`present` is the object as read)."""

    kind: str
    body: Object
    present: Object | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSlice:
    """Create a ResourceSlice of our own; its name is fixed, so an old attempt that comes too late is a conflict."""

    body: Object


@dataclass(frozen=True, slots=True, kw_only=True)
class PutSlice:
    """Replace a ResourceSlice of our own under the resourceVersion in its body."""

    body: Object


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteSlice:
    """Delete a ResourceSlice of our own under UID and resourceVersion."""

    name: str
    uid: str
    resource_version: str


SliceWrite = CreateSlice | PutSlice | DeleteSlice
Effect = (
    PatchNode
    | RemoveTaint
    | CreateTaintRule
    | ActivateTaintRule
    | DeleteTaintRule
    | DeletePod
    | EvictPod
    | DeleteHolder
    | EnsureConfig
    | SliceWrite
)
