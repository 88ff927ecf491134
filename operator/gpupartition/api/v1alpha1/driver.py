"""GpuPartitionDriver: how GPUs are driven, and what all policies together may cost."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from gpupartition.api import rules
from gpupartition.api.rules import checks, fixed, keyed, member
from gpupartition.api.v1alpha1.shared import (
    SUBDOMAIN,
    CapacityName,
    CheckedLabelKey,
    Condition,
    CounterName,
    Hash,
    Model,
    Name,
    NodeCount,
    NodeName,
    Product,
    ProfileName,
    Quantity,
    Subdomain,
    Time,
    Told,
    Uid,
)


class DaemonSetRef(Model):
    """The DaemonSet that runs the driver's node plugin."""

    namespace: Name
    """Namespace of the DaemonSet."""
    name: Annotated[str, Field(min_length=1, max_length=236, pattern=SUBDOMAIN)]
    """Name of the DaemonSet; at most 236 characters, because each layout's DaemonSet is named after it with 17 more."""


class ExampleDriverSpec(Model):
    """kubernetes-sigs/dra-example-driver: one DaemonSet per layout, made from the base's pod template."""

    daemon_set: DaemonSetRef
    """The base: the DaemonSet that the driver was installed with. Its update strategy must be OnDelete, and it must not run on nodes that
    carry the label gpupartition.dev/layout."""
    gpus_per_node: Annotated[int, Field(ge=1, le=64)]
    """How many GPUs the driver simulates on each node."""


class Placement(Model):
    """One place where a profile can be cut out of a GPU: what it takes from the GPU's counters."""

    counters: Annotated[
        dict[CounterName, Quantity], Field(min_length=1, max_length=32, json_schema_extra=checks(rules.COUNTER_NAMES))
    ]
    """How much of each of the GPU's counters a partition here takes: what two placements both take, they cannot have at once."""


class Profile(Model):
    """A partition that a GPU of this inventory can be cut into; each placement is offered as one device."""

    name: ProfileName
    """What layouts call it, such as 1g.10gb."""
    capacity: Annotated[
        dict[CapacityName, Quantity], Field(max_length=16, json_schema_extra=checks(rules.CAPACITY_NAMES))
    ] = {}
    """What a device of this profile has to offer, such as memory: 10Gi."""
    placements: Annotated[list[Placement], Field(min_length=1, max_length=32)]
    """Every place where it can be cut."""


class GpuGroup(Model, json_schema_extra=checks(rules.COUNTERS_KNOWN)):
    """Equal GPUs.

    Of a product that the operator's tables know, counters and profiles need not be written; where they are, they win.
    """

    count: Annotated[int, Field(ge=1, le=64)]
    """How many there are on each node."""
    product: Product
    """What they are, as layouts match it and as the devices' attribute productName says: as the driver or a node's label spells it, such as
    NVIDIA H100 80GB HBM3, or the model as `gpupartition profiles` has it."""
    memory: Quantity
    """Memory of one GPU, such as 80Gi. Never more than this is offered, whatever a table says."""
    counters: Annotated[
        dict[CounterName, Quantity], Field(max_length=32, json_schema_extra=checks(rules.COUNTER_NAMES))
    ] = {}
    """What the partitions of one GPU share; without any it is what a table knows of the product, else the memory alone."""
    profiles: Annotated[list[Profile], Field(max_length=32, json_schema_extra=keyed("name"))] = []
    """The partitions that one of these GPUs can be cut into, for layouts of the types Choices and Profiles; without any, and without
    counters, they are those that a table knows."""


class NodeLabelInventory(Model):
    """Names of the node labels that say how many GPUs a node has, which, and with how much memory."""

    count: CheckedLabelKey
    """Label with the number of GPUs, such as nvidia.com/gpu.count."""
    product: CheckedLabelKey
    """Label with the product, such as nvidia.com/gpu.product."""
    memory: CheckedLabelKey
    """Label with the memory of one GPU: a quantity, or MiB as a bare number."""


class Inventory(Model, json_schema_extra=checks(rules.INVENTORY)):
    """Where the GPUs of a node are known from; exactly one of the two."""

    node_labels: NodeLabelInventory | None = None
    """From labels on the nodes."""
    gpus: Annotated[list[GpuGroup], Field(max_length=8)] = []
    """The same on every node: groups of equal GPUs, numbered in this order."""


