"""Status from facts: counts, conditions and the sentences that people and GitOps tools read.

Ready, Reconciling and Stalled follow kstatus: Reconciling and Stalled are present only while True, and never together. The message of
Stalled is what Helm and Flux print, so it names the node and the cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gpupartition.api.v1alpha1 import (
    Blocker,
    Condition,
    FailedNode,
    NodeCounts,
    NodeStateStatus,
    Phase,
    PolicySpec,
    PolicyStatus,
    ProfileCapacity,
)
from gpupartition.domain import windows
from gpupartition.domain.admission import Admission, Standing, paused_until
from gpupartition.domain.backend import Problem
from gpupartition.domain.drift import brake, is_drifting
from gpupartition.domain.world import AT_REST

# While nodes are left and one of these is the reason, the roll-out goes on by itself.
GOING_ON: Final = frozenset(
    {"RollingOut", "WaitingForHolders", "BudgetExhausted", "LedgerFull", "OutsideWindow", "ForeignMaintenance"}
)
REFUSED: Final = frozenset({"EvictionBlocked", "EvictionForbidden"})
WAITING: Final = GOING_ON - {"RollingOut"}

SHOWN: Final = 10  # blockers and failed nodes in a status; more is what `kubectl get gpn` is for


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a policy's conditions say. `ready` None: the condition is absent."""

    ready: bool
    reason: str
    message: str
    reconciling: bool = False
    stalled: bool = False
    accepted: bool | None = True


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
    outlook: str = ""  # what a policy that observes would do
    granted: frozenset[str] = frozenset()
    astray: Sequence[str] = ()  # verified nodes that publish something else by now
    deleting: bool = False
    limit: int = 0
    accept_drift: str = ""  # the value of the annotation by which people accept that many nodes have drifted


def verdict(rollout: Rollout) -> Verdict:
    """The row of the status table that holds."""
    found = _special(rollout) or _stalled(rollout)
    if found is not None:
        return found
    if rollout.astray:
        message = f"verified, and publishing something else at the moment: {', '.join(rollout.astray[:5])}"
        return Verdict(ready=False, reason="RollingOut", message=message, reconciling=True)
    counts, admission = count(rollout), rollout.admission
    at_rest = not counts.in_progress and not rollout.granted
    complete = counts.up_to_date == counts.matched and at_rest
    if complete:
        message = f"all {counts.matched} nodes are verified{_degraded(rollout)}"
        return Verdict(ready=True, reason="RolloutComplete", message=message)
    if admission.reason in {"Paused", "Frozen"}:
        return Verdict(ready=False, reason=admission.reason, message=admission.message)
    if rollout.conflicts:
        rival = f"policy {', '.join(rollout.rivals[:5])}" if rollout.rivals else "another policy"
        message = f"also claimed by {rival}: {', '.join(rollout.conflicts[:5])}; narrow one of the selectors"
        return Verdict(ready=False, reason="Conflict", message=message, reconciling=True)
    if admission.reason == "LimitReached" and at_rest:
        message = f"{counts.up_to_date} nodes are verified, as many as spec.rollout.limit allows"
        return Verdict(ready=True, reason="LimitReached", message=message)
    if at_rest and counts.skipped and counts.up_to_date + counts.skipped == counts.matched:
        skipped = min(n for n, r in rollout.records.items() if r.phase is Phase.SKIPPED)
        message = f"node {skipped} is skipped: {rollout.records[skipped].message}"
        return Verdict(ready=False, reason=rollout.records[skipped].reason or "Skipped", message=message, stalled=True)
    unwell = _unwell(rollout)
    if unwell is not None:
        return unwell
    waiting = admission.reason if admission.reason in WAITING else ""
    if not waiting and _all_draining_under_holders(rollout):
        waiting = "WaitingForHolders"
    refused = _refused_eviction(rollout) if waiting in {"", "WaitingForHolders"} else None
    if refused is not None:
        waiting = refused.reason
    message = (
        (f"node {refused.node} waits for {_in_words(refused)}" if refused else "")
        or admission.message
        or f"{counts.up_to_date} of {counts.matched} nodes are verified, {counts.in_progress} in progress"
    )
    if counts.failed:
        message = f"{message}; {counts.failed} failed: {', '.join(f.node for f in failures(rollout)[:5])}"
    return Verdict(ready=False, reason=waiting or "RollingOut", message=message, reconciling=True)


