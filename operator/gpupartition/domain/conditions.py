"""Status from facts: counts, conditions and the sentences that people and GitOps tools read.

Ready, Reconciling and Stalled follow kstatus: Reconciling and Stalled are present only while True, and never together. The message of
Stalled is what Helm and Flux print, so it names the node and the cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final

from gpupartition import names
from gpupartition.api.v1alpha1 import (
    Blocker,
    Condition,
    NodeCounts,
    Phase,
    PolicyStatus,
    ProfileCapacity,
    Suspended,
)
from gpupartition.domain.changes import in_words
from gpupartition.domain.destination import STRANDED
from gpupartition.domain.drift import brake, is_drifting
from gpupartition.domain.patience import out_of_patience, patience_ends
from gpupartition.domain.problem import Turn
from gpupartition.domain.rollout import UNREADABLE, Rollout, Verdict, blockers, count, failures
from gpupartition.domain.wording import SEVERAL, few
from gpupartition.domain.world import AT_REST

# While nodes are left and one of these is the reason, the roll-out goes on by itself.
GOING_ON: Final = frozenset(
    {
        "RollingOut",
        "WaitingForHolders",
        "BudgetExhausted",
        "LedgerFull",
        "OutsideWindow",
        "ForeignMaintenance",
        "ConfigWaits",
    }
)
BY_PEOPLE: Final = frozenset({"Paused", "Frozen"})
REFUSED: Final = frozenset({"EvictionBlocked", "EvictionForbidden"})
WAITING: Final = GOING_ON - {"RollingOut"}

SHOWN: Final = 10  # blockers and failed nodes in a status; more is what `kubectl get gpn` is for


def verdict(rollout: Rollout) -> Verdict:
    """The row of the status table that holds."""
    found = _special(rollout) or _stalled(rollout)
    if found is not None:
        return found
    if rollout.astray:
        message = f"verified, and publishing something else at the moment: {few(rollout.astray, SEVERAL)}"
        return Verdict(ready=False, reason="RollingOut", message=message, reconciling=True)
    counts, admission, busy = count(rollout), rollout.admission, _busy(rollout)
    at_rest = not busy
    complete = counts.up_to_date == counts.matched and at_rest
    if complete:
        all_ = "the one node is" if counts.matched == 1 else f"all {counts.matched} nodes are"
        message = f"{all_} verified{_degraded(rollout)}"
        return Verdict(ready=True, reason="RolloutComplete", message=message)
    if admission.reason in BY_PEOPLE:
        return Verdict(ready=False, reason=admission.reason, message=admission.message)
    if rollout.conflicts:
        rival = f"policy {few(rollout.rivals, SEVERAL)}" if rollout.rivals else "another policy"
        message = f"also claimed by {rival}: {few(rollout.conflicts, SEVERAL)}; narrow one of the selectors"
        return Verdict(ready=False, reason="Conflict", message=message, reconciling=True)
    if admission.reason == "LimitReached" and at_rest:
        some = "1 node is" if counts.up_to_date == 1 else f"{counts.up_to_date} nodes are"
        message = f"{some} verified, as many as spec.rollout.limit allows"
        return Verdict(ready=True, reason="LimitReached", message=message)
    if at_rest and counts.skipped and counts.up_to_date + counts.skipped == counts.matched:
        skipped = min(n for n, r in rollout.records.items() if r.phase is Phase.SKIPPED)
        message = f"node {skipped} is skipped: {rollout.records[skipped].message}"
        return Verdict(ready=False, reason=rollout.records[skipped].reason or "Skipped", message=message, stalled=True)
    unwell = _unwell(rollout) or _unread(rollout)
    if unwell is not None:
        return unwell
    waiting = admission.reason if admission.reason in WAITING else ""
    if not waiting and _all_draining_under_holders(rollout):
        waiting = "WaitingForHolders"
    refused = _refused_eviction(rollout) if waiting in {"", "WaitingForHolders"} else None
    if refused is not None:
        waiting = refused.reason
    said = f"node {refused.node} waits for {in_words(refused)}" if refused else admission.message
    said = said or f"{counts.up_to_date} of {counts.matched} nodes are verified, {counts.in_progress} in progress"
    message = "; ".join(filter(None, (said, *_besides(rollout, counts, busy))))
    return Verdict(ready=False, reason=waiting or "RollingOut", message=message, reconciling=True)


def _besides(rollout: Rollout, counts: NodeCounts, busy: Iterable[str]) -> Iterator[str]:
    """What is said of the others, while some move or wait."""
    leaving = sorted(set(busy) - {n.node for n in rollout.nodes})
    if leaving:
        yield f"no longer wanted, and brought to rest first: {few(leaving)}"
    if counts.failed:
        yield f"{counts.failed} failed: {few([f.node for f in failures(rollout)], SEVERAL)}"
    yield _unreadable(rollout)


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


def _unreadable(rollout: Rollout) -> str:
    """Of which nodes nothing is known, and why; "" where there is none."""
    found = sorted(n for n, record in rollout.records.items() if record.reason == UNREADABLE)
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"node {found[0]}{more}: {rollout.records[found[0]].message}" if found else ""


def _unread(rollout: Rollout) -> Verdict | None:
    """Nodes of which nothing is known, while no other one moves, or will by itself."""
    message = _unreadable(rollout)
    moving = {n.node for n in rollout.nodes if n.in_flight} | rollout.granted | set(rollout.admission.nodes)
    others = any(rollout.records[n].reason != UNREADABLE for n in moving & rollout.records.keys())
    if not message or others or rollout.admission.reason in WAITING:
        return None
    return Verdict(ready=False, reason=UNREADABLE, message=message, stalled=True)


def _busy(rollout: Rollout) -> list[str]:
    """The policy's nodes that are on their way, or about to be: those that it wants no more, too."""
    return sorted(rollout.granted | {name for name, record in rollout.records.items() if record.phase not in AT_REST})


