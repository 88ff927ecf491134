"""What will fit, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from gpupartition.cli.paint import Cell, Line, Span, grid, line
from gpupartition.domain.fit import Fits, Outcome
from gpupartition.domain.prospect import Compared, Prospect

MOST: Final = 20  # rows of a table: more are in -o json
_STYLES: Final = {Fits.YES: "green", Fits.NO: "red", Fits.UNKNOWN: "yellow", Fits.UNSEEN: "yellow"}


def drawn(found: Prospect) -> Iterator[Line]:
    """Who waits and does not simply get something, whose next start is in doubt, and the classes that are left without devices."""
    if found.why_not:
        yield ()
        yield line(Span(f"what will fit was not looked at: {found.why_not}", "yellow"))
    waiting = [each for each in found.pending if each.changes or each.after.fits is not Fits.YES]
    yield from _table(("WAITS FOR DEVICES", "NOW", "AFTER", "WHY"), [_waiting(each) for each in waiting])
    doubtful = [each for each in found.restarts if each.after.fits is not Fits.YES]
    yield from _table(("NEXT START OF", "AFTER", "WHY"), [_restart(each) for each in doubtful])
    yield from _table(("DEVICECLASS", "AFTER"), [(name, _class(fits)) for name, fits in found.emptied.items()])
    seen, everybody = found.looked_at
    if seen < everybody:
        yield ()
        yield line(Span(f"looked at {seen} of {everybody} who want devices, then the time was up", "yellow"))


def _table(head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Iterator[Line]:
    if not rows:
        return
    yield ()
    yield from grid(head, rows[:MOST])
    if len(rows) > MOST:
        yield line(Span(f"and {len(rows) - MOST} more, which -o json names", "dim"))


def _waiting(each: Compared) -> tuple[Cell, ...]:
    return _who(each), outcome(each.now), outcome(each.after), each.after.why


def _restart(each: Compared) -> tuple[Cell, ...]:
    return _who(each), outcome(each.after), each.after.why


def _who(each: Compared) -> str:
    return f"{each.ask.kind} {each.ask}"


def outcome(found: Outcome | None) -> Cell:
    """The node on which it fits, or what else comes of it."""
    if found is None:
        return ""
    return Span(found.node if found.fits is Fits.YES else str(found.fits), _STYLES[found.fits])


def _class(fits: Fits) -> Cell:
    return Span("has no device" if fits is Fits.NO else str(fits), _STYLES[fits])


def as_data(found: Prospect) -> dict[str, Any]:
    """Everything, in names that stay."""
    seen, everybody = found.looked_at
    return {
        "whyNot": found.why_not,
        "lookedAt": seen,
        "of": everybody,
        "findings": ["unschedulable"] if found.unschedulable else [],
        "pending": [_data(each) for each in found.pending],
        "restarts": [_data(each) for each in found.restarts],
        "deviceClasses": [{"name": name, "after": str(fits)} for name, fits in found.emptied.items()],
    }


def _data(each: Compared) -> dict[str, Any]:
    ask = each.ask
    told = {"kind": ask.kind, "namespace": ask.namespace, "name": ask.name, "worse": each.worse}
    now = {"now": outcome_data(each.now)} if each.now is not None else {}
    return {**told, **now, "after": outcome_data(each.after)}


def outcome_data(found: Outcome) -> dict[str, Any]:
    """Where and with what it fits, or why not."""
    return {
        "fits": str(found.fits),
        "node": found.node,
        "devices": [dict(zip(("driver", "pool", "device"), device, strict=True)) for device in found.devices],
        "why": found.why,
    }
