"""The kinds of gpupartition.dev/v1alpha1 as frozen pydantic models; crd.py makes the CRDs from them, rules.py has their CEL rules.

Field names are camelCase on the wire, and what stands below a field is what `kubectl explain` says of it. The schema admits only what
works: a field comes with its feature. No field's presence alone carries meaning, because client-side apply drops null structs. Versions
only add fields.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from gpupartition.api import rules
from gpupartition.api.rules import checks, fixed, keyed, member


class Model(BaseModel):
    """Base of every model here: camelCase on the wire, frozen, unknown fields refused, fields described by the text below them."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )


def _cut(limit: int) -> BeforeValidator:
    """Shorten a text that people read: what happened must reach them, even where it is longer than the field."""
    return BeforeValidator(
        lambda text: text[: limit - 1] + "…" if isinstance(text, str) and len(text) > limit else text
    )


Name = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
Subdomain = Annotated[str, Field(min_length=1, max_length=253, pattern=_SUBDOMAIN)]
Quantity = Annotated[str, Field(min_length=1, max_length=32, json_schema_extra=checks(rules.QUANTITY))]
LabelKey = Annotated[str, Field(min_length=1, max_length=317)]
LabelValue = Annotated[str, Field(max_length=63)]
CheckedLabelKey = Annotated[LabelKey, Field(json_schema_extra=checks(rules.LABEL_KEY))]
CheckedLabelValue = Annotated[LabelValue, Field(json_schema_extra=checks(rules.LABEL_VALUE))]
ProfileName = Annotated[str, Field(min_length=1, max_length=40)]
Product = Annotated[str, Field(min_length=1, max_length=63)]
CounterName = Annotated[str, Field(min_length=1, max_length=63)]
CapacityName = Annotated[str, Field(min_length=1, max_length=96)]
NodeCount = Annotated[int | str, Field(json_schema_extra=checks(rules.NODE_COUNT))]  # 3, or "10%" of the matching nodes
FailureCount = Annotated[int | str, Field(json_schema_extra=checks(rules.FAILURE_COUNT))]  # 0, 3, or "10%" of them

# What the operator writes: bounded like everything else, never refused for its form.
NodeName = Annotated[str, Field(max_length=253)]
Uid = Annotated[str, Field(max_length=128)]
Hash = Annotated[str, Field(max_length=64)]
Reference = Annotated[str, Field(max_length=512)]
Reason = Annotated[str, Field(max_length=128)]
Message = Annotated[str, _cut(4096), Field(max_length=4096)]

# ------------------------------------------------------------------------------------------------------------ GpuPartitionDriver


class DaemonSetRef(Model):
    """The DaemonSet that runs the driver's node plugin."""

    namespace: Name
    """Namespace of the DaemonSet."""
    name: Annotated[str, Field(min_length=1, max_length=236, pattern=_SUBDOMAIN)]
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
    """Equal GPUs."""

    count: Annotated[int, Field(ge=1, le=64)]
    """How many there are on each node."""
    product: Product
    """What they are, as layouts match it and as the devices' attribute productName says."""
    memory: Quantity
    """Memory of one GPU, such as 80Gi."""
    counters: Annotated[
        dict[CounterName, Quantity], Field(max_length=32, json_schema_extra=checks(rules.COUNTER_NAMES))
    ] = {}
    """What the partitions of one GPU share; without any it is the memory alone."""
    profiles: Annotated[list[Profile], Field(max_length=32, json_schema_extra=keyed("name"))] = []
    """The partitions that one of these GPUs can be cut into, for layouts of type Choices."""


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


class PublishSpec(Model):
    """A DRA driver name that this operator owns: it writes the ResourceSlices itself."""

    driver_name: Annotated[
        str,
        Field(
            min_length=1,
            max_length=63,
            pattern=_SUBDOMAIN,
            json_schema_extra=checks(
                fixed("slices and claims name it; make another GpuPartitionDriver for another driver name")
            ),
        ),
    ]
    """Name of the DRA driver, as DeviceClasses select it: device.driver == "gpu.example.org". Nothing else may publish under it. Immutable."""
    inventory: Inventory
    """Where the GPUs of a node are known from."""


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


