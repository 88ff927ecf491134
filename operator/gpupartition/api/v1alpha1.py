"""The kinds of gpupartition.dev/v1alpha1 as frozen pydantic models; crd.py makes the CRDs from them.

Field names are camelCase on the wire. The schema admits only what works: a field comes with its feature. No field's presence alone carries
meaning, because client-side apply drops null structs. Versions only add fields.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class Model(BaseModel):
    """Base of every model here: camelCase on the wire, frozen, unknown fields refused."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


Name = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
Subdomain = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
Quantity = Annotated[str, Field(min_length=1, max_length=32)]
LabelKey = Annotated[str, Field(min_length=1, max_length=317)]
LabelValue = Annotated[str, Field(max_length=63)]
NodeCount = int | str  # 3, or "10%" of the matching nodes

# ------------------------------------------------------------------------------------------------------------ GpuPartitionDriver


class DaemonSetRef(Model):
    """The DaemonSet that runs the driver's node plugin."""

    namespace: Name
    name: Subdomain


class ExampleDriverSpec(Model):
    """kubernetes-sigs/dra-example-driver: one DaemonSet per layout, made from the base's pod template."""

    daemon_set: DaemonSetRef
    gpus_per_node: Annotated[int, Field(ge=1, le=64)]


class Placement(Model):
    """One place where a profile can be cut out of a GPU: what it takes from the GPU's counters."""

    counters: Annotated[dict[Name, Quantity], Field(min_length=1, max_length=32)]


class Profile(Model):
    """A partition that a GPU of this inventory can be cut into; each placement is offered as one device."""

    name: Annotated[str, Field(min_length=1, max_length=40)]
    capacity: Annotated[dict[str, Quantity], Field(max_length=16)] = {}
    placements: Annotated[list[Placement], Field(min_length=1, max_length=32)]


class GpuGroup(Model):
    """`count` equal GPUs; `counters` default to the memory alone."""

    count: Annotated[int, Field(ge=1, le=64)]
    product: Annotated[str, Field(min_length=1, max_length=63)]
    memory: Quantity
    counters: Annotated[dict[Name, Quantity], Field(max_length=32)] = {}
    profiles: Annotated[list[Profile], Field(max_length=32)] = []


class NodeLabelInventory(Model):
    """Names of the node labels that say how many GPUs a node has, which, and with how much memory (a quantity, or MiB as a bare number)."""

    count: LabelKey
    product: LabelKey
    memory: LabelKey


class Inventory(Model):
    """Where the GPUs of a node are known from; exactly one of the two."""

    node_labels: NodeLabelInventory | None = None
    gpus: Annotated[list[GpuGroup], Field(max_length=16)] = []


class PublishSpec(Model):
    """A DRA driver name that this operator owns: it writes the ResourceSlices itself."""

    driver_name: Annotated[str, Field(min_length=1, max_length=63)]
    inventory: Inventory


class DriverType(StrEnum):
    """How the GPUs are driven."""

    EXAMPLE_DRIVER = "ExampleDriver"
    PUBLISH = "Publish"


class DriverSpec(Model):
    """How GPUs are driven, and what all policies together may cost."""

    type: DriverType
    example_driver: ExampleDriverSpec | None = None
    publish: PublishSpec | None = None
    max_unavailable: NodeCount = "10%"
    quiesce: Literal["Auto", "DeviceTaint"] = "Auto"


class Grant(Model):
    """One node's permission to be made unavailable; an entry of the ledger."""

    node: str
    uid: str
    policy: str
    token: str
    since: datetime