def _special(rollout: Rollout) -> Verdict | None:
    if rollout.deleting:
        return _terminating(rollout)
    if rollout.problems:
        message = "; ".join(str(p) for p in rollout.problems[:3])
        awaited = all(p.turn is Turn.CLUSTER for p in rollout.problems)  # nothing is wrong with what was asked
        reason = rollout.problems[0].reason
        return Verdict(
            ready=False, reason=reason, message=message, reconciling=awaited, stalled=not awaited, accepted=False
        )
    observes = rollout.spec is not None and rollout.spec.mode == "Observe" and not failures(rollout)
    if not observes and (rollout.nodes or rollout.conflicts):
        return None
    why = "only observes from now on" if observes else "no node matches spec.nodeSelector"
    if busy := _busy(rollout):
        message = f"{why}; what was begun is brought to rest first: {few(busy)}"
        return Verdict(ready=False, reason="RollingOut", message=message, reconciling=True)
    if not observes:
        return Verdict(ready=True, reason="NoMatchingNodes", message=why)
    would = rollout.planned or f"{rollout.would_change} of {len(rollout.nodes)} nodes would change"
    return Verdict(ready=True, reason="Observing", message=f"{would}; nothing is touched")


def _terminating(rollout: Rollout) -> Verdict:
    """What a deleted policy waits for. Nodes that only people can help keep it for ever, so it says how to let go of them."""
    busy = sorted(name for name, record in rollout.records.items() if record.phase not in AT_REST)
    failed = [name for name in busy if _is_left_to_people(rollout, name)]
    stalled = bool(failed) and failed == busy and not rollout.admission.nodes and not _goes_on(rollout)
    told = [] if stalled else [f"waits until its nodes are at rest{': ' if busy else ''}{few(busy, SEVERAL)}"]
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        told.append(
            f"node {failed[0]}{more} could not be brought back: {rollout.records[failed[0]].message}; "
            f"mend it, or let go of it as it is: kubectl annotate node {failed[0]} {names.ABANDON}=true"
        )
    if rollout.admission.reason == "OutsideWindow":
        told.append(rollout.admission.message)
    message = "; ".join(filter(None, (*told, _unreadable(rollout))))
    return Verdict(
        ready=False, reason="Terminating", message=message, reconciling=not stalled, stalled=stalled, accepted=None
    )


