"""GpuPartitionPolicy: which nodes get which layouts, how fast and how far, and how it goes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from gpupartition.api import rules
from gpupartition.api.rules import checks, fixed, keyed
from gpupartition.api.v1alpha1.layout import Layout
from gpupartition.api.v1alpha1.shared import (
    Blocker,
    CheckedLabelKey,
    CheckedLabelValue,
    Condition,
    FailureCount,
    Hash,
    LabelKey,
    Message,
    Model,
    NodeCount,
    NodeName,
    Reason,
    Subdomain,
    Time,
    Told,
)


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
    that the roll-out halts as maxFailed says. ForceDelete: with mode Evict, pods whose eviction a disruption budget still refuses are deleted,
    with their own grace period; it takes the rights of manifests/components/force-delete too. Pods that are only waited for are never
    deleted."""
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


class NodeCounts(Told):
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


class FailedNode(Told):
    """A node that did not get there, and why."""

    node: NodeName
    """The node."""
    reason: Reason
    """Why, in one word for programs."""
    message: Message = ""
    """Why, for people."""
    since: Time | None = None
    """Since when."""


class ProfileCapacity(Told):
    """How many devices of one profile are published, and how many of them are allocated."""

    profile: Annotated[str, Field(max_length=128)]
    """The profile. Of more than a status has room for, the last entry is called and 2 more: all the others together."""
    total: int
    """Devices published."""
    allocated: int
    """Devices allocated to a claim."""


class DriftBrake(Told):
    """The brake that keeps a policy from repairing many nodes at once whose drift has one cause."""

    since: Time | None = None
    """Since when no node is touched; none while the brake is off."""
    nodes: Annotated[list[NodeName], Field(max_length=5)] = []
    """Some of the nodes that drifted."""
    accepted: Annotated[str, Field(max_length=262144)] = ""
    """The value of the annotation gpupartition.dev/accept-drift that was last obeyed."""
    accepted_at: Time | None = None
    """When it was obeyed; drift from before that counts no more."""


class Suspended(Told):
    """Why no further node is taken and nobody is evicted, though nothing has failed."""

    reason: Reason
    """Paused or Frozen."""
    message: Message = ""
    """Why, by whom and until when."""


class PolicyStatus(Told):
    """What is true of the policy's nodes, as last read."""

    observed_generation: int = -1
    """The metadata.generation that everything here was said of; -1: none yet."""
    accepted_at: Time | None = None
    """When this generation was accepted."""
    first_accepted_at: Time | None = None
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
    suspended: Suspended | None = None
    """That somebody has paused the policy or frozen everything, as long as that holds, also where all nodes are verified already. Of a policy
    that only observes, or is refused, it is not said."""
    conditions: Annotated[list[Condition], Field(max_length=16, json_schema_extra=keyed("type"))] = []
    """Accepted, Ready and, only while true, Reconciling and Stalled."""
