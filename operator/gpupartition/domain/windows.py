"""When nodes may be taken: windows of local time, and when they next open or close.

A window holds exactly when a clock on a wall in its time zone shows a time in it. So nothing special has to be said of the days on which
clocks are changed: an hour that is left out is never shown, and one that comes twice is shown twice.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from gpupartition.api.v1alpha1 import Day, Window
from gpupartition.domain.problem import Problem

# A window of one day a week can fall into an hour that is left out, or on the day that a zone left out when it crossed the date line: then
# it opens a week later. A day more, because dates differ between zones.
HORIZON: Final = timedelta(days=15)

DAYS: Final = tuple(Day)
_DAY: Final = timedelta(days=1)


def open_at(windows: Sequence[Window], now: datetime) -> bool:
    """Whether nodes may be taken; without windows, always."""
    return not windows or any(_shows(window, now) for window in windows)


def next_opening(windows: Sequence[Window], now: datetime) -> datetime | None:
    """The first instant after `now` at which nodes may be taken again; None while they may be."""
    return None if open_at(windows, now) else next_change(windows, now)


def next_change(windows: Sequence[Window], now: datetime) -> datetime | None:
    """The first instant after `now` at which it opens or closes, in UTC; None if it never does (within HORIZON)."""
    return min((at for at in _changes(windows, now, now, now + HORIZON) if at > now), default=None)


def opened(windows: Sequence[Window], now: datetime) -> datetime | None:
    """Since when nodes may be taken, in UTC; None while they may not, or where they could for longer than HORIZON."""
    if not open_at(windows, now):
        return None
    closed = [at for at in _edges(windows, now - HORIZON, now) if at < now and not open_at(windows, at)]
    return next_change(windows, max(closed)) if closed else None


def announce(windows: Sequence[Window], now: datetime) -> str:
    """When it opens next, for people, on the clock of the window that opens."""
    at = next_opening(windows, now)
    if at is None:
        return ""
    first = next(window for window in windows if _shows(window, at))
    local = at.astimezone(_zone(first.time_zone))
    return f"{DAYS[local.weekday()]} {local:%Y-%m-%d %H:%M} {first.time_zone}"


def problems(windows: Sequence[Window]) -> Iterator[Problem]:
    """The time zones that nobody knows."""
    for number, window in enumerate(windows):
        try:
            _zone(window.time_zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            yield Problem(
                reason="InvalidWindow",
                at=f"spec.rollout.windows[{number}].timeZone",
                why=f"there is no time zone {window.time_zone!r}",
                fix=f"write {_near(window.time_zone)}",
            )


def _shows(window: Window, now: datetime) -> bool:
    local = now.astimezone(_zone(window.time_zone))
    minute, start, end = local.hour * 60 + local.minute, _minutes(window.start), _minutes(window.end)
    if start < end:
        return start <= minute < end and _begins_on(window, local.date())
    if minute >= start:
        return _begins_on(window, local.date())
    return minute < end and _begins_on(window, local.date() - _DAY)


def _begins_on(window: Window, day: date) -> bool:
    return not window.days or DAYS[day.weekday()] in window.days


def _changes(windows: Sequence[Window], now: datetime, since: datetime, until: datetime) -> Iterator[datetime]:
    """The instants from `since` to `until` at which it is not as it is now."""
    is_open = open_at(windows, now)
    return (at for at in _edges(windows, since, until) if open_at(windows, at) is not is_open)


def _edges(windows: Sequence[Window], since: datetime, until: datetime) -> Iterator[datetime]:
    """Every instant at which a clock may begin to show another side of a window: its hours, midnight, and whenever clocks are changed."""
    for name in sorted({window.time_zone for window in windows}):
        zone = _zone(name)
        hours = {h for w in windows if w.time_zone == name for h in (0, _minutes(w.start), _minutes(w.end) % 1440)}
        day, last = since.astimezone(zone).date() - _DAY, until.astimezone(zone).date() + _DAY
        while day <= last:
            for minute in sorted(hours):
                for fold in (0, 1):
                    local = datetime.combine(day, time(*divmod(minute, 60)), zone).replace(fold=fold)
                    yield local.astimezone(UTC)
            yield from _clock_changes(zone, day)
            day += _DAY


@lru_cache(maxsize=4096)
def _clock_changes(zone: ZoneInfo, day: date) -> tuple[datetime, ...]:
    """When the clocks of a zone are changed on a day of UTC: to the second, at most once."""
    low = int(datetime.combine(day, time(), UTC).timestamp())
    high = low + 86400
    before, after = _offset(zone, low), _offset(zone, high)
    if before == after:
        return ()
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _offset(zone, middle) == before else (low, middle)
    return (datetime.fromtimestamp(high, UTC),)


def _offset(zone: ZoneInfo, instant: int) -> timedelta | None:
    return datetime.fromtimestamp(instant, zone).utcoffset()


def _minutes(text: str) -> int:
    hours, _, minutes = text.partition(":")
    return int(hours) * 60 + int(minutes)


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo:
    if name not in _known():  # so that neither paths nor the case of a letter depend on the machine
        raise ZoneInfoNotFoundError(name)
    return ZoneInfo(name)


@lru_cache(maxsize=1)
def _known() -> frozenset[str]:
    return frozenset(available_timezones() - {"localtime", "Factory"})


@lru_cache(maxsize=1024)
def _near(name: str) -> str:
    """Up to three names that look like it, or whose city does."""
    known = {zone.lower(): zone for zone in sorted(_known())}
    cities = {zone.rpartition("/")[2].lower(): zone for zone in sorted(_known(), reverse=True)}
    wanted = name.lower().replace(" ", "_")
    close = [known[z] for z in difflib.get_close_matches(wanted, known, n=3)]
    close += [cities[c] for c in difflib.get_close_matches(wanted.rpartition("/")[2], cities, n=2, cutoff=0.8)]
    names = list(dict.fromkeys(close))[:3]
    return f"one of {', '.join(names)}" if names else "UTC, or area and city, such as Europe/Berlin"