def _is_left_to_people(rollout: Rollout, node: str) -> bool:
    """Whether a node of a deleted policy has failed, and nothing is tried by itself any more."""
    record = rollout.records[node]
    reverts = rollout.spec is not None and rollout.spec.deletion_policy == "Revert"
    aim = record.original if reverts else None
    at_last = aim is not None and record.target is not None and record.target.fingerprint == aim.fingerprint
    return record.phase is Phase.FAILED and not record.recovering and (record.reason == STRANDED or at_last)


def _goes_on(rollout: Rollout) -> bool:
    """Whether nodes are left, and their turn comes by itself."""
    return bool(rollout.admission.left) and rollout.admission.reason in GOING_ON


def _stalled(rollout: Rollout) -> Verdict | None:
    if rollout.admission.reason == "Stopped":
        reason, _, message = rollout.admission.message.partition(": ")
        return Verdict(ready=False, reason=reason, message=message, stalled=True)
    if rollout.admission.reason == "MassDrift":
        return Verdict(ready=False, reason="MassDrift", message=rollout.admission.message, stalled=True)
    failed = failures(rollout)
    moving = any((n.in_flight or n.node in rollout.granted) and n.phase is not Phase.FAILED for n in rollout.nodes)
    if not failed or moving or _goes_on(rollout) or rollout.admission.nodes:
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
    return f", {len(lacking)} without all of their GPUs: {few(lacking, SEVERAL)}"


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
    refused = {node: b for node, b in blockers(rollout)[::-1] if b.reason in REFUSED and node in moving}
    return refused[min(refused)] if refused and moving == set(refused) else None


def summarise(
    rollout: Rollout,
    *,
    before: PolicyStatus,
    generation: int,
    now: datetime,
    revision: str,
    arriving: timedelta,
    capacity: Iterable[ProfileCapacity] = (),
) -> tuple[PolicyStatus, datetime | None]:
    """The whole status, equal to `before` when nothing that it says has changed; and when waiting will be called stalled, if nothing happens.

    None where waiting has no end, or is called so by now.
    """
    said = verdict(rollout)
    due = patience_ends(rollout, said, before=before, generation=generation, now=now, arriving=arriving)
    if due is not None and due <= now:
        said, due = out_of_patience(rollout, said), None
    counts = count(rollout)
    drift = brake(rollout.records, before=before.drift, asked=rollout.accept_drift, matched=len(rollout.nodes), now=now)
    newly = before.accepted_at is None or before.observed_generation != generation
    accepted_at = now if said.accepted and newly else before.accepted_at
    status = PolicyStatus(
        observed_generation=generation,
        accepted_at=accepted_at,
        first_accepted_at=before.first_accepted_at or accepted_at,
        revision=revision or before.revision,
        progress=f"{counts.up_to_date}/{counts.matched}",
        nodes=counts,
        capacity=list(capacity),
        blocked_by=[blocker for _, blocker in blockers(rollout)[:SHOWN]],
        failed_nodes=failures(rollout)[:SHOWN],
        drift=drift,
        suspended=_suspended(rollout),
        conditions=_conditions(said, rollout.hint, before=before.conditions, generation=generation, now=now),
    )
    return status, due


def _suspended(rollout: Rollout) -> Suspended | None:
    admission = rollout.admission
    return Suspended(reason=admission.reason, message=admission.message) if admission.reason in BY_PEOPLE else None


def _conditions(
    said: Verdict, hint: str, *, before: Iterable[Condition], generation: int, now: datetime
) -> list[Condition]:
    former = {c.type: c for c in before}

    def say(kind: str, holds: bool) -> Condition:
        status, was = "True" if holds else "False", former.get(kind)
        can = kind == "Accepted" and holds
        return Condition(
            type=kind,
            status=status,
            reason="Accepted" if can else said.reason,
            message=("; ".join(filter(None, ("can be carried out", hint))) if can else said.message)[:1024],
            observed_generation=generation,
            last_transition_time=was.last_transition_time if was and was.status == status else now,
        )

    told = {
        "Accepted": said.accepted,
        "Ready": said.ready,
        "Reconciling": said.reconciling or None,
        "Stalled": said.stalled or None,
    }
    return [say(kind, holds) for kind, holds in told.items() if holds is not None]
