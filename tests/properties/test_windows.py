"""Laws of windows, over whole years with the changes of clocks in several zones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import given, settings
from hypothesis import strategies as st

from gpupartition.api.v1alpha1 import Day, Window
from gpupartition.domain.windows import HORIZON, announce, next_change, next_opening, open_at, opened

# An hour, half an hour, over midnight, twice a year, never, four times a year (Ramadan), and a zone that left out a day.
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Havana",
    "Asia/Kolkata",
    "Africa/Casablanca",
    "Pacific/Apia",
]
MINUTE = timedelta(minutes=1)

times = st.integers(0, 1439).map(lambda m: f"{m // 60:02}:{m % 60:02}")
ends = times | st.just("24:00")
nows = st.integers(
    int(datetime(2011, 12, 1, tzinfo=UTC).timestamp()), int(datetime(2013, 3, 1, tzinfo=UTC).timestamp())
) | st.integers(int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()), int(datetime(2029, 1, 1, tzinfo=UTC).timestamp()))


@st.composite
def windows(draw: st.DrawFn) -> Window:
    start = draw(times)
    end = draw(ends.filter(lambda e: e != start))
    days = draw(st.lists(st.sampled_from(Day), unique=True, max_size=3))
    return Window(days=days, start=start, end=end, time_zone=draw(st.sampled_from(ZONES)))


some = st.lists(windows(), min_size=1, max_size=3)
instants = nows.map(lambda seconds: datetime.fromtimestamp(seconds, UTC))


def shows(window: Window, now: datetime) -> bool:
    """The same question asked in another way: by texts, as people compare them with a clock."""
    local = now.astimezone(ZoneInfo(window.time_zone))
    clock, days = f"{local:%H:%M}", window.days or list(Day)
    today, yesterday = Day(f"{local:%a}"), Day(f"{local.date() - timedelta(days=1):%a}")
    if window.start < window.end:
        return today in days and window.start <= clock < window.end
    return (today in days and clock >= window.start) or (yesterday in days and clock < window.end)


@given(some, instants)
def test_it_is_open_exactly_while_a_clock_on_the_wall_shows_it(spans: list[Window], now: datetime) -> None:
    assert open_at(spans, now) == any(shows(window, now) for window in spans)


@given(some, instants)
@settings(deadline=None)
def test_the_next_opening_is_the_first_instant_at_which_it_is_open(spans: list[Window], now: datetime) -> None:
    opening = next_opening(spans, now)
    if open_at(spans, now):
        assert opening is None
        return
    assert opening is not None, "each window opens within two weeks"
    assert now < opening <= now + HORIZON
    assert open_at(spans, opening)
    # Windows and changes of clocks are whole minutes: were it open any earlier, some minute in between would show it.
    minute = now.replace(second=0) + MINUTE
    while minute < opening:
        assert not open_at(spans, minute), minute
        minute += MINUTE * 7 if opening - minute > timedelta(hours=2) else MINUTE
    assert announce(spans, now)


@given(some, instants)
@settings(deadline=None)
def test_nothing_changes_before_the_next_change(spans: list[Window], now: datetime) -> None:
    change = next_change(spans, now)
    is_open = open_at(spans, now)
    if change is not None:
        assert open_at(spans, change) is not is_open
    until = change or now + timedelta(days=8)
    for minutes in range(1, 60 * 24 * 8, 11):
        if now + MINUTE * minutes < until:
            assert open_at(spans, now + MINUTE * minutes) is is_open


@given(some, instants)
@settings(deadline=None)
def test_it_opened_at_an_instant_that_the_one_before_announced(spans: list[Window], now: datetime) -> None:
    since = opened(spans, now)
    if since is None:
        return
    assert since <= now
    assert open_at(spans, since)
    assert next_opening(spans, since - timedelta(seconds=1)) == since
    assert (next_change(spans, since) or now + MINUTE) > now


def test_over_whole_years_every_window_of_every_night_is_as_long_as_the_clocks_say() -> None:
    for zone in ("UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/Havana"):
        night = [Window(start="22:00", end="06:00", time_zone=zone)]
        for year in (2026, 2028):
            now, end = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
            nights, hours = 0, timedelta(0)
            while now < end:
                change = next_change(night, now)
                assert change is not None
                if open_at(night, now):
                    hours += change - now
                    nights += 1
                now = change
            days = (end - datetime(year, 1, 1, tzinfo=UTC)).days
            assert days <= nights <= days + 2, (zone, year)
            # Put forward and back by equal amounts within the year: a third of the hours, but for the night cut off at either end.
            assert abs(hours - timedelta(hours=8) * nights) <= timedelta(hours=8), (zone, year)