def _unwell(rollout: Rollout) -> Verdict | None:
    """Nodes that were verified and no longer are, while nothing else goes on."""
    recovering = sorted(n for n, r in rollout.records.items() if r.recovering and r.phase is not Phase.FAILED)
    if (
        recovering
        and not any(n.in_flight and n.node not in recovering for n in rollout.nodes)
        and not rollout.admission.left
    ):
        message = f"node {recovering[0]}: {_recovers(rollout, recovering[0])}"
        return Verdict(ready=False, reason="NodeRecovering", message=message, reconciling=True)
    drifting = sorted(n for n, r in rollout.records.items() if is_drifting(r))
    if drifting:
        message = f"node {drifting[0]} {rollout.records[drifting[0]].message}"
        if rollout.records[drifting[0]].phase not in {Phase.PENDING, Phase.SKIPPED}:
            message = f"node {drifting[0]} no longer published the wanted layout and is being repaired"
        return Verdict(ready=False, reason="Drift", message=message, reconciling=True)
    return None


def _special(rollout: Rollout) -> Verdict | None:
    if rollout.deleting:
        busy = sorted(name for name, record in rollout.records.items() if record.phase not in AT_REST)
        message = f"waits until its nodes are at rest{': ' if busy else ''}{', '.join(busy[:5])}"
        if rollout.admission.reason == "OutsideWindow":
            message = f"{message}; {rollout.admission.message}"
        return Verdict(ready=False, reason="Terminating", message=message, reconciling=True, accepted=None)
    if rollout.problems:
        message = "; ".join(str(p) for p in rollout.problems[:3])
        return Verdict(ready=False, reason=rollout.problems[0].reason, message=message, stalled=True, accepted=False)
    if rollout.spec is not None and rollout.spec.mode == "Observe" and not failures(rollout):
        outlook = rollout.outlook or f"{rollout.would_change} of {len(rollout.nodes)} nodes would change"
        message = f"{outlook}; nothing is touched"
        return Verdict(ready=True, reason="Observing", message=message)
    if not rollout.nodes and not rollout.conflicts:
        return Verdict(ready=True, reason="NoMatchingNodes", message="no node matches spec.nodeSelector")
    return None


def _stalled(rollout: Rollout) -> Verdict | None:
    if rollout.admission.reason == "Stopped":
        reason = rollout.admission.message.split(":", 1)[0]
        return Verdict(ready=False, reason=reason, message=rollout.admission.message, stalled=True)
    if rollout.admission.reason == "MassDrift":
        return Verdict(ready=False, reason="MassDrift", message=rollout.admission.message, stalled=True)
    failed = failures(rollout)
    moving = any((n.in_flight or n.node in rollout.granted) and n.phase is not Phase.FAILED for n in rollout.nodes)
    goes_on = bool(rollout.admission.left) and rollout.admission.reason in GOING_ON
    if not failed or moving or goes_on or rollout.admission.nodes:
        return None
    first = failed[0]
    record = rollout.records[first.node]
    restored = record.phase is Phase.ROLLED_BACK and record.reason != "DrainingFailed"  # that one was never changed
    reason = "RolledBack" if restored else "RolloutHalted"
    message = f"node {first.node}: {first.message}; mend it, then annotate the policy with gpupartition.dev/retry=<any new value>"
    return Verdict(ready=False, reason=reason, message=message, stalled=True)


def _degraded(rollout: Rollout) -> str:
    lacking = sorted(n for n, r in rollout.records.items() if r.reason == "HardwareDegraded")
    if not lacking:
        return ""
    return f", {len(lacking)} without all of their GPUs: {', '.join(lacking[:5])}"


def _recovers(rollout: Rollout, node: str) -> str:
    record = rollout.records[node]
    ready = next((n.ready for n in rollout.nodes if n.node == node), True)
    return f"{record.message or record.phase}" if ready else "is not Ready; it is verified again when it is"


def _all_draining_under_holders(rollout: Rollout) -> bool:
    moving = [n for n in rollout.nodes if n.in_flight]
    return bool(moving) and all(n.phase is Phase.DRAINING and n.holders for n in moving)


def _refused_eviction(rollout: Rollout) -> Blocker | None:
    """What keeps a roll-out that evicts: all nodes that move wait for a pod whose eviction was refused."""
    moving = {n.node for n in rollout.nodes if n.in_flight}
    refused = {b.node: b for b in blockers(rollout)[::-1] if b.reason in REFUSED and b.node in moving}
    return refused[min(refused)] if refused and moving == set(refused) else None


def _in_words(blocker: Blocker) -> str:
    by = f" of pod {blocker.pod}" if blocker.pod else ""
    budgets = f", whose eviction is refused by PodDisruptionBudget {blocker.pdb}" if blocker.pdb else ""
    return f"claim {blocker.claim}{by}{budgets}"


