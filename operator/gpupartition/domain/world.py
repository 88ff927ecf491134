"""What one turn of one node may depend on, and what it comes to. Time and chance are in here as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Literal

from gpupartition.api.v1alpha1 import Drain, Grant, NodeStateStatus, OnFailure, Phase
from gpupartition.domain.backend import Config, Observation
from gpupartition.domain.eviction import Occupant
from gpupartition.domain.holders import Holder
from gpupartition.domain.problem import Problem

State = NodeStateStatus

AT_REST: Final = frozenset({Phase.PENDING, Phase.UP_TO_DATE, Phase.ROLLED_BACK, Phase.SKIPPED})


def only_closes_or_opens(phase: Phase, *, has_token: bool) -> bool:
    """Whether what a node's driver publishes and runs decides nothing in this phase, nor is written, so that an old copy of it will do."""
    gives_back = phase in AT_REST and has_token
    return gives_back or phase in {Phase.QUIESCING, Phase.RELEASING, Phase.ABORTING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long each phase may take, and how long a fact must have been true. Every one can be set (settings.py)."""

    admitted: timedelta = timedelta(seconds=60)
    quiescing: timedelta = timedelta(seconds=120)
    draining_when_idle: timedelta = timedelta(seconds=60)
    draining_wait: timedelta = timedelta(seconds=3600)
    draining_evict: timedelta = timedelta(seconds=1800)
    force_delete: timedelta = timedelta(seconds=600)  # after a drain's timeout, for pods that are deleted then
    applying: timedelta = timedelta(seconds=600)
    applying_mig: timedelta = timedelta(seconds=2700)  # mig-manager waits up to 5 minutes for each of five clients
    applying_reboot: timedelta = timedelta(seconds=5400)
    applying_dcm: timedelta = timedelta(seconds=1200)
    """The kernel's driver takes up to 5 minutes to load, and a failure is tried again."""
    config_age: timedelta = timedelta(seconds=120)
    """A kubelet brings a changed ConfigMap into its pods within some 90 s."""
    verifying: timedelta = timedelta(seconds=300)
    start_anew: timedelta = timedelta(seconds=60)
    """A driver's pod that publishes too little after a reboot gets so long."""
    settle: timedelta = timedelta(seconds=5)
    """A scheduler with a backlog bound a pod 0.3 s after the taint; ten times that, and more."""
    idle_gap: timedelta = timedelta(seconds=5)  # a force-deleted pod frees its claim seconds before its processes end
    min_ready: timedelta = timedelta(seconds=10)
    first_looks: timedelta = timedelta(seconds=10)
    """Whoever could go first may be among those that were not looked at yet."""
    arriving: timedelta = timedelta(seconds=30)
    """What a policy needs of the cluster may be created by the same hand, a moment after it."""
    telling: timedelta = timedelta(seconds=30)
    """A driver's pod is up within seconds; of one that is not, a record says something else as seldom."""
    drift: timedelta = timedelta(seconds=180)  # a kubelet start wipes the slices for up to 42 s
    not_ready: timedelta = timedelta(seconds=30)  # a node that flaps must not be closed and opened each time

    def standing_still(self, seconds: int | None) -> Limits:
        """The limits of a policy with `minReadySeconds`; as much longer a node may take to verify."""
        if seconds is None:
            return self
        min_ready = timedelta(seconds=seconds)
        return replace(
            self, min_ready=min_ready, verifying=self.verifying + max(min_ready - self.min_ready, timedelta(0))
        )

    def of_driver(self, applying: str, *, seen_late: bool) -> Limits:
        """The limits for a driver: which is its own for applying, and whether what it is told is seen late, so that it is waited for first."""
        age = self.config_age if seen_late else timedelta(0)
        return replace(self, applying=getattr(self, applying), config_age=age, admitted=self.admitted + age)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiesce:
    """What keeps new claims off the node, as read: DeviceTaintRule, cordon, or both (quiesce.py).

    `active`: the rule's effect is NoSchedule, the node is unschedulable; `proven`: the controller manager has answered for this generation
    of the rule, so the feature is on; `watched`: for how long this very operator has itself seen it active (never taken from a clock that
    another one wrote).
    """

    active: bool
    proven: bool
    watched: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """All that one turn of one node may depend on. Facts were read after the record."""

    now: datetime
    fresh: str  # a random value that was never used before: the step, if this turn begins one
    node_is_there: bool  # the Node exists and is the one that the record is about
    node_ready: bool
    boot_id: str
    wanted: Config | None  # None: nothing is wanted any more, or (refused) nothing new can be
    refused: bool  # the policy as it stands was refused: what was accepted before stands
    revision: str
    grant: Grant | None  # the ledger's entry for this node
    grant_stands: bool  # it was made for this very node, and by the policy that has it
    way_back: Config | None
    no_way_back: str  # why there is none
    config_touched: datetime | None
    """The oldest last-used time of the config objects of target and way back; None: one is missing."""
    observed: Observation
    quiesce: Quiesce | None
    holders: Sequence[Holder]  # those that the change would disturb
    idle: timedelta  # how long ago the first of the empty live lists of holders was read
    matched: timedelta  # for how long the pool has been the one that the phase waits for
    differs: timedelta  # for how long a ready node at rest has published something else
    retry: str
    drain: Drain
    told: timedelta = timedelta(0)  # for how long this very operator has seen the record say what it says
    plugin_seen: timedelta = timedelta(0)  # for how long this very operator has seen the plugin's pod
    limits: Limits = field(default_factory=Limits)
    on_failure: OnFailure = OnFailure.ROLL_BACK
    occupants: Sequence[Occupant] = ()  # drain mode Evict: the pods of the holders
    monitors: Sequence[Occupant] = ()
    """Drain mode Evict: pods of DaemonSets that only look on, evicted as the last; no holders."""
    no_eviction: str = ""  # why nobody is evicted now, although the drain mode says so
    away: timedelta = timedelta(0)  # for how long the node has not been Ready
    ready_since: datetime | None = None  # since when it has been
    at_work: str = ""  # what others are doing to the node
    not_ours: str = ""  # what of somebody else is where only this node's own may be, in words
    skip: bool = False  # somebody asked to leave the node alone
    held_back: bool = False  # the policy is paused or only observes by now, or everything is frozen
    left_out: Problem | None = None  # why nothing is done to this node, while others of the policy go on
    abandoned: bool = False  # somebody asked to let go of what cannot be brought back
    config_written: datetime | None = None  # when the youngest entry of shared config was; None: nobody sees it late
    quiesce_by: Literal["DeviceTaint", "Cordon", "Both"] = "DeviceTaint"
    """What the driver comes to: for attempts that begin now."""
    elsewhere: str = ""  # in which other pool nodes of the group (may) have devices
    former: NodeStateStatus | None = None  # what the record says from which this node takes the pool of its group
    last_to_know: bool = False  # its record alone says what is in the pool that another node leads now
    live: bool = False  # devices in use can stay beside a new layout
    in_use: frozenset[str] | None = None  # at rest: retired devices that somebody has; None: that cannot be told yet


@dataclass(frozen=True, slots=True)
class Step:
    """What a turn came to: the state to persist, and the sentence that says why it differs."""

    state: State
    note: str