class Condition(Model):
    """metav1.Condition."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""
    observed_generation: int | None = None
    last_transition_time: datetime


class DriverStatus(Model):
    """`inFlight` is the one ledger of grants, changed only by compare-and-swap."""

    observed_generation: int | None = -1
    in_flight: Annotated[list[Grant], Field(max_length=1024)] = []
    conditions: Annotated[list[Condition], Field(max_length=16)] = []


# ------------------------------------------------------------------------------------------------------------ GpuPartitionPolicy


class Requirement(Model):
    """One requirement of a label selector."""

    key: LabelKey
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: Annotated[list[LabelValue], Field(max_length=64)] = []


class NodeSelector(Model):
    """A label selector over nodes, with at least one requirement."""

    match_labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=32)] = {}
    match_expressions: Annotated[list[Requirement], Field(max_length=32)] = []


class Match(Model):
    """Which GPUs of a node a layout is for: all, or those that satisfy both lists (an empty list restricts nothing)."""

    all: bool = False
    products: Annotated[list[Annotated[str, Field(max_length=63)]], Field(max_length=32)] = []
    indexes: Annotated[list[Annotated[int, Field(ge=0, le=63)]], Field(max_length=64)] = []


class Equal(Model):
    """The GPU in `parts` equal parts and, guarded by a shared counter, also as a whole."""

    parts: Annotated[int, Field(ge=2, le=63)]
    offer_whole: bool = True


class Choices(Model):
    """Every placement of these profiles is offered; counters let the scheduler choose."""

    profiles: Annotated[list[Annotated[str, Field(min_length=1, max_length=40)]], Field(min_length=1, max_length=32)]
    offer_whole: bool = True


class SharingCapacity(Model):
    """How one capacity of a shared device may be asked for (ResourceSlice `requestPolicy`)."""

    default: Quantity | None = None
    min: Quantity | None = None
    max: Quantity | None = None
    step: Quantity | None = None


class SharingMode(StrEnum):
    """Whether a device serves one claim or several."""

    EXCLUSIVE = "Exclusive"
    SHARED = "Shared"


class Sharing(Model):
    """Shared: each partition may serve several claims (consumable capacity)."""

    mode: SharingMode = SharingMode.EXCLUSIVE
    capacity: Annotated[dict[Annotated[str, Field(max_length=63)], SharingCapacity], Field(max_length=16)] = {}


class LayoutType(StrEnum):
    """How a GPU is cut."""

    WHOLE = "Whole"
    EQUAL = "Equal"
    CHOICES = "Choices"
    KEEP = "Keep"


class Layout(Model):
    """One way to cut GPUs, and which GPUs it is for. The first layout that matches a GPU wins."""

    name: Name
    match: Match
    type: LayoutType
    equal: Equal | None = None
    choices: Choices | None = None
    sharing: Sharing = Sharing()


class DrainMode(StrEnum):
    """WhenIdle takes nodes as they fall idle; Wait quiesces first and then waits for the holders to end."""

    WHEN_IDLE = "WhenIdle"
    WAIT = "Wait"


class Drain(Model):
    """What is done about pods that hold devices which would change."""

    mode: DrainMode = DrainMode.WHEN_IDLE


class Rollout(Model):
    """How fast, and how far."""

    paused: bool = False
    limit: NodeCount = "100%"
    max_unavailable: NodeCount = 1
    drain: Drain = Drain()


class PolicySpec(Model):
    """How the GPUs of the selected nodes shall be partitioned."""

    driver: Subdomain
    mode: Literal["Enforce", "Observe"] = "Enforce"
    node_selector: NodeSelector
    layouts: Annotated[list[Layout], Field(min_length=1, max_length=16)]
    rollout: Rollout = Rollout()
    deletion_policy: Literal["Retain", "Revert"] = "Retain"


class NodeCounts(Model):
    """How many nodes are where."""

    matched: int = 0
    up_to_date: int = 0
    in_progress: int = 0
    pending: int = 0
    blocked: int = 0
    failed: int = 0
    skipped: int = 0
    unavailable: int = 0
    would_change: int = 0


class Blocker(Model):
    """Who keeps a node from being repartitioned."""

    node: str
    claim: str = ""
    pod: str = ""
    device: str = ""
    reason: str = ""
    since: datetime | None = None


class FailedNode(Model):
    """A node that did not get there, and why."""

    node: str
    reason: str
    message: str = ""
    since: datetime | None = None


class ProfileCapacity(Model):
    """How many devices of one profile are published, and how many of them are allocated."""

    profile: str
    total: int
    allocated: int


class PolicyStatus(Model):
    """What is true of the policy's nodes, as last read."""

    observed_generation: int = -1
    accepted_at: datetime | None = None
    revision: str = ""
    progress: str = ""
    nodes: NodeCounts = NodeCounts()
    capacity: Annotated[list[ProfileCapacity], Field(max_length=64)] = []
    blocked_by: Annotated[list[Blocker], Field(max_length=10)] = []
    failed_nodes: Annotated[list[FailedNode], Field(max_length=10)] = []
    conditions: Annotated[list[Condition], Field(max_length=16)] = []


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

    name: str
    uid: str


class NodeStateSpec(Model):
    """Whose node this is; immutable."""

    policy_ref: PolicyRef
    node_uid: str = Field(alias="nodeUID")
    driver: str


class Assigned(Model):
    """A layout as a node can have it: by which value it is assigned, and the pool that it publishes.

    `assignment` is None where the node carries none (it runs the base). `pool` is the canonical JSON of domain/pool.py: what must be
    there again after rolling back does not depend on objects that somebody may have changed meanwhile.
    """

    fingerprint: str = ""
    assignment: str | None = None
    pool: Annotated[str, Field(max_length=262144)] = ""
    revision: str = ""


class Restart(Model):
    """The driver pod that has to go, recorded before it is deleted, and the step for which."""

    pod_uid: str = Field(alias="podUID")
    step: str


class NodeStateStatus(Model):
    """The record of one node, written whole in one PUT (there is no status subresource: token, step, phase and finalizer move together)."""

    phase: Phase = Phase.PENDING
    since: datetime | None = None
    target: Assigned | None = None
    current: Assigned | None = None
    previous: Assigned | None = None
    original: Assigned | None = None
    change: Literal["None", "Restart", "Repartition"] = "None"
    token: str = ""
    step: str = ""
    generation: int = 0
    dirty: bool = False
    outcome: Phase | None = None
    restart: Restart | None = None
    boot_id: str = Field(default="", alias="bootID")
    gpus: int = 0
    attempts: int = 0
    retry: str = ""
    blockers: Annotated[list[Blocker], Field(max_length=10)] = []
    reason: str = ""
    message: str = ""
