"""What will fit: who waits for devices and will get some after a change, whose next start will find none, and which classes are left empty."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpupartition.domain.allocator.selectors import UNKNOWN, Unknown, selects
from gpupartition.domain.asks import Ask
from gpupartition.domain.fit import Fits, Floor, Outcome
from gpupartition.domain.objects import Object


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """An ask, and what comes of it now and afterwards. `now` None: it has its devices, and asks again when it starts anew."""

    ask: Ask
    now: Outcome | None
    after: Outcome

    @property
    def worse(self) -> bool:
        """It has devices, or would get some, and will not find any."""
        return self.after.fits is Fits.NO and (self.now is None or self.now.fits is Fits.YES)

    @property
    def changes(self) -> bool:
        """Whether the change makes a difference to it, or may."""
        return self.now is None or self.now.fits is not self.after.fits


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """`pending` wait for devices; `restarts` have some that the change takes away.

    `emptied`: classes that have devices now, and will have none (NO), or perhaps none (UNKNOWN). `why_not`: why nothing was looked at.
    """

    pending: Sequence[Compared] = ()
    restarts: Sequence[Compared] = ()
    emptied: Mapping[str, Fits] = field(default_factory=dict)
    why_not: str = ""

    @property
    def looked_at(self) -> tuple[int, int]:
        """How many of all."""
        everybody = [*self.pending, *self.restarts]
        return sum(each.after.fits is not Fits.UNSEEN for each in everybody), len(everybody)

    @property
    def unschedulable(self) -> bool:
        """Whether somebody is worse off."""
        return any(each.worse for each in (*self.pending, *self.restarts))


def compared(
    pending: Iterable[Ask],
    restarts: Iterable[Ask],
    now: Floor,
    after: Floor,
    once_free: Floor,
    *,
    late: Callable[[], bool],
) -> tuple[list[Compared], list[Compared]]:
    """Those whose devices go first, as they are who would be harmed; then those who wait. Each group by itself, in the scheduler's order."""
    again = once_free.place(sorted(restarts, key=_turn), late)
    harmed = [Compared(ask=ask, now=None, after=outcome) for ask, outcome in again.items()]
    waiting = [
        Compared(ask=ask, now=now.place([ask], late)[ask], after=after.place([ask], late)[ask])
        for ask in sorted(pending, key=_turn)
    ]
    return waiting, harmed


def _turn(ask: Ask) -> tuple[int, str, str, str]:
    return ask.turn


# ------------------------------------------------------------------------------------------------------------------------ classes


@dataclass(frozen=True, eq=False, slots=True)
class _Device:
    driver: str
    body: Object


def emptied(
    classes: Iterable[Object], before: Sequence[Object], after: Sequence[Object], late: Callable[[], bool]
) -> dict[str, Fits]:
    """The classes that have a device in the slices before, and none after, or perhaps none."""
    found: dict[str, Fits] = {}
    for body in classes:
        name, selectors = body["metadata"]["name"], _selectors(body)
        if late():
            found[name] = Fits.UNSEEN
        elif _has(selectors, before, late) is Fits.YES and (then := _has(selectors, after, late)) is not Fits.YES:
            found[name] = then
    return found


def _selectors(body: Object) -> list[str]:
    return [each["cel"]["expression"] for each in body["spec"].get("selectors") or () if each.get("cel")]


def _has(selectors: Sequence[str], slices: Sequence[Object], late: Callable[[], bool]) -> Fits:
    """Whether a class has a device in any of these slices."""
    came = Fits.NO
    possible: dict[str, bool] = {}
    for device in _devices(slices):
        if late():
            return Fits.UNSEEN
        driver = device.driver
        if driver not in possible:
            possible[driver] = any(_selected(selectors, _Device(driver, body)) is not Fits.NO for body in _ANYBODY)
        chosen = _selected(selectors, device) if possible[driver] else Fits.NO
        if chosen is Fits.YES:
            return chosen
        came = Fits.UNKNOWN if chosen is Fits.UNKNOWN else came
    return came


_ANYBODY: Final[Sequence[Object]] = [
    {"name": "", "allowMultipleAllocations": shared, UNKNOWN: ("attributes", "capacity")} for shared in (False, True)
]
"""Devices of which nothing is known but the driver: what these are not, none of its devices is."""


def _devices(slices: Iterable[Object]) -> Iterator[_Device]:
    """Each once: slices that are expected have theirs in common."""
    seen: set[int] = set()
    for body in slices:
        for device in body["spec"].get("devices") or ():
            if id(device) not in seen:
                seen.add(id(device))
                yield _Device(body["spec"]["driver"], device)


def _selected(selectors: Sequence[str], device: _Device) -> Fits:
    try:
        return Fits.YES if all(selects(selector, device) for selector in selectors) else Fits.NO
    except Unknown:
        return Fits.UNKNOWN
    except ValueError:
        return Fits.NO
