"""When waiting is called stalled: for a roll-out to move, or for what a policy needs of the cluster."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from gpupartition.api.v1alpha1 import NodeStateStatus, Phase, PolicyStatus
from gpupartition.domain import windows
from gpupartition.domain.admission import paused_until
from gpupartition.domain.changes import in_words
from gpupartition.domain.rollout import Rollout, Verdict, blockers


def patience_ends(
    rollout: Rollout, said: Verdict, *, before: PolicyStatus, generation: int, now: datetime, arriving: timedelta
) -> datetime | None:
    """When waiting is over; None where there is no end to it, or where nothing is waited for.

    For a roll-out to move: spec.rollout.progressDeadlineSeconds. Time counts from the last move, and only while something should move: not
    before this generation was accepted, the roll-out was resumed, the window was opened and the pause between two nodes was over.
    For what a policy that is not accepted needs of the cluster: `arriving`, since it has been missing.
    """
    if said.accepted is False:
        return _missing_since(before, generation, now) + arriving if said.reconciling else None
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


def _missing_since(before: PolicyStatus, generation: int, now: datetime) -> datetime:
    """Since when a generation has not been accepted for what the cluster lacks. What was given up stays so until something else is asked."""
    said = {c.type: c for c in before.conditions}
    accepted, reconciling = said.get("Accepted"), said.get("Reconciling")
    if before.observed_generation != generation or accepted is None or accepted.status == "True":
        return now
    return max(c.last_transition_time for c in (accepted, reconciling) if c is not None)


def _moved(record: NodeStateStatus) -> bool:
    """Whether a node's last change was a move. One that was given up and begins again has not moved until it gets further."""
    beginnings = {Phase.PENDING, Phase.ADMITTED, Phase.QUIESCING, Phase.DRAINING, Phase.ABORTING}
    return not (record.attempts and record.phase in beginnings)


def out_of_patience(rollout: Rollout, said: Verdict) -> Verdict:
    """What is said once waiting is over."""
    if said.accepted is False:
        return replace(said, reconciling=False, stalled=True)
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
    for node, blocker in blockers(rollout):
        if not moving or node in moving:
            return f"node {node} waits for {in_words(blocker)}"
    if moving:
        record = rollout.records[moving[0]]
        return f"node {moving[0]} is {record.phase}" + (f": {record.message}" if record.message else "")
    return said.message
