"""The operator's clock goes on evenly while the machine's is set, and follows it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupartition.controller.clock import SLEW, Clock

HOUR = 3600.0


@dataclass
class Machine:
    """Its wall clock can be set; its steady one cannot."""

    steady: float = 50.0
    off: float = 1_000_000.0

    def clock(self) -> Clock:
        return Clock(lambda: self.steady + self.off, lambda: self.steady)

    def passes(self, seconds: float, *, clock: Clock) -> float:
        """So many seconds; returns how many the clock says."""
        before = clock.seconds()
        self.steady += seconds
        return clock.seconds() - before


def test_it_says_what_the_machine_says() -> None:
    machine = Machine()
    clock = machine.clock()
    assert clock.seconds() == machine.steady + machine.off
    assert machine.passes(60, clock=clock) == pytest.approx(60)


@pytest.mark.parametrize("jump", [HOUR, -HOUR, 365 * 24 * HOUR])
def test_ten_minutes_stay_about_ten_minutes_when_the_machine_s_clock_is_set(jump: float) -> None:
    machine = Machine()
    clock = machine.clock()
    machine.off += jump
    assert machine.passes(600, clock=clock) == pytest.approx(600, rel=SLEW)


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_it_says_what_the_machine_says_again_once_the_difference_is_made_up_for(jump: float) -> None:
    machine = Machine()
    clock = machine.clock()
    machine.off += jump
    for _ in range(100):
        machine.passes(HOUR / SLEW / 100, clock=clock)
    assert clock.seconds() == pytest.approx(machine.steady + machine.off)


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(-1e7, 1e7)), max_size=20))
def test_it_never_goes_back_whatever_the_machine_s_clock_does(happens: list[tuple[float, float]]) -> None:
    machine = Machine()
    clock = machine.clock()
    for seconds, jump in happens:
        machine.off += jump
        assert machine.passes(seconds, clock=clock) >= seconds * (1 - SLEW) - 1e-3