class NodeOperations(StrEnum):
    """Who prepares devices on the node."""

    PLUGIN = "Plugin"
    SKIP = "Skip"


class MultiNode(Model):
    """Devices that span nodes. The GPUs of all nodes of a group are in one pool."""

    group_label: CheckedLabelKey
    """Label whose value says to which group a node belongs, such as example.com/rack: nodes whose GPUs can work on one job. At most 32 nodes
    have the same value. Nodes without it are left out."""
    sizes: Annotated[
        list[Annotated[int, Field(ge=2, le=32)]],
        Field(min_length=1, max_length=8, json_schema_extra={"x-kubernetes-list-type": "set"}),
    ]
    """How many nodes a device may span: [2, 4] offers, beside the devices of each node, all GPUs of two nodes as one device, and of four. Nodes
    are taken together in the order of their names."""


class PublishSpec(Model, json_schema_extra=checks(*rules.MULTI_NODE)):
    """A DRA driver name that this operator owns: it writes the ResourceSlices itself."""

    driver_name: Annotated[
        str,
        Field(
            min_length=1,
            max_length=63,
            pattern=SUBDOMAIN,
            json_schema_extra=checks(
                fixed("slices and claims name it; make another GpuPartitionDriver for another driver name")
            ),
        ),
    ]
    """Name of the DRA driver, as DeviceClasses select it: device.driver == "gpu.example.org". Nothing else may publish under it. Immutable."""
    inventory: Inventory
    """Where the GPUs of a node are known from."""
    node_operations: NodeOperations = NodeOperations.PLUGIN
    """Who prepares the devices of a pod on its node. Plugin (the default): a node plugin that is registered under the driver name; a pod waits
    until it has. Skip: nobody, so that pods start where no plugin runs; for devices that need no preparing. It needs the feature gate
    DRAOptionalNodeOperations (alpha in Kubernetes 1.37)."""
    multi_node: MultiNode | None = None
    """Devices that span nodes; without it each node has a pool of its own. It cannot be added later, nor taken away."""
    live: bool = True
    """Whether layouts change under their users. True (the default): devices in use stay published, closed to new claims, and go on drawing on
    their GPU's counters until they are released; the new ones are offered beside them at once, so that nobody is waited for or evicted.
    Where that cannot be, because a device stays under its name and becomes something else, and with false: as rollout.drain of the policy
    says."""


class ObjectRef(Model):
    """An object that is there already."""

    namespace: Name
    """Its namespace."""
    name: Subdomain
    """Its name."""


class TablesRef(Model):
    """A ConfigMap beside the program that cuts GPUs."""

    name: Subdomain
    """Its name."""


class Reboot(StrEnum):
    """Whether mig-manager may reboot a node."""

    REFUSE = "Refuse"
    ALLOW = "Allow"


class NvidiaMigSpec(Model):
    """Static MIG: NVIDIA's mig-manager cuts the GPUs, NVIDIA's DRA driver publishes them, and there is no device plugin."""

    mig_manager: ObjectRef
    """The DaemonSet of mig-manager, such as {namespace: gpu-operator, name: nvidia-mig-manager}."""
    config: Subdomain
    """Name of the ConfigMap, in mig-manager's namespace, into which layouts are written. mig-manager has to mount it: in the ClusterPolicy
    write migManager: {config: {name: ...}}. It belongs to the operator: nothing else may write it."""
    plugin: ObjectRef
    """The DaemonSet of the DRA driver's kubelet plugin: its pod on a node is restarted after a change."""
    reboot: Reboot = Reboot.REFUSE
    """Whether mig-manager may reboot a node whose GPUs cannot be reset. Refuse (the default): its WITH_REBOOT must not be true. Allow: a
    change may take twice as long."""
    tables: TablesRef | None = None
    """A ConfigMap, in mig-manager's namespace, with tables of MIG profiles for products that this release does not know."""


class AmdDcmSpec(Model):
    """AMD's modes: Device Config Manager sets them, AMD's DRA driver publishes the partitions, and there is no device plugin."""

    config_manager: ObjectRef
    """The DaemonSet of Device Config Manager: AMD's GPU operator calls it after its DeviceConfig, such as {namespace: kube-amd-gpu, name:
    default-device-config-manager} for one that is called default."""
    config: Subdomain
    """Name of the ConfigMap, in Device Config Manager's namespace, into which layouts are written. It has to be mounted there: in the
    DeviceConfig write configManager: {config: {name: ...}}. It belongs to the operator: nothing else may write it."""
    plugin: ObjectRef
    """The DaemonSet of the DRA driver's kubelet plugin: its pod on a node is restarted after a change. AutoPartition must be off."""
    tables: TablesRef | None = None
    """A ConfigMap, in Device Config Manager's namespace, with tables of modes for products that this release does not know."""


