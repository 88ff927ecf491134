"""What Prometheus is told.

How things stand is read from the copies when somebody asks, so that what is gone is not told any more: a deleted node or policy leaves no
series behind. What has happened is counted as it happens.
"""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpupartition.api.v1alpha1 import Phase
from gpupartition.controller import clock
from gpupartition.controller.readiness import said_at
from gpupartition.domain.drift import DAY
from gpupartition.domain.suspension import is_paused
from gpupartition.domain.world import AT_REST
from gpupartition.kube.client import own_version

if TYPE_CHECKING:
    from gpupartition.controller.caches import Caches
    from gpupartition.controller.records import Record
    from gpupartition.kube import Object

WRITES: Final = Counter("gpupartition_writes_total", "Writes to the API server, by effect.", ["effect"])
TRANSITIONS: Final = Counter("gpupartition_transitions_total", "Phases that nodes entered.", ["policy", "phase"])
LEADING: Final = Gauge("gpupartition_leading", "Whether this instance works (1) or stands by (0).")
TURNS: Final = Histogram("gpupartition_turn_seconds", "How long one look at a node or a policy takes.", ["loop"])
LAG: Final = Histogram(
    "gpupartition_loop_lag_seconds",
    "How much later than asked for the event loop came to a task.",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
FAILED_TURNS: Final = Counter(
    "gpupartition_turn_errors_total", "Looks at a node or a policy that ended in an error.", ["loop"]
)

# name without prefix, labels, what it is. Labels name policies, drivers and profiles, of which there are few; nodes only while they are in
# flight (1,024 of a driver at most) or have drifted within a day.
STANDING: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "build_info": (("version",), "1, by the version of this operator."),
    "frozen": ((), "Whether everything is frozen (1) or not (0)."),
    "nodes": (("policy", "phase"), "Nodes of a policy, by phase."),
    "nodes_matched": (("policy",), "Nodes that a policy selects."),
    "nodes_blocked": (("policy",), "Nodes that wait for holders of their devices."),
    "policy_condition": (("policy", "condition"), "Whether a condition of a policy is True (1) or not (0)."),
    "policy_reason": (("policy", "reason"), "1, by the reason of a policy's condition Ready."),
    "policy_paused": (("policy",), "Whether a policy is paused (1) or not (0)."),
    "devices": (("policy", "profile"), "Devices that a policy's nodes publish, by profile."),
    "devices_allocated": (("policy", "profile"), "Those of them that are allocated to a claim."),
    "in_flight": (("driver",), "Grants in a driver's ledger."),
    "grant_since_timestamp_seconds": (
        ("driver", "policy", "node", "purpose"),
        "When a node was granted to be unavailable, in seconds since 1970.",
    ),
    "phase_since_timestamp_seconds": (
        ("policy", "node", "phase"),
        "When a node that is not at rest entered its phase, in seconds since 1970.",
    ),
    "drift_repairs": (("policy", "node"), "How often drift of a node was repaired within the last day."),
    "copy_version": (("kind",), "The resourceVersion up to which the copy of a kind is true."),
}


class Snapshot(Collector):
    """How policies, nodes and drivers stand, while `known`. `policies` and `drivers` are the copies that the loops work with."""

    def __init__(
        self,
        caches: Caches,
        policies: Mapping[str, Object],
        drivers: Mapping[str, Object],
        *,
        known: Callable[[], bool],
    ) -> None:
        self._known = known
        self._caches = caches
        self._policies = policies
        self._drivers = drivers

    def collect(self) -> Iterator[Metric]:
        """All metrics of STANDING, those without a series too: what is there to be asked for is told."""
        families = {
            name: GaugeMetricFamily(f"gpupartition_{name}", says, labels=labels)
            for name, (labels, says) in STANDING.items()
        }
        for name, labels, value in self._samples():
            families[name].add_metric(labels, value)
        yield from families.values()

    def _samples(self) -> Iterator[tuple[str, Sequence[str], float]]:
        yield "build_info", [own_version()], 1
        if not self._known():
            return
        now = clock.now()
        yield "frozen", [], self._caches.freezing is not None
        for kind, reached in self._caches.versions.items():
            yield "copy_version", [kind], reached
        for policy, body in self._policies.items():
            yield from _of_policy(policy, body, self._caches.records.by("policy", policy), now)
        for record in self._caches.records.values():
            yield from _of_node(record, now)
        for driver, body in self._drivers.items():
            yield from _of_driver(driver, body)


def _of_policy(
    name: str, body: Object, records: Iterable[Record], now: datetime
) -> Iterator[tuple[str, Sequence[str], float]]:
    status, phases = body.get("status", {}), Count(r.state.phase for r in records)
    for phase in Phase:
        yield "nodes", [name, phase], phases[phase]
    counts = status.get("nodes", {})
    yield "nodes_matched", [name], counts.get("matched", 0)
    yield "nodes_blocked", [name], counts.get("blocked", 0)
    conditions = {c["type"]: c for c in status.get("conditions", ())}
    for kind in ("Accepted", "Ready", "Reconciling", "Stalled"):
        yield "policy_condition", [name, kind], conditions.get(kind, {}).get("status") == "True"
    if "Ready" in conditions:
        yield "policy_reason", [name, conditions["Ready"]["reason"]], 1
    yield "policy_paused", [name], is_paused(body, now)
    for each in status.get("capacity", ()):
        yield "devices", [name, each["profile"]], each["total"]
        yield "devices_allocated", [name, each["profile"]], each["allocated"]


def _of_node(record: Record, now: datetime) -> Iterator[tuple[str, Sequence[str], float]]:
    state, about = record.state, [record.spec.policy_ref.name, record.name]
    if state.phase not in AT_REST and state.since is not None:
        yield "phase_since_timestamp_seconds", [*about, state.phase], state.since.timestamp()
    if repairs := sum(now - at < DAY for at in state.repairs):
        yield "drift_repairs", about, repairs


def _of_driver(name: str, body: Object) -> Iterator[tuple[str, Sequence[str], float]]:
    grants: Sequence[Mapping[str, Any]] = body.get("status", {}).get("inFlight", ())
    yield "in_flight", [name], len(grants)
    for grant in grants:
        labels = [name, grant["policy"], grant["node"], grant.get("purpose", "RollOut")]
        yield "grant_since_timestamp_seconds", labels, said_at(grant["since"]).timestamp()


def forget(policy: str) -> None:
    """A policy is gone, and what was counted of it goes too."""
    TRANSITIONS.remove_by_labels({"policy": policy})
