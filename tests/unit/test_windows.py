"""Windows: when nodes may be taken, by the clock on the wall of a time zone, on ordinary days and on strange ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from gpupartition.api.v1alpha1 import Window
from gpupartition.domain.windows import announce, next_change, next_opening, open_at, opened, problems

BERLIN = "Europe/Berlin"


def window(start: str, end: str, *days: str, zone: str = "UTC") -> Window:
    return Window.model_validate({"start": start, "end": end, "days": list(days), "timeZone": zone})


def at(text: str, zone: str = "UTC", *, second_time: bool = False) -> datetime:
    """`2026-03-29 01:30` on the wall of a zone, as an instant; where the wall shows it twice, the first time unless told otherwise."""
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=int(second_time)).astimezone(UTC)


def wall(instant: datetime | None, zone: str) -> str:
    assert instant is not None
    return f"{instant.astimezone(ZoneInfo(zone)):%a %Y-%m-%d %H:%M}"


def shut_and_open(*windows: Window, closed: datetime, opens: datetime) -> None:
    """It is closed, and opens at that very instant, not a second earlier."""
    assert not open_at(windows, closed)
    assert next_opening(windows, closed) == opens
    assert open_at(windows, opens)
    assert not open_at(windows, opens - timedelta(seconds=1))


def test_without_windows_nodes_may_be_taken_at_any_time() -> None:
    assert open_at([], at("2026-03-01 12:00"))
    assert next_opening([], at("2026-03-01 12:00")) is None
    assert next_change([], at("2026-03-01 12:00")) is None
    assert announce([], at("2026-03-01 12:00")) == ""


@pytest.mark.parametrize(
    ("time", "is_open"), [("08:59:59", False), ("09:00", True), ("16:59:59", True), ("17:00", False), ("23:00", False)]
)
def test_a_window_begins_with_its_start_and_is_over_at_its_end(time: str, is_open: bool) -> None:
    assert open_at([window("09:00", "17:00")], at(f"2026-03-04 {time}")) is is_open


@pytest.mark.parametrize(
    ("when", "is_open"),
    [
        ("2026-03-06 21:59", False),  # a Friday
        ("2026-03-06 22:00", True),
        ("2026-03-07 05:59", True),  # still Friday's
        ("2026-03-07 06:00", False),
        ("2026-03-07 23:00", False),
        ("2026-03-06 05:00", False),  # would be Thursday's
    ],
)
def test_a_window_over_midnight_belongs_to_the_day_on_which_it_begins(when: str, is_open: bool) -> None:
    assert open_at([window("22:00", "06:00", "Fri")], at(when)) is is_open


def test_a_whole_day_is_written_from_0_to_24() -> None:
    sunday = [window("00:00", "24:00", "Sun")]
    shut_and_open(*sunday, closed=at("2026-03-05 10:00"), opens=at("2026-03-08 00:00"))
    assert open_at(sunday, at("2026-03-08 23:59:59"))
    assert next_change(sunday, at("2026-03-08 12:00")) == at("2026-03-09 00:00")


def test_a_window_until_midnight_ends_there() -> None:
    assert not open_at([window("22:00", "24:00", "Fri")], at("2026-03-07 00:00"))
    assert not open_at([window("22:00", "00:00", "Fri")], at("2026-03-07 00:00"))


def test_windows_that_follow_each_other_are_one() -> None:
    assert next_change([window("00:00", "12:00"), window("12:00", "24:00")], at("2026-03-04 11:00")) is None
    both = [window("10:00", "12:00"), window("12:00", "14:00")]
    assert next_change(both, at("2026-03-04 11:00")) == at("2026-03-04 14:00")
    assert opened(both, at("2026-03-04 13:00")) == at("2026-03-04 10:00")


def test_the_window_that_opens_first_counts_and_is_announced_on_its_own_clock() -> None:
    windows = [window("22:00", "06:00", zone=BERLIN), window("09:00", "10:00", "Mon", zone="Asia/Tokyo")]
    sunday = at("2026-03-01 18:00")
    assert next_opening(windows, sunday) == at("2026-03-01 22:00", BERLIN)
    assert announce(windows, sunday) == "Sun 2026-03-01 22:00 Europe/Berlin"
    assert announce(windows[1:], sunday) == "Mon 2026-03-02 09:00 Asia/Tokyo"
    assert announce(windows, at("2026-03-01 23:00")) == ""


def test_since_when_it_is_open_is_known_unless_it_always_was() -> None:
    nights = [window("22:00", "06:00")]
    assert opened(nights, at("2026-03-04 03:00")) == at("2026-03-03 22:00")
    assert opened(nights, at("2026-03-04 12:00")) is None
    assert opened([window("00:00", "24:00")], at("2026-03-04 12:00")) is None


# ── when clocks are put forward: Europe/Berlin leaves out 02:00 to 03:00 on 2026-03-29 ───────────────────────────────


def test_a_window_that_begins_in_the_hour_left_out_opens_when_the_clock_first_shows_a_time_in_it() -> None:
    opens = at("2026-03-29 03:00", BERLIN)
    shut_and_open(window("02:30", "06:00", zone=BERLIN), closed=at("2026-03-29 01:59", BERLIN), opens=opens)


def test_a_window_that_ends_in_the_hour_left_out_is_over_when_that_begins() -> None:
    night = [window("01:00", "02:30", zone=BERLIN)]
    assert next_change(night, at("2026-03-29 01:30", BERLIN)) == at("2026-03-29 03:00", BERLIN)
    assert at("2026-03-29 03:00", BERLIN) - at("2026-03-29 01:00", BERLIN) == timedelta(hours=1)


def test_a_window_within_the_hour_left_out_does_not_open_that_day() -> None:
    shut_and_open(
        window("02:15", "02:45", zone=BERLIN),
        closed=at("2026-03-28 12:00", BERLIN),
        opens=at("2026-03-30 02:15", BERLIN),
    )
    weekly = [window("02:15", "02:45", "Sun", zone=BERLIN)]
    assert wall(next_opening(weekly, at("2026-03-22 03:00", BERLIN)), BERLIN) == "Sun 2026-04-05 02:15"


# ── when clocks are put back: Europe/Berlin shows 02:00 to 03:00 twice on 2026-10-25 ─────────────────────────────────


def test_a_window_within_the_hour_that_comes_twice_opens_twice() -> None:
    quarter = [window("02:15", "02:45", zone=BERLIN)]
    first, second = at("2026-10-25 02:15", BERLIN), at("2026-10-25 02:15", BERLIN, second_time=True)
    assert second - first == timedelta(hours=1)
    shut_and_open(*quarter, closed=at("2026-10-25 01:00", BERLIN), opens=first)
    shut_and_open(*quarter, closed=at("2026-10-25 02:50", BERLIN), opens=second)


def test_a_window_that_ends_in_the_hour_that_comes_twice_opens_once_more_when_that_comes_again() -> None:
    night = [window("22:00", "02:30", "Sat", zone=BERLIN)]
    over = at("2026-10-25 02:30", BERLIN)
    assert next_change(night, at("2026-10-25 01:00", BERLIN)) == over
    shut_and_open(*night, closed=over, opens=at("2026-10-25 02:00", BERLIN, second_time=True))
    again = at("2026-10-25 02:00", BERLIN, second_time=True)
    assert next_change(night, again) == at("2026-10-25 02:30", BERLIN, second_time=True)


def test_a_window_around_the_change_lasts_an_hour_longer() -> None:
    night = [window("22:00", "06:00", "Sat", zone=BERLIN)]
    begins = at("2026-10-24 22:00", BERLIN)
    over = next_change(night, begins)
    assert over is not None
    assert over - begins == timedelta(hours=9)


# ── strange calendars ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_leap_day_is_a_day_like_any_other() -> None:
    shut_and_open(
        window("22:00", "06:00", "Tue"), closed=at("2028-02-29 12:00"), opens=at("2028-02-29 22:00")
    )  # a Tuesday
    assert open_at([window("22:00", "06:00", "Tue")], at("2028-03-01 05:00"))


def test_a_day_that_a_zone_left_out_when_it_crossed_the_date_line_opens_nothing() -> None:
    friday = window("09:00", "17:00", "Fri", zone="Pacific/Apia")  # there was no Friday 2011-12-30 in Samoa
    found = next_opening([friday], at("2011-12-29 12:00", "Pacific/Apia"))
    assert wall(found, "Pacific/Apia") == "Fri 2012-01-06 09:00"


def test_a_zone_whose_clocks_go_back_over_midnight_keeps_to_the_day_on_the_wall() -> None:
    saturday = [window("23:00", "01:00", "Sat", zone="America/Sao_Paulo")]  # 2019-02-17 00:00 became 2019-02-16 23:00
    zone = "America/Sao_Paulo"
    begins = at("2019-02-16 23:00", zone)
    assert next_change(saturday, begins) == at("2019-02-17 01:00", zone)
    assert at("2019-02-17 01:00", zone) - begins == timedelta(hours=3)


# ── names of zones ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("zone", "near"),
    [
        ("Europe/Berln", "Europe/Berlin"),
        ("europe/berlin", "Europe/Berlin"),
        ("Berlin", "Europe/Berlin"),
        ("America/New York", "America/New_York"),
        ("US/Pacifc", "US/Pacific"),
        ("Mars/Olympus_Mons", "area and city, such as Europe/Berlin"),
        ("localtime", "such as Europe/Berlin"),
    ],
)
def test_an_unknown_zone_is_refused_with_its_place_its_name_and_names_like_it(zone: str, near: str) -> None:
    (found,) = problems([window("01:00", "02:00"), window("01:00", "02:00", zone=zone)])
    assert found.reason == "InvalidWindow"
    assert found.at == "spec.rollout.windows[1].timeZone"
    assert repr(zone) in found.why
    assert near in found.fix


def test_all_unknown_zones_are_named_at_once() -> None:
    zones: list[Any] = [window("01:00", "02:00", zone=zone) for zone in ("Nowhere", BERLIN, "Nowhere/Else")]
    assert [p.at for p in problems(zones)] == [f"spec.rollout.windows[{n}].timeZone" for n in (0, 2)]
