"""The kernel log's clock drifts: it is told from records that are read as they are printed, and from nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.health.log_clock import LogClock

HOUR = 3600.0


def read(clock: LogClock, *delays: float, late: float, live: bool = True) -> LogClock:
    """Have it read records that were printed a minute apart and read so many seconds after, on a clock so late."""
    for minute, delay in enumerate(delays, 1):
        printed = 10_000_000.0 + 60 * minute
        clock.learn(stamp=printed - late, now=printed + delay, live=live)
    return clock


def test_a_clock_that_is_hours_late_shows_in_the_first_live_record() -> None:
    assert read(LogClock(), 0.004, late=2 * HOUR).late == pytest.approx(2 * HOUR, abs=0.1)


def test_a_clock_that_is_ahead_shows_in_any_record_of_what_is_yet_to_come() -> None:
    assert read(LogClock(), 5.0, late=-HOUR, live=False).late == pytest.approx(5.0 - HOUR)


def test_what_was_not_waited_for_may_be_as_old_as_it_likes() -> None:
    assert read(LogClock(), *[HOUR] * 20, late=0.0, live=False).late == 0.0


@given(st.lists(st.floats(0.0, 29.0), max_size=7))
def test_a_reader_that_is_kept_from_reading_makes_no_fault_later(delays: list[float]) -> None:
    assert read(LogClock(), *delays, late=0.0).late == 0.0


def test_a_few_seconds_are_believed_of_many_records() -> None:
    delays = [0.01, 1.5, 0.02, 0.7, 0.01, 4.0, 0.01, 0.3]
    assert read(LogClock(), *delays[:7], late=5.0).late == 0.0
    assert read(LogClock(), *delays, late=5.0).late == pytest.approx(5.0, abs=0.05)


@given(late=st.floats(-10 * HOUR, 10 * HOUR), delays=st.lists(st.floats(0.0, 1.0), min_size=8, max_size=30))
def test_after_many_records_it_is_told_to_a_few_seconds(late: float, delays: list[float]) -> None:
    assert read(LogClock(), *delays, late=late).late == pytest.approx(late, abs=2.0 + max(delays))


def test_a_slow_drift_is_followed() -> None:
    clock = LogClock()
    for hour in range(1000):
        read(clock, *[0.01] * 8, late=hour * 5.0)
        assert clock.late == pytest.approx(hour * 5.0, abs=2.1)
