"""What is known of the past of policies and nodes: events, as long as they are kept, and what records, conditions and objects remember."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gpupartition.domain.objects import Object
from gpupartition.domain.reports import time_of

NEAR: Final = timedelta(seconds=2)  # an event has whole seconds, and is posted a moment after what it is about
_OF_PODS: Final = re.compile(r"policy (\S+) (?:wants to repartition|repartitions) node ([^\s,;]+)")
_LAYOUTS: Final = {"target": "is to have", "current": "was verified with", "original": "had at first"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Something that happened. `node` or `policy` it was about; `source`: event, record, condition, grant or object.

    `place`: among what happened in the same second, of which events know no more.
    """

    at: datetime
    source: str
    policy: str = ""
    node: str = ""
    what: str
    says: str = ""
    warning: bool = False
    place: int = 0


def of_event(body: Object) -> Entry | None:
    """An event of the operator's; None for one about something else, or without a time."""
    about, related = body["involvedObject"], body.get("related", {})
    at = time_of(body.get("lastTimestamp") or body.get("eventTime") or body["metadata"].get("creationTimestamp"))
    policy = node = ""
    if about.get("kind") == "GpuPartitionNodeState":
        node, policy = about.get("name", ""), related.get("name", "")
    elif about.get("kind") == "GpuPartitionPolicy":
        if related.get("kind") == "GpuPartitionNodeState":
            return None  # the same is told of the record
        policy = about.get("name", "")
    elif found := _OF_PODS.search(body.get("message", "")):
        policy, node = found.groups()
    if at is None or not (policy or node):
        return None
    says = f"{about.get('namespace', '')}/{about.get('name', '')}: " if about.get("kind") == "Pod" else ""
    return Entry(
        at=at,
        source="event",
        policy=policy,
        node=node,
        what=body.get("reason", ""),
        says=says + body.get("message", ""),
        warning=body.get("type") == "Warning",
        place=_place(body["metadata"].get("resourceVersion", "")),
    )


def of_record(body: Object) -> Iterator[Entry]:
    """What a node's record remembers."""
    state, node = body.get("status", {}), body["metadata"]["name"]
    policy = body.get("spec", {}).get("policyRef", {}).get("name", "")

    def entry(at: str | None, what: str, says: str = "") -> Iterator[Entry]:
        if (time := time_of(at)) is not None:
            yield Entry(at=time, source="record", policy=policy, node=node, what=what, says=says)

    why = ": ".join(part for part in (state.get("reason"), state.get("message")) if part)
    yield from entry(state.get("since"), f"Node{state.get('phase', 'Pending')}", why)
    for name, says in _LAYOUTS.items():
        layout = state.get(name) or {}
        yield from entry(layout.get("since"), name.capitalize(), f"{says} layout {layout.get('fingerprint', '')[:10]}")
    yield from entry(state.get("drifted"), "Drifted", "was no longer what was verified")
    for at in state.get("repairs", ()):
        yield from entry(at, "DriftRepaired")
    for at in state.get("contests", ()):
        yield from entry(at, "Contested", "somebody else wrote its assignment")
    for each in state.get("blockers", ()):
        who = each.get("pod") or each.get("claim", "")
        yield from entry(each.get("since"), "Blocked", f"{who} has {each.get('device', '')} ({each.get('reason', '')})")


def of_policy(body: Object) -> Iterator[Entry]:
    """What a policy remembers: when it was written, by whom, and since when its conditions are what they are."""
    meta, status, policy = body["metadata"], body.get("status", {}), body["metadata"]["name"]

    def entry(at: str | None, source: str, what: str, says: str = "", *, warning: bool = False) -> Iterator[Entry]:
        if (time := time_of(at)) is not None:
            yield Entry(at=time, source=source, policy=policy, what=what, says=says, warning=warning)

    yield from entry(meta.get("creationTimestamp"), "object", "Created")
    yield from entry(meta.get("deletionTimestamp"), "object", "Deleted", "it goes when its nodes are at rest")
    yield from entry(status.get("firstAcceptedAt"), "object", "FirstAccepted")
    generation = status.get("observedGeneration")
    yield from entry(status.get("acceptedAt"), "object", "Accepted", f"generation {generation}")
    for each in meta.get("managedFields", ()):
        parts = [part for part in ("spec", "metadata") if f"f:{part}" in each.get("fieldsV1", {})]
        if parts and not each.get("subresource"):
            who = f"{', '.join(parts)} by {each.get('manager', 'somebody')} ({each.get('operation', '')})"
            yield from entry(each.get("time"), "object", "Written", who)
    for each in status.get("conditions", ()):
        what = each["reason"] if each["type"] == "Ready" else f"{each['type']}={each['status']}"
        told = f"{each['type']}={each['status']}: {each.get('message', '')}"
        yield from entry(each.get("lastTransitionTime"), "condition", what, told, warning=each["type"] == "Stalled")


def of_grant(grant: Object) -> Iterator[Entry]:
    """When a node that is in flight got its grant."""
    if (at := time_of(grant.get("since"))) is not None:
        yield Entry(
            at=at,
            source="grant",
            policy=grant.get("policy", ""),
            node=grant.get("node", ""),
            what="Granted",
            says=f"may be unavailable ({grant.get('purpose', 'RollOut')})",
        )


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """Oldest first, each once: what an event tells need not be remembered beside it."""
    found = sorted(entries, key=lambda e: (e.at.replace(microsecond=0), e.place, e.at, e.policy, e.node, e.what))
    events: dict[tuple[str, str], list[datetime]] = {}
    for each in found:
        if each.source == "event":
            events.setdefault((each.node or each.policy, each.what), []).append(each.at)
    return [e for e in found if e.source == "event" or not _told(e, events.get((e.node or e.policy, e.what), ()))]


def _told(entry: Entry, events: Sequence[datetime]) -> bool:
    return any(abs(entry.at - at) <= NEAR for at in events)


def _place(version: str) -> int:
    """The API server counts its writes, to all kinds in one row."""
    return int(version) if version.isdecimal() else 0