class Grant(Model):
    """One node's permission to be made unavailable; an entry of the ledger."""

    node: NodeName
    """The node."""
    uid: Uid
    """Its UID."""
    policy: NodeName
    """The policy that asked."""
    token: Hash
    """Random; the node's record holds the same as long as the grant is used."""
    since: datetime
    """When it was granted."""
    purpose: Purpose = Purpose.ROLL_OUT
    """RollOut: the node is taken to other layouts, or repaired, and counts against maxUnavailable. Initial: a new node gets its first layout,
    and counts against maxInitializing. Recovery: a verified node that was restarted or was not Ready is verified again; nothing of it is
    changed."""


class Condition(Model):
    """metav1.Condition."""

    type: Annotated[str, Field(min_length=1, max_length=316, pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?$")]
    """What is true or not, such as Ready."""
    status: Literal["True", "False", "Unknown"]
    """Whether it is."""
    reason: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    """Why, in one word for programs."""
    message: Message = ""
    """Why, for people: what is wrong, where, and what to do next."""
    observed_generation: int | None = None
    """The metadata.generation that this was said of."""
    last_transition_time: datetime
    """When status changed last."""


class DriverStatus(Model):
    """What is true of the driver, as last read."""

    observed_generation: int | None = -1
    """The metadata.generation that the conditions were said of; -1: none yet."""
    in_flight: Annotated[list[Grant], Field(max_length=1024, json_schema_extra=keyed("node"))] = []
    """The one ledger of grants: the nodes that may be unavailable through this operator now."""
    conditions: Annotated[list[Condition], Field(max_length=16, json_schema_extra=keyed("type"))] = []
    """Ready: whether the cluster has what this driver needs, and the exact fix where not."""


# ------------------------------------------------------------------------------------------------------------ GpuPartitionPolicy


class Requirement(Model, json_schema_extra=checks(*rules.REQUIREMENT)):
    """One requirement of a label selector."""

    key: CheckedLabelKey
    """The label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How the label compares with the values."""
    values: Annotated[list[CheckedLabelValue], Field(max_length=64)] = []
    """For In and NotIn: at least one; for Exists and DoesNotExist: none."""


class NodeSelector(Model, json_schema_extra=checks(rules.NODE_SELECTOR)):
    """A label selector over nodes, with at least one requirement."""

    match_labels: Annotated[
        dict[LabelKey, CheckedLabelValue], Field(max_length=32, json_schema_extra=checks(*rules.MATCH_LABELS))
    ] = {}
    """Labels that a node must have, with their values."""
    match_expressions: Annotated[list[Requirement], Field(max_length=32)] = []
    """Requirements that a node must fulfil."""


class Match(Model, json_schema_extra=checks(*rules.MATCH)):
    """Which GPUs of a node a layout is for: all, or those that satisfy both lists (an empty list restricts nothing)."""

    all: bool = False
    """Every GPU that no earlier layout matches; on the last layout only."""
    products: Annotated[list[Product], Field(max_length=32, json_schema_extra=checks(rules.UNIQUE))] = []
    """GPUs of one of these products."""
    indexes: Annotated[
        list[Annotated[int, Field(ge=0, le=63)]], Field(max_length=64, json_schema_extra=checks(rules.UNIQUE))
    ] = []
    """GPUs with one of these numbers on their node, counted from 0."""


class Equal(Model):
    """The GPU in equal parts and, guarded by a shared counter, also as a whole."""

    parts: Annotated[int, Field(ge=2, le=63)]
    """How many parts; for the GPU in one piece write type: Whole."""
    offer_whole: bool = True
    """Whether the whole GPU is offered too, as long as none of its parts is in use. The default is true."""


class Choices(Model):
    """Every placement of these profiles is offered; counters let the scheduler choose."""

    profiles: Annotated[list[ProfileName], Field(min_length=1, max_length=32, json_schema_extra=checks(rules.UNIQUE))]
    """Names of profiles that the driver's inventory has for the GPU."""
    offer_whole: bool = True
    """Whether the whole GPU is offered too, as long as no part of it is in use. The default is true."""


class ProfileCount(Model):
    """So many partitions of one profile."""

    name: ProfileName
    """The profile, such as 1g.10gb, as the GPU's driver writes it; or, as the only entry, a preset of mig-parted, such as all-balanced."""
    count: Annotated[int, Field(ge=1, le=16)] = 1
    """How many of them on each GPU; the default is 1."""


class GpuMode(Model):
    """Modes of AMD's GPUs. Which pairs a product can have is in the operator's table; a pair that it does not know is refused."""

    compute: Literal["SPX", "DPX", "QPX", "CPX"]
    """The compute mode, which is that of a GPU: in one piece (SPX), in two (DPX), in four (QPX), or a partition for each of its dies (CPX)."""
    memory: Literal["NPS1", "NPS2", "NPS4"]
    """The memory mode: into how many domains the memory of a GPU is cut. It is that of all GPUs of a node, so all layouts of a policy have the
    same, and to change it the kernel's driver is loaded anew: then the whole node is drained."""


class SharingCapacity(Model, json_schema_extra=checks(*rules.SHARING_CAPACITY)):
    """How one capacity of a shared device may be asked for (ResourceSlice `requestPolicy`)."""

    default: Quantity | None = None
    """What a claim gets that does not ask; always needed."""
    min: Quantity | None = None
    """The least that a claim gets."""
    max: Quantity | None = None
    """The most that a claim can ask for."""
    step: Quantity | None = None
    """A claim gets min and a multiple of step, rounded up."""


class SharingMode(StrEnum):
    """Whether a device serves one claim or several."""

    EXCLUSIVE = "Exclusive"
    SHARED = "Shared"


class Sharing(Model, json_schema_extra=checks(rules.SHARING)):
    """Whether a partition may serve several claims (consumable capacity)."""

    mode: SharingMode = SharingMode.EXCLUSIVE
    """Exclusive (the default): one claim per partition. Shared: several, as far as its capacity lasts."""
    capacity: Annotated[
        dict[CapacityName, SharingCapacity], Field(max_length=16, json_schema_extra=checks(rules.CAPACITY_NAMES))
    ] = {}
    """For mode Shared: how each capacity may be asked for, such as memory: {default: 1Gi, min: 1Gi, step: 1Gi}."""


class LayoutType(StrEnum):
    """How a GPU is cut."""

    WHOLE = "Whole"
    EQUAL = "Equal"
    CHOICES = "Choices"
    PROFILES = "Profiles"
    MODE = "Mode"
    KEEP = "Keep"


class Layout(
    Model,
    json_schema_extra=checks(
        member("Equal", "equal", "{parts: 2}"),
        member("Choices", "choices", "{profiles: [...]}"),
        member("Profiles", "profiles", "[{name: 1g.10gb, count: 7}]"),
        member("Mode", "mode", "{compute: CPX, memory: NPS4}"),
    ),
):
    """One way to cut GPUs, and which GPUs it is for."""

    name: Name
    """What the layout is called in status and messages; unique in the policy."""
    match: Match
    """Which GPUs it is for. The first layout that matches a GPU wins."""
    type: LayoutType
    """How the GPUs are cut. Whole: not at all. Equal: in equal parts. Choices: as the scheduler likes, among profiles. Profiles: into exactly
    these partitions. Mode: as AMD's modes say. Keep: they are left as they are. All but Whole and Keep have a member of that name."""
    equal: Equal | None = None
    """For type Equal: in how many parts."""
    choices: Choices | None = None
    """For type Choices: among which profiles."""
    profiles: Annotated[
        list[ProfileCount] | None,
        Field(min_length=1, max_length=16, json_schema_extra=keyed("name") | checks(rules.PRESET_ALONE)),
    ] = None
    """For type Profiles: which partitions, and how many."""
    mode: GpuMode | None = None
    """For type Mode: which."""
    sharing: Sharing = Sharing()
    """Whether a partition may serve several claims; without it, each serves one."""


class DrainMode(StrEnum):
    """What happens to pods that hold devices which would change: they are waited for before a node is closed, or after, or evicted."""

    WHEN_IDLE = "WhenIdle"
    WAIT = "Wait"
    EVICT = "Evict"


class OnTimeout(StrEnum):
    """What becomes of a node whose holders did not end in time."""

    SKIP = "Skip"
    HALT = "Halt"
    FORCE_DELETE = "ForceDelete"


class PodSelector(Model, json_schema_extra=checks(rules.POD_SELECTOR)):
    """A label selector over pods, with at least one requirement."""

    match_labels: Annotated[
        dict[LabelKey, CheckedLabelValue], Field(max_length=16, json_schema_extra=checks(rules.LABEL_KEYS))
    ] = {}
    """Labels that a pod must have, with their values."""
    match_expressions: Annotated[list[Requirement], Field(max_length=16)] = []
    """Requirements that a pod must fulfil."""


class Drain(Model, json_schema_extra=checks(*rules.DRAIN)):
    """What is done about pods that hold devices which would change."""

    mode: DrainMode = DrainMode.WHEN_IDLE
    """WhenIdle: nodes are taken as they fall idle, and not touched before. Wait: a node is closed to new claims first, and then the holders
    are waited for. Evict: as Wait, and the pods among them are evicted through the Eviction API, so that disruption budgets hold; it takes the
    rights of manifests/components/evict."""
    timeout_seconds: Annotated[int | None, Field(ge=1, le=604800)] = None
    """For how long the holders of a node that is closed to new claims are waited for, or evicted. Without it the operator's setting for the
    mode holds: WhenIdle 60, Wait 3600, Evict 1800."""
    on_timeout: OnTimeout = OnTimeout.SKIP
    """What happens when that is over. Skip: the node is opened again and its turn comes last. Halt: it is opened again and counts as failed, so
    that the roll-out halts as maxFailed says. ForceDelete: with mode Evict, pods whose eviction was refused are deleted, with their own grace
    period; it takes the rights of manifests/components/force-delete too. Pods that are only waited for are never deleted."""
    grace_period_seconds: Annotated[int | None, Field(ge=1, le=86400)] = None
    """With mode Evict: how long an evicted pod may take to end. Without it each pod has its own grace period."""
    delete_empty_dir: bool = False
    """With mode Evict: whether pods with an emptyDir volume are evicted too; what is in there is lost. Else they are waited for."""
    force: bool = False
    """With mode Evict: whether pods without a controller are evicted too; nobody makes them anew. Else they are waited for."""
    wait_for_completion: PodSelector | None = None
    """With mode Evict: pods that are never evicted, only waited for, such as training jobs."""


class OnFailure(StrEnum):
    """What becomes of a node that fails to apply or to verify, and of the others."""

    ROLL_BACK = "RollBack"
    HALT = "Halt"
    CONTINUE = "Continue"


class Day(StrEnum):
    """A day of the week, in the order in which Python and ISO 8601 count them."""

    MON = "Mon"
    TUE = "Tue"
    WED = "Wed"
    THU = "Thu"
    FRI = "Fri"
    SAT = "Sat"
    SUN = "Sun"


class Window(Model, json_schema_extra=checks(rules.WINDOW)):
    """A time of the day in which nodes may be taken, as a clock on a wall in that time zone shows it."""

    days: Annotated[list[Day], Field(max_length=7, json_schema_extra=checks(rules.UNIQUE))] = []
    """Days on which it begins; without any, every day. One that lasts beyond midnight belongs to the day on which it begins."""
    start: Annotated[str, Field(max_length=5, json_schema_extra=checks(rules.START))]
    """When it begins, such as "22:00"."""
    end: Annotated[str, Field(max_length=5, json_schema_extra=checks(rules.END))]
    """When it is over, such as "06:00", on the next day where that is earlier than start; "24:00" is the end of the day."""
    time_zone: Annotated[str, Field(min_length=1, max_length=64, json_schema_extra=checks(rules.TIME_ZONE))] = "UTC"
    """Whose clock: a name of the IANA time zone database, such as Europe/Berlin. The default is UTC. When clocks change, an hour that is left
    out is not in the window, and one that comes twice is in it twice."""


class Rollout(Model, json_schema_extra=checks(*rules.ROLLOUT)):
    """How fast, and how far."""

    paused: bool = False
    """No further node is taken, and nobody is evicted; a node that is being changed is finished."""
    limit: NodeCount = "100%"
    """At most so many nodes get the new layouts: a number, or a percentage of the matching nodes (rounded down, at least 1). Raise it step by
    step: 1, then "10%", then "100%"."""
    max_unavailable: NodeCount = 1
    """How many of the matching nodes may be unavailable at once: a number, or a percentage of them (rounded down, at least 1). Nodes that
    are not Ready count too, and so do nodes that others have cordoned or are about to remove."""
    max_initializing: NodeCount = "10%"
    """How many new nodes may get their first layout at once, beside maxUnavailable: a number, or a percentage of the matching nodes (rounded
    down, at least 1). New is a node that was created after the policy was first accepted, was never verified, and is in nobody's use."""
    ignore_not_ready_after_seconds: Annotated[int | None, Field(ge=0, le=604800)] = None
    """A node that has not been Ready for so many seconds no longer counts: neither as unavailable, nor as one of the nodes that a percentage
    is of. Without it the operator's setting holds (3600)."""
    max_failed: FailureCount = 0
    """How many nodes may have failed with the present layouts before no other is taken: a number, or a percentage of the matching nodes
    (rounded down, at least 1). Nodes that were rolled back count too. 0: the first failure halts the roll-out."""
    on_failure: OnFailure = OnFailure.ROLL_BACK
    """What becomes of a node that fails to apply or to verify. RollBack: it gets back the layout that it had. Halt: it stays as it is, closed
    to new claims, for somebody to look at; a retry or other layouts lead on. Continue: as RollBack, and a node that cannot even be rolled
    back counts against maxFailed instead of maxUnavailable (the policy's and the driver's), so that the others go on."""
    pause_between_seconds: Annotated[int, Field(ge=0, le=86400)] = 0
    """After a node has got its layout, no other is taken for so many seconds."""
    min_ready_seconds: Annotated[int | None, Field(ge=0, le=3600)] = None
    """For how many seconds a node must have published exactly what is wanted before it is opened again. Without it the operator's setting
    holds (10)."""
    progress_deadline_seconds: Annotated[int, Field(ge=0, le=604800)] = 0
    """After so many seconds in which nothing moved though something should, Stalled is True and says what is waited for; the operator goes on
    trying. 0: never."""
    windows: Annotated[list[Window], Field(max_length=16)] = []
    """When nodes may be taken; a node that is being changed when the last window closes is finished, but nobody is evicted
    outside of them. Without any: at any time."""
    drain: Drain = Drain()
    """What is done about pods that hold devices which would change."""


class PolicySpec(Model):
    """How the GPUs of the selected nodes shall be partitioned."""

    driver: Annotated[
        Subdomain,
        Field(
            json_schema_extra=checks(
                fixed("its nodes have that driver's layouts; make another policy for another driver")
            )
        ),
    ]
    """Name of the GpuPartitionDriver that drives the GPUs. Immutable."""
    mode: Literal["Enforce", "Observe"] = "Enforce"
    """Enforce: get every node there. Observe: report what would change, and touch nothing."""
    node_selector: NodeSelector
    """Which nodes; a node has one policy."""
    layouts: Annotated[
        list[Layout], Field(min_length=1, max_length=16, json_schema_extra=keyed("name") | checks(rules.LAYOUTS))
    ]
    """How which GPUs are cut; the first that matches a GPU wins. GPUs that none matches are kept as they are."""
    rollout: Rollout = Rollout()
    """How fast, and how far."""
    deletion_policy: Literal["Retain", "Revert"] = "Retain"
    """What becomes of the nodes when the policy is deleted. Retain: they keep their layout. Revert: they go back to what they had before
    this operator first touched them, with the same care."""


class NodeCounts(Model):
    """How many nodes are where."""

    matched: int = 0
    """Nodes that the policy selects."""
    up_to_date: int = 0
    """Nodes whose published devices were seen to be those of the layouts."""
    in_progress: int = 0
    """Nodes that are being changed."""
    pending: int = 0
    """Nodes whose turn has not come."""
    blocked: int = 0
    """Nodes that wait for holders of their devices."""
    failed: int = 0
    """Nodes that did not get there, rolled back or not."""
    skipped: int = 0
    """Nodes that are left alone, with a reason."""
    unavailable: int = 0
    """Nodes that count against maxUnavailable now."""
    would_change: int = 0
    """Nodes that would be changed, if mode were Enforce."""


class Blocker(Model):
    """Who keeps a node from being repartitioned."""

    node: NodeName
    """The node."""
    claim: Reference = ""
    """The ResourceClaim, as namespace/name."""
    pod: Reference = ""
    """The pod that uses the claim, as namespace/name."""
    pdb: Reference = ""
    """The PodDisruptionBudgets that do not allow its eviction, as namespace/name."""
    device: Reference = ""
    """The device that is held."""
    reason: Reason = ""
    """What kind of holder it is."""
    since: datetime | None = None
    """Since when it has been in the way."""


class FailedNode(Model):
    """A node that did not get there, and why."""

    node: NodeName
    """The node."""
    reason: Reason
    """Why, in one word for programs."""
    message: Message = ""
    """Why, for people."""
    since: datetime | None = None
    """Since when."""


class ProfileCapacity(Model):
    """How many devices of one profile are published, and how many of them are allocated."""

    profile: Annotated[str, Field(max_length=128)]
    """The profile."""
    total: int
    """Devices published."""
    allocated: int
    """Devices allocated to a claim."""


class DriftBrake(Model):
    """The brake that keeps a policy from repairing many nodes at once whose drift has one cause."""

    since: datetime | None = None
    """Since when no node is touched; none while the brake is off."""
    nodes: Annotated[list[NodeName], Field(max_length=5)] = []
    """Some of the nodes that drifted."""
    accepted: Annotated[str, Field(max_length=262144)] = ""
    """The value of the annotation gpupartition.dev/accept-drift that was last obeyed."""
    accepted_at: datetime | None = None
    """When it was obeyed; drift from before that counts no more."""


class PolicyStatus(Model):
    """What is true of the policy's nodes, as last read."""

    observed_generation: int = -1
    """The metadata.generation that everything here was said of; -1: none yet."""
    accepted_at: datetime | None = None
    """When this generation was accepted."""
    first_accepted_at: datetime | None = None
    """When the first generation was accepted: nodes that were created later are new."""
    revision: Hash = ""
    """Short hash of all layouts that the nodes shall have."""
    progress: Hash = ""
    """Nodes up to date and nodes matched, such as 7/12."""
    nodes: NodeCounts = NodeCounts()
    """How many nodes are where."""
    capacity: Annotated[list[ProfileCapacity], Field(max_length=512)] = []
    """Devices of each profile on the policy's nodes."""
    blocked_by: Annotated[list[Blocker], Field(max_length=10)] = []
    """Who keeps nodes from being repartitioned; the first ten."""
    failed_nodes: Annotated[list[FailedNode], Field(max_length=10)] = []
    """Nodes that did not get there; the first ten."""
    drift: DriftBrake | None = None
    """Whether so many nodes drifted together that none is touched."""
    conditions: Annotated[list[Condition], Field(max_length=16, json_schema_extra=keyed("type"))] = []
    """Accepted, Ready and, only while true, Reconciling and Stalled."""


# --------------------------------------------------------------------------------------------------------- GpuPartitionNodeState


class Phase(StrEnum):
    """Where a node is on its way; domain/lifecycle.py has the table."""

    PENDING = "Pending"
    ADMITTED = "Admitted"
    QUIESCING = "Quiescing"
    DRAINING = "Draining"
    APPLYING = "Applying"
    VERIFYING = "Verifying"
    RELEASING = "Releasing"
    UP_TO_DATE = "UpToDate"
    ROLLING_BACK = "RollingBack"
    ABORTING = "Aborting"
    FAILED = "Failed"
    ROLLED_BACK = "RolledBack"
    SKIPPED = "Skipped"


class PolicyRef(Model):
    """The policy that has the node."""

    name: NodeName
    """Its name."""
    uid: Uid
    """Its UID."""


class NodeStateSpec(Model, json_schema_extra=checks(fixed("delete the record; the operator makes it anew"))):
    """Whose node this is; immutable."""

    policy_ref: PolicyRef
    """The policy that has the node."""
    node_uid: Uid = Field(alias="nodeUID")
    """The UID of the Node that this is about: a node that comes back under its name is another one."""
    driver: NodeName
    """Name of the GpuPartitionDriver."""


class Assigned(Model):
    """A layout as a node can have it: by which value it is assigned, and the pool that it publishes.

    `assignment` is None where the node carries none (it runs the base). `pool` is the canonical JSON of domain/pool.py: what must be
    there again after rolling back does not depend on objects that somebody may have changed meanwhile. `since` is when the record
    first named it: a config object that was touched after that cannot be collected before it is used.
    """

    fingerprint: Hash = ""
    """The layout's fingerprint."""
    assignment: LabelValue | None = None
    """The value that assigns it to the node; none for the driver's base."""
    pool: Annotated[str, Field(max_length=262144)] = ""
    """The devices that it publishes, as canonical JSON."""
    revision: Hash = ""
    """The policy's revision that it belongs to."""
    since: datetime | None = None
    """When the record first named it."""


class Restart(Model):
    """The driver pod that has to go, recorded before it is deleted, and the step for which."""

    pod_uid: Uid = Field(alias="podUID")
    """UID of the pod."""
    step: Hash
    """The step for which it has to go."""
    agent: bool = False
    """Whether it is not the driver's plugin but the pod that carries out the node's assignment."""


class NodeStateStatus(Model):
    """The record of one node, written whole in one PUT (there is no status subresource: token, step, phase and finalizer move together)."""

    phase: Phase = Phase.PENDING
    """Where the node is on its way."""
    since: datetime | None = None
    """When it got there; time limits count from here."""
    target: Assigned | None = None
    """What the node shall have."""
    current: Assigned | None = None
    """What the node was last verified to have."""
    previous: Assigned | None = None
    """What the node goes back to, if this change fails."""
    original: Assigned | None = None
    """What the node had before this operator first touched it."""
    change: Literal["None", "Restart", "Repartition"] = "None"
    """How deep the change goes: nothing to do, the driver's pod is restarted, or the devices change."""
    token: Hash = ""
    """The token of the node's grant, as long as it has one."""
    step: Hash = ""
    """Random; names this very attempt to write the assignment."""
    generation: int = 0
    """Generation of the slices, where the operator writes them; raised with every step."""
    dirty: bool = False
    """Whether a failed attempt was left for a new target: the node cannot simply be let go."""
    outcome: Phase | None = None
    """The phase at rest that Releasing or Aborting leads to."""
    restart: Restart | None = None
    """The driver's pod that has to go."""
    quiesce: Literal["DeviceTaint", "Cordon", "Both"] = "DeviceTaint"
    """How new claims are kept from the node in this attempt."""
    boot_id: Uid = Field(default="", alias="bootID")
    """The node's boot ID when it was admitted or last verified: another one means that it was restarted."""
    gpus: int = 0
    """How many GPUs the node had when it was admitted."""
    recovering: bool = False
    """Whether the node is only verified again, after it was restarted or was not Ready."""
    drifted: datetime | None = None
    """When it was last noticed that the node is no longer what it was verified to be."""
    repairs: Annotated[list[datetime], Field(max_length=8)] = []
    """When drift of the node was repaired, within the last day."""
    contests: Annotated[list[datetime], Field(max_length=8)] = []
    """When somebody else was seen to have written the node's assignment, within the last hour."""
    attempts: int = 0
    """How often this target was tried."""
    retry: Annotated[str, Field(max_length=262144)] = ""
    """The value of the annotation gpupartition.dev/retry when the node last failed: another one asks to try again."""
    blockers: Annotated[list[Blocker], Field(max_length=10)] = []
    """Who is in the way; the first ten."""
    reason: Reason = ""
    """Why the node is where it is, in one word for programs."""
    message: Message = ""
    """Why, for people."""
