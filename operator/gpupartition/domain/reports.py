"""How policies and their nodes stand, read from what the operator wrote of them, as plain data.

Not through the models of the API: whoever asks how things stand waits for the answer, and building the models takes longer than reading the
records of a thousand nodes. What is missing is shown as missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from gpupartition.domain.objects import Object

UNSEEN: Final = "NotSeenYet"  # of a policy as it is now, the operator has said nothing so far
QUIET: Final = frozenset({"Pending", "UpToDate"})  # a node there is worth a line only where there is more to say of it
STUCK: Final = frozenset({"Failed", "RolledBack", "Skipped"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocking:
    """Who is in the way of a node; the names are namespace/name."""

    claim: str = ""
    pod: str = ""
    pdb: str = ""
    device: str = ""
    reason: str = ""
    since: datetime | None = None

    @property
    def who(self) -> str:
        """The pod, or the claim that no pod uses."""
        return self.pod or self.claim


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """One node's record."""

    node: str
    policy: str
    driver: str = ""
    phase: str
    since: datetime | None = None
    change: str = "None"
    attempts: int = 0
    has_grant: bool = False
    reason: str = ""
    message: str = ""
    blockers: tuple[Blocking, ...] = ()

    @property
    def telling(self) -> bool:
        """Whether it is neither done nor simply waiting for its turn."""
        return self.phase not in QUIET or bool(self.blockers or self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyReport:
    """One policy with its nodes. `counts` are those of its status (upToDate, matched, …), and only as young as it is.

    `suspended` has a reason and a message while somebody has paused it or frozen everything.
    """

    policy: str
    driver: str = ""
    mode: str = "Enforce"
    ready: str = "Unknown"
    stalled: bool = False
    reason: str = UNSEEN
    message: str = ""
    suspended: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    nodes: tuple[NodeReport, ...] = ()

    @property
    def progress(self) -> str:
        """`3 of 4 nodes up to date; 1 blocked`, or "" while nothing was counted."""
        if not self.counts:
            return ""
        told = [f"{self.counts[key]} {word}" for key, word in _COUNTED.items() if self.counts.get(key)]
        done = f"{self.counts.get('upToDate', 0)} of {self.counts.get('matched', 0)} nodes up to date"
        return "; ".join([done, ", ".join(told)] if told else [done])

    @property
    def also(self) -> str:
        """That it is suspended, where that is not what Ready says: it is complete already, or something else is worse."""
        why = self.suspended
        return f"{why['reason']}: {why.get('message', '')}" if why and why["reason"] != self.reason else ""


_COUNTED: Final = {
    "inProgress": "in progress",
    "pending": "pending",
    "blocked": "blocked",
    "failed": "failed",
    "skipped": "skipped",
    "unavailable": "unavailable",
    "wouldChange": "would change",
}


def reports(policies: Iterable[Object], records: Iterable[Object]) -> list[PolicyReport]:
    """Every policy by name, with its nodes. Nodes whose policy is gone are told under its name."""
    by_policy: dict[str, list[NodeReport]] = {}
    for record in records:
        node = read_node(record)
        by_policy.setdefault(node.policy, []).append(node)
    bodies = {body["metadata"]["name"]: body for body in policies}
    return [
        _read_policy(bodies[name], _sorted(by_policy.get(name, ()))) if name in bodies else _gone(name, by_policy[name])
        for name in sorted(bodies.keys() | by_policy.keys())
    ]


def read_node(record: Object) -> NodeReport:
    """A GpuPartitionNodeState, in short."""
    spec, status = record.get("spec", {}), record.get("status", {})
    return NodeReport(
        node=record["metadata"]["name"],
        policy=spec.get("policyRef", {}).get("name", ""),
        driver=spec.get("driver", ""),
        phase=status.get("phase", "Pending"),
        since=time_of(status.get("since")),
        change=status.get("change", "None"),
        attempts=status.get("attempts", 0),
        has_grant=bool(status.get("token")),
        reason=status.get("reason", ""),
        message=status.get("message", ""),
        blockers=tuple(_blocking(each) for each in status.get("blockers", ())),
    )


def _read_policy(body: Object, nodes: Sequence[NodeReport]) -> PolicyReport:
    meta, spec, status = body["metadata"], body["spec"], body.get("status", {})
    conditions = {each["type"]: each for each in status.get("conditions", ())}
    ready = conditions.get("Ready", {})
    seen = bool(ready) and status.get("observedGeneration") == meta.get("generation")
    return PolicyReport(
        policy=meta["name"],
        driver=spec.get("driver", ""),
        mode=spec.get("mode", "Enforce"),
        ready=ready["status"] if seen else "Unknown",
        stalled=seen and conditions.get("Stalled", {}).get("status") == "True",
        reason=ready["reason"] if seen else UNSEEN,
        message=ready.get("message", "") if seen else "the operator has not looked at it as it is now; does one run?",
        suspended=status.get("suspended", {}) if seen else {},
        counts=status.get("nodes", {}) if seen else {},
        nodes=tuple(nodes),
    )


def _gone(name: str, nodes: Collection[NodeReport]) -> PolicyReport:
    return PolicyReport(
        policy=name,
        driver=next(iter(nodes)).driver,
        reason="Gone",
        message="the policy is gone, and these nodes are not let go of yet",
        nodes=tuple(_sorted(nodes)),
    )


def _sorted(nodes: Iterable[NodeReport]) -> list[NodeReport]:
    """Failed ones first, then those at work, then those that wait."""
    return sorted(nodes, key=lambda n: (n.phase not in STUCK, n.phase in QUIET, n.node))


def _blocking(body: Object) -> Blocking:
    known = {name: body.get(name, "") for name in ("claim", "pod", "pdb", "device", "reason")}
    return Blocking(**known, since=time_of(body.get("since")))


def time_of(text: str | None) -> datetime | None:
    """A time as others write it; None also for one that no calendar here has, which an API server lets through."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC) if text else None
    except (ValueError, OverflowError):
        return None
