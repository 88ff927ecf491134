"""A policy's nodes, counted: everything that its status is made of, and what it comes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpupartition.api.v1alpha1 import Blocker, FailedNode, NodeCounts, NodeStateStatus, Phase, PolicySpec
from gpupartition.domain.admission import Admission, Standing
from gpupartition.domain.problem import Problem

UNREADABLE: Final = "RecordUnreadable"  # the reason of a node whose record says nothing that can be acted upon


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Everything about a policy's nodes that its status is made of."""

    spec: PolicySpec | None  # None: it cannot even be read
    nodes: Sequence[Standing]
    records: Mapping[str, NodeStateStatus]
    admission: Admission
    problems: Sequence[Problem] = ()
    conflicts: Sequence[str] = ()
    rivals: Sequence[str] = ()  # the policies that have them, or want them as much
    would_change: int = 0
    planned: str = ""  # what a policy that observes would do
    granted: frozenset[str] = frozenset()
    astray: Sequence[str] = ()  # verified nodes that publish something else by now
    deleting: bool = False
    hint: str = ""  # what the policy says that none of its nodes is about
    accept_drift: str = ""  # the value of the annotation by which people accept that many nodes have drifted


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a policy's conditions say. `ready` None: the condition is absent."""

    ready: bool
    reason: str
    message: str
    reconciling: bool = False
    stalled: bool = False
    accepted: bool | None = True


def count(rollout: Rollout) -> NodeCounts:
    """How many nodes are where."""
    nodes, records = rollout.nodes, rollout.records
    return NodeCounts(
        matched=len(nodes) + len(rollout.conflicts),
        up_to_date=sum(n.at_target for n in nodes),
        in_progress=sum(n.in_flight and n.phase is not Phase.FAILED for n in nodes),
        pending=sum(n.phase is Phase.PENDING and not n.at_target and n.node in records for n in nodes),
        blocked=sum(n.holders > 0 and n.phase in {Phase.PENDING, Phase.DRAINING} and not n.at_target for n in nodes),
        failed=sum(n.halted for n in nodes),
        skipped=sum(n.phase is Phase.SKIPPED for n in nodes),
        unavailable=sum(
            (n.in_flight or n.node in rollout.granted or n.away) and not (n.initial or n.forgotten) for n in nodes
        ),
        would_change=rollout.would_change,
    )


def failures(rollout: Rollout) -> list[FailedNode]:
    """Nodes that failed with the present target, by name."""
    halted = sorted(n.node for n in rollout.nodes if n.halted)
    return [
        FailedNode(node=n, reason=r.reason or str(r.phase), message=r.message, since=r.since)
        for n, r in ((n, rollout.records[n]) for n in halted)
    ]


def blockers(rollout: Rollout) -> list[tuple[str, Blocker]]:
    """Who is in the way of which node, longest first. Of a group it is its leader that waits, wherever the device is."""
    found = [
        (n.node, b)
        for n in rollout.nodes
        if not n.at_target and n.node in rollout.records
        for b in rollout.records[n.node].blockers
    ]
    return sorted(
        found, key=lambda each: (each[1].since is None, each[1].since, each[1].node, each[1].claim, each[1].device)
    )
