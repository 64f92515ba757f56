"""The drift of the kernel log's clock is measured only by records that are read as they are printed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.health.kmsg.log_clock import LogClock

HOUR = 3600.0


def read(clock: LogClock, *delays: float, late: float, live: bool = True) -> LogClock:
    """Let the clock read records printed a minute apart and read after these delays, on a clock with that lag."""
    for minute, delay in enumerate(delays, 1):
        printed = 10_000_000.0 + 60 * minute
        clock.learn(stamp=printed - late, now=printed + delay, live=live)
    return clock


def test_hours_of_lag_show_in_first_live_record() -> None:
    assert read(LogClock(), 0.004, late=2 * HOUR).late == pytest.approx(2 * HOUR, abs=0.1)


def test_clock_ahead_shows_in_any_future_record() -> None:
    assert read(LogClock(), 5.0, late=-HOUR, live=False).late == pytest.approx(5.0 - HOUR)


def test_record_that_was_not_awaited_proves_no_lag() -> None:
    assert read(LogClock(), *[HOUR] * 20, late=0.0, live=False).late == 0.0


@given(st.lists(st.floats(0.0, 29.0), max_size=7))
def test_delayed_reader_dates_no_fault_later(delays: list[float]) -> None:
    assert read(LogClock(), *delays, late=0.0).late == 0.0


def test_few_seconds_of_lag_need_many_records() -> None:
    delays = [0.01, 1.5, 0.02, 0.7, 0.01, 4.0, 0.01, 0.3]
    assert read(LogClock(), *delays[:7], late=5.0).late == 0.0
    assert read(LogClock(), *delays, late=5.0).late == pytest.approx(5.0, abs=0.05)


@given(late=st.floats(-10 * HOUR, 10 * HOUR), delays=st.lists(st.floats(0.0, 1.0), min_size=8, max_size=30))
def test_lag_is_known_to_a_few_seconds_after_many_records(late: float, delays: list[float]) -> None:
    assert read(LogClock(), *delays, late=late).late == pytest.approx(late, abs=2.0 + max(delays))


def test_slow_drift_is_followed() -> None:
    clock = LogClock()
    for hour in range(1000):
        read(clock, *[0.01] * 8, late=hour * 5.0)
        assert clock.late == pytest.approx(hour * 5.0, abs=2.1)
