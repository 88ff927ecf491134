"""The kinds of gpupartition.dev/v1alpha1 as frozen pydantic models; crd.py makes the CRDs from them, rules.py has their CEL rules.

Field names are camelCase on the wire, and what stands below a field is what `kubectl explain` says of it. The schema admits only what
works: a field comes with its feature. No field's presence alone carries meaning, because client-side apply drops null structs. Versions
only add fields.
"""

from __future__ import annotations

from gpupartition.api.v1alpha1.driver import (
    AmdDcmSpec,
    DaemonSetRef,
    DriverSpec,
    DriverStatus,
    DriverType,
    ExampleDriverSpec,
    GpuGroup,
    Grant,
    Inventory,
    MultiNode,
    NodeLabelInventory,
    NodeOperations,
    NvidiaMigSpec,
    ObjectRef,
    Placement,
    Profile,
    PublishSpec,
    Purpose,
    Reboot,
    TablesRef,
)
from gpupartition.api.v1alpha1.layout import (
    Choices,
    Equal,
    GpuMode,
    Layout,
    LayoutType,
    Match,
    ProfileCount,
    Sharing,
    SharingCapacity,
    SharingMode,
)
from gpupartition.api.v1alpha1.node_state import Assigned, NodeStateSpec, NodeStateStatus, Phase, PolicyRef, Restart
from gpupartition.api.v1alpha1.policy import (
    Day,
    Drain,
    DrainMode,
    DriftBrake,
    FailedNode,
    NodeCounts,
    NodeSelector,
    OnFailure,
    OnTimeout,
    PodSelector,
    PolicySpec,
    PolicyStatus,
    ProfileCapacity,
    Requirement,
    Rollout,
    Suspended,
    Window,
)
from gpupartition.api.v1alpha1.shared import (
    Blocker,
    CapacityName,
    CheckedLabelKey,
    CheckedLabelValue,
    Condition,
    CounterName,
    FailureCount,
    Hash,
    LabelKey,
    LabelValue,
    Message,
    Model,
    Name,
    NodeCount,
    NodeName,
    Product,
    ProfileName,
    Quantity,
    Reason,
    Reference,
    Subdomain,
    Uid,
)

__all__ = [
    "AmdDcmSpec", "Assigned", "Blocker", "CapacityName", "CheckedLabelKey", "CheckedLabelValue", "Choices", "Condition",
    "CounterName", "DaemonSetRef", "Day", "Drain", "DrainMode", "DriftBrake", "DriverSpec", "DriverStatus",
    "DriverType", "Equal", "ExampleDriverSpec", "FailedNode", "FailureCount", "GpuGroup", "GpuMode", "Grant", "Hash",
    "Inventory", "LabelKey", "LabelValue", "Layout", "LayoutType", "Match", "Message", "Model", "MultiNode", "Name", "NodeCount",
    "NodeCounts", "NodeLabelInventory", "NodeName", "NodeOperations", "NodeSelector", "NodeStateSpec", "NodeStateStatus",
    "NvidiaMigSpec", "ObjectRef", "OnFailure", "OnTimeout", "Phase", "Placement", "PodSelector", "PolicyRef", "PolicySpec",
    "PolicyStatus", "Product", "Profile", "ProfileCapacity", "ProfileCount", "ProfileName", "PublishSpec", "Purpose",
    "Quantity", "Reason", "Reboot", "Reference", "Requirement", "Restart", "Rollout", "Sharing", "SharingCapacity",
    "SharingMode", "Subdomain", "Suspended", "TablesRef", "Uid", "Window",
]  # fmt: skip