def patience_ends(
    rollout: Rollout, said: Verdict, *, before: PolicyStatus, generation: int, now: datetime
) -> datetime | None:
    """When the progress deadline is over; None where there is none, or where nothing is to move now.

    Time counts from the last move, and only while something should move: not before this generation was accepted, the roll-out was resumed,
    the window was opened and the pause between two nodes was over.
    """
    spec = rollout.spec
    if spec is None or not spec.rollout.progress_deadline_seconds or not said.reconciling:
        return None
    if said.reason in {"Terminating", "OutsideWindow"}:
        return None
    resumed = next((c.last_transition_time for c in before.conditions if c.type == "Reconciling"), None)
    was_late = any(
        c.type == "Stalled" and c.reason in {"ProgressDeadlineExceeded", "Conflict"} for c in before.conditions
    )
    anew = before.observed_generation != generation or (resumed is None and not was_late)
    times = [
        now if anew else before.accepted_at,
        resumed,
        windows.opened(spec.rollout.windows, now),
        paused_until(rollout.nodes, timedelta(seconds=spec.rollout.pause_between_seconds)),
        *(record.since for record in rollout.records.values() if _moved(record)),
    ]
    return max(at for at in times if at is not None) + timedelta(seconds=spec.rollout.progress_deadline_seconds)


def _moved(record: NodeStateStatus) -> bool:
    """Whether a node's last change was a move. One that was given up and begins again has not moved until it gets further."""
    beginnings = {Phase.PENDING, Phase.ADMITTED, Phase.QUIESCING, Phase.DRAINING, Phase.ABORTING}
    return not (record.attempts and record.phase in beginnings)


def _out_of_patience(rollout: Rollout, said: Verdict) -> Verdict:
    assert rollout.spec is not None, rollout
    seconds = rollout.spec.rollout.progress_deadline_seconds
    reason = said.reason if said.reason == "Conflict" else "ProgressDeadlineExceeded"
    message = f"nothing has moved for {seconds} s (spec.rollout.progressDeadlineSeconds): {_waits_for(rollout, said)}"
    return Verdict(ready=False, reason=reason, message=message, stalled=True)


def _waits_for(rollout: Rollout, said: Verdict) -> str:
    """What a roll-out waits for, and which node."""
    if said.reason == "Conflict":
        return said.message
    moving = sorted(n.node for n in rollout.nodes if n.in_flight and n.phase is not Phase.FAILED)
    for blocker in blockers(rollout):
        if not moving or blocker.node in moving:
            return f"node {blocker.node} waits for {_in_words(blocker)}"
    if moving:
        record = rollout.records[moving[0]]
        return f"node {moving[0]} is {record.phase}" + (f": {record.message}" if record.message else "")
    return said.message


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


def blockers(rollout: Rollout) -> list[Blocker]:
    """Who is in the way, longest first."""
    found = [
        b
        for n in rollout.nodes
        if not n.at_target and n.node in rollout.records
        for b in rollout.records[n.node].blockers
    ]
    return sorted(found, key=lambda b: (b.since is None, b.since, b.node, b.claim, b.device))


def summarise(
    rollout: Rollout,
    *,
    before: PolicyStatus,
    generation: int,
    now: datetime,
    revision: str,
    capacity: Iterable[ProfileCapacity] = (),
) -> PolicyStatus:
    """The whole status; equal to `before` when nothing that it says has changed."""
    said = verdict(rollout)
    due = patience_ends(rollout, said, before=before, generation=generation, now=now)
    if due is not None and due <= now:
        said = _out_of_patience(rollout, said)
    counts = count(rollout)
    conditions = {c.type: c for c in before.conditions}

    def say(kind: str, holds: bool | None, reason: str, message: str) -> Condition | None:
        if holds is None:
            return None
        status = "True" if holds else "False"
        former = conditions.get(kind)
        changed = former is None or former.status != status
        return Condition(
            type=kind,
            status=status,
            reason=reason,
            message=message[:1024],
            observed_generation=generation,
            last_transition_time=now if changed or former is None else former.last_transition_time,
        )

    accepted_reason = "Accepted" if said.accepted else said.reason
    accepted_message = "can be carried out" if said.accepted else said.message
    all_conditions = [
        say("Accepted", said.accepted, accepted_reason, accepted_message),
        say("Ready", said.ready, said.reason, said.message),
        say("Reconciling", said.reconciling or None, said.reason, said.message),
        say("Stalled", said.stalled or None, said.reason, said.message),
    ]
    drift = brake(rollout.records, before=before.drift, asked=rollout.accept_drift, matched=len(rollout.nodes), now=now)
    newly = before.accepted_at is None or before.observed_generation != generation
    accepted_at = now if said.accepted and newly else before.accepted_at
    return PolicyStatus(
        observed_generation=generation,
        accepted_at=accepted_at,
        first_accepted_at=before.first_accepted_at or accepted_at,
        revision=revision or before.revision,
        progress=f"{counts.up_to_date}/{counts.matched}",
        nodes=counts,
        capacity=list(capacity),
        blocked_by=blockers(rollout)[:SHOWN],
        failed_nodes=failures(rollout)[:SHOWN],
        drift=drift,
        conditions=[c for c in all_conditions if c is not None],
    )