class DriverType(StrEnum):
    """How the GPUs are driven."""

    EXAMPLE_DRIVER = "ExampleDriver"
    PUBLISH = "Publish"
    NVIDIA_MIG = "NvidiaMig"
    AMD_DCM = "AmdDcm"


class DriverSpec(
    Model,
    json_schema_extra=checks(
        member("ExampleDriver", "exampleDriver", "{daemonSet: {namespace: ..., name: ...}, gpusPerNode: 8}"),
        member("Publish", "publish", "{driverName: ..., inventory: ...}"),
        member("NvidiaMig", "nvidiaMig", "{migManager: ..., config: ..., plugin: ...}"),
        member("AmdDcm", "amdDcm", "{configManager: ..., config: ..., plugin: ...}"),
        rules.QUIESCE_OF_GROUPS,
    ),
):
    """How GPUs are driven, and what all policies together may cost."""

    type: Annotated[
        DriverType,
        Field(
            json_schema_extra=checks(fixed("nodes rely on it; make another GpuPartitionDriver, and move its policies"))
        ),
    ]
    """How the GPUs are driven: by ExampleDriver (kubernetes-sigs/dra-example-driver); by NvidiaMig (static MIG through NVIDIA's mig-manager);
    by AmdDcm (modes through AMD's Device Config Manager); or Publish: the operator writes the ResourceSlices of a driver name of its own.
    Exactly the member of that name is set. Immutable."""
    example_driver: ExampleDriverSpec | None = None
    """For type ExampleDriver: where it runs."""
    publish: PublishSpec | None = None
    """For type Publish: the driver name, and where the GPUs are known from."""
    nvidia_mig: NvidiaMigSpec | None = None
    """For type NvidiaMig: where mig-manager and the DRA driver run."""
    amd_dcm: AmdDcmSpec | None = None
    """For type AmdDcm: where Device Config Manager and the DRA driver run."""
    max_unavailable: NodeCount = "10%"
    """How many nodes may be unavailable at once, over all policies of this driver: a number, or a percentage of all nodes that they match
    (rounded down, at least 1). Nodes that are not Ready count too."""
    quiesce: Literal["Auto", "DeviceTaint", "Cordon", "Both"] = "Auto"
    """How new claims are kept from a node before it changes. DeviceTaint: by a DeviceTaintRule over its devices, which bothers nobody else.
    Cordon: the node is made unschedulable, which keeps pods without GPUs away too. Both. Auto: DeviceTaint where the API server serves
    DeviceTaintRules, else Cordon."""


class Purpose(StrEnum):
    """What a grant is for, and so what it counts against."""

    ROLL_OUT = "RollOut"
    INITIAL = "Initial"
    RECOVERY = "Recovery"


class Grant(Told):
    """One node's permission to be made unavailable; an entry of the ledger."""

    node: NodeName
    """The node."""
    uid: Uid
    """Its UID."""
    policy: NodeName
    """The policy that asked."""
    token: Hash
    """Random; the node's record holds the same as long as the grant is used."""
    since: Time
    """When it was granted."""
    purpose: Purpose = Purpose.ROLL_OUT
    """RollOut: the node is taken to other layouts, or repaired, and counts against maxUnavailable. Initial: a new node gets its first layout,
    and counts against maxInitializing. Recovery: a verified node that was restarted or was not Ready is verified again; nothing of it is
    changed."""


class DriverStatus(Told):
    """What is true of the driver, as last read."""

    observed_generation: int | None = -1
    """The metadata.generation that the conditions were said of; -1: none yet."""
    in_flight: Annotated[list[Grant], Field(max_length=1024, json_schema_extra=keyed("node"))] = []
    """The one ledger of grants: the nodes that may be unavailable through this operator now."""
    conditions: Annotated[list[Condition], Field(max_length=16, json_schema_extra=keyed("type"))] = []
    """Ready: whether the cluster has what this driver needs, and the exact fix where not."""
