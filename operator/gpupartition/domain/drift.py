"""Nodes at rest that no longer are what they were verified to be: how often each is repaired, and when so many are that nobody is touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from gpupartition.api.v1alpha1 import DriftBrake, Phase
from gpupartition.domain.destination import difference
from gpupartition.domain.guards import retried
from gpupartition.domain.pool import Pool
from gpupartition.domain.world import AT_REST, State, World

REPAIRS: Final = 3  # a day; after that whatever undoes them has to be found first
DAY: Final = timedelta(days=1)
HOUR: Final = timedelta(hours=1)
TOGETHER: Final = timedelta(minutes=10)  # drift of many nodes within this time has one cause
LEFT_ALONE: Final = frozenset({"DriftUnrepaired", "AssignmentContested"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """As what a node at rest waits, and what else its record remembers."""

    phase: Phase
    reason: str
    message: str
    remembers: Mapping[str, Any]


def reassigned(state: State, world: World) -> bool:
    """Somebody else has written the assignment of a node at rest."""
    return (
        state.phase is Phase.UP_TO_DATE
        and state.target is not None
        and bool(world.observed.writer)
        and world.observed.assignment != state.target.assignment
    )


def notice(state: State, world: World) -> Waiting:
    """What becomes of a node that has drifted: repaired, unless that was undone too often."""
    repairs = [at for at in state.repairs if world.now - at < DAY]
    contests = [at for at in state.contests if world.now - at < HOUR]
    remembers: dict[str, Any] = {"drifted": world.now, "repairs": repairs, "contests": contests}
    again = "when that is settled, annotate the policy with gpupartition.dev/retry=<any new value>"
    if reassigned(state, world):
        by = f"{world.observed.writer} changed its label from {_name(state)} to {world.observed.assignment or 'none'}"
        remembers["contests"] = [*contests, world.now]
        if contests:
            message = f"twice in an hour {by}, so it is left alone; {again}"
            return Waiting(
                phase=Phase.SKIPPED,
                reason="AssignmentContested",
                message=message,
                remembers=remembers | {"retry": world.retry},
            )
        message = f"{by}; it gets its layout back when it is idle"
        return Waiting(phase=Phase.PENDING, reason="Drift", message=message, remembers=remembers)
    if len(repairs) >= REPAIRS:
        until = f"{min(repairs) + DAY:%d %b %H:%M} UTC"
        message = (
            f"{drift_message(world)}; repaired {REPAIRS} times within a day, so it is left alone until {until}; {again}"
        )
        return Waiting(
            phase=Phase.SKIPPED,
            reason="DriftUnrepaired",
            message=message,
            remembers=remembers | {"retry": world.retry},
        )
    return Waiting(phase=Phase.PENDING, reason="Drift", message=drift_message(world), remembers=remembers)


def given_another_chance(state: State, world: World) -> bool:
    """Whether a node that was left alone for its drift may be repaired again: somebody asked, or the day is over."""
    if retried(state, world):
        return True
    return state.reason == "DriftUnrepaired" and sum(world.now - at < DAY for at in state.repairs) < REPAIRS


def drift_message(world: World) -> str:
    """What a node publishes instead of what it was verified with."""
    wanted = world.wanted.pool if world.wanted else Pool()
    return f"published the wanted layout and no longer does: {difference(world.observed.pool, wanted) or world.observed.pool.problem}"


def is_drifting(record: State) -> bool:
    """Whether a node waits to be repaired, is being repaired, or is left alone for it."""
    if record.phase in {Phase.PENDING, Phase.SKIPPED}:
        return record.reason == "Drift" or record.reason in LEFT_ALONE
    target, current = record.target, record.current
    unfinished = record.phase not in AT_REST and record.outcome is None and not record.recovering
    return unfinished and target is not None and current is not None and target.fingerprint == current.fingerprint


def brake(
    records: Mapping[str, State], *, before: DriftBrake | None, asked: str, matched: int, now: datetime
) -> DriftBrake | None:
    """The brake of a policy after this look at its nodes: on from when too many have drifted together, until somebody accepts it.

    `asked`: the value of the annotation gpupartition.dev/accept-drift. With no node drifting any more there is nothing to keep back.
    """
    known = before or DriftBrake()
    if asked and asked != known.accepted:
        return DriftBrake(accepted=asked, accepted_at=now)
    drifting = sorted(n for n, r in records.items() if is_drifting(r))
    if known.since is not None:
        return known if drifting else _off(known)
    recent = _together(records, drifting, after=known.accepted_at, now=now)
    if len(recent) >= 2 and len(recent) * 10 > matched:
        return known.model_copy(update={"since": now, "nodes": recent[:5]})
    return before


def _off(brake: DriftBrake) -> DriftBrake | None:
    if not brake.accepted:
        return None
    return brake.model_copy(update={"since": None, "nodes": []})


def _together(
    records: Mapping[str, State], drifting: Sequence[str], *, after: datetime | None, now: datetime
) -> list[str]:
    times = {n: records[n].drifted for n in drifting}
    return [n for n, at in times.items() if at is not None and now - at < TOGETHER and (after is None or at > after)]


def brake_message(brake: DriftBrake | None) -> str:
    """What the brake says while it is on; "" while it is not."""
    if brake is None or brake.since is None:
        return ""
    return (
        f"many nodes drifted within {TOGETHER.seconds // 60} minutes, such as {', '.join(brake.nodes)}: no node is touched; "
        "find the cause, then annotate the policy with gpupartition.dev/accept-drift=<any new value> to have them repaired"
    )


def _name(state: State) -> str:
    return (state.target and state.target.assignment) or "none"
