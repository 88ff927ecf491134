"""GpuPartitionNodeState: the record of one node."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from gpupartition.api.rules import checks, fixed
from gpupartition.api.v1alpha1.shared import Blocker, Hash, LabelValue, Message, NodeName, Reason, Time, Told, Uid


class Phase(StrEnum):
    """Where a node is on its way; domain/phases.py has the table."""

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


class PolicyRef(Told):
    """The policy that has the node."""

    name: NodeName
    """Its name."""
    uid: Uid
    """Its UID."""


class NodeStateSpec(Told, json_schema_extra=checks(fixed("delete the record; the operator makes it anew"))):
    """Whose node this is; immutable."""

    policy_ref: PolicyRef
    """The policy that has the node."""
    node_uid: Uid = Field(alias="nodeUID")
    """The UID of the Node that this is about: a node that comes back under its name is another one."""
    driver: NodeName
    """Name of the GpuPartitionDriver."""


class Assigned(Told):
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
    """The devices that it publishes, as canonical JSON; a long one is `zlib:` and that in base64."""
    revision: Hash = ""
    """The policy's revision that it belongs to."""
    since: Time | None = None
    """When the record first named it."""


class Restart(Told):
    """The driver pod that has to go, recorded before it is deleted, and the step for which."""

    pod_uid: Uid = Field(alias="podUID")
    """UID of the pod."""
    step: Hash
    """The step for which it has to go."""
    agent: bool = False
    """Whether it is not the driver's plugin but the pod that carries out the node's assignment."""


class NodeStateStatus(Told):
    """The record of one node, written whole in one PUT (there is no status subresource: token, step, phase and finalizer move together)."""

    phase: Phase = Phase.PENDING
    """Where the node is on its way."""
    since: Time | None = None
    """When it got there; time limits count from here."""
    target: Assigned | None = None
    """What the node shall have."""
    current: Assigned | None = None
    """What the node was last verified to have."""
    previous: Assigned | None = None
    """What the node goes back to, if this change fails."""
    original: Assigned | None = None
    """What the node had before this operator first touched it."""
    change: Literal["None", "Restart", "Live", "Repartition"] = "None"
    """How deep the change goes. None: nothing to do. Restart: the driver's pod is restarted. Live: devices change beside those that are in use.
    Repartition: devices change, and whoever has one of them is waited for."""
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
    quiesce: Literal["DeviceTaint", "Cordon", "Both", "None"] = "DeviceTaint"
    """How new claims are kept from the node in this attempt. None: they need not be."""
    retiring: Annotated[str, Field(max_length=262144)] = ""
    """Devices of former layouts that stay published until nobody has them, written as a pool is."""
    boot_id: Uid = Field(default="", alias="bootID")
    """The node's boot ID when it was admitted or last verified: another one means that it was restarted."""
    gpus: int = 0
    """How many GPUs the node had when it was admitted."""
    recovering: bool = False
    """Whether the node is only verified again, after it was restarted or was not Ready."""
    drifted: Time | None = None
    """When it was last noticed that the node is no longer what it was verified to be."""
    repairs: Annotated[list[Time], Field(max_length=8)] = []
    """When drift of the node was repaired, within the last day."""
    contests: Annotated[list[Time], Field(max_length=8)] = []
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
