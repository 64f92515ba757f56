"""Error counters count by how fast they grow, from the first reading on."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.health.nic import rdma_errors
from kubemend.agent.health.nic.rdma_errors import CounterReading, ErrorTrack

PERIOD = 30.0


def after(*values: dict[str, int], period: float = PERIOD) -> ErrorTrack:
    track = ErrorTrack()
    for number, reading in enumerate(values):
        track = rdma_errors.after_reading(track, CounterReading(number * period, reading))
    return track


def growing(counter: str, *totals: int) -> ErrorTrack:
    return after(*({counter: total} for total in totals))


def test_counter_value_before_first_reading_does_not_count() -> None:
    """The age of the absolute value is unknown (DCGM took healthy H100s out for lifetime counters)."""
    assert rdma_errors.beyond_limits(growing("symbol_error", 65_535, 65_535)) == ()


def test_zero_tolerance_counter_faults_on_one_error() -> None:
    (text,) = rdma_errors.beyond_limits(growing("local_link_integrity_errors", 7, 8))
    assert text == "local_link_integrity_errors grew by more than 0 in 1 min"


def test_symbol_errors_within_specification_are_allowed() -> None:
    assert rdma_errors.beyond_limits(growing("symbol_error", 0, 60, 120)) == ()
    assert rdma_errors.beyond_limits(growing("symbol_error", 0, 60, 121)) != ()


def test_burst_is_not_a_rate() -> None:
    """A dying peer causes thousands of timeouts at once, on healthy NICs."""
    assert rdma_errors.beyond_limits(growing("local_ack_timeout_err", 0, 50_000, 50_000, 50_000)) == ()
    assert rdma_errors.beyond_limits(growing("local_ack_timeout_err", 0, 5_000, 10_000, 15_000)) != ()


def test_growth_expires_with_its_window() -> None:
    track = growing("link_error_recovery", 0, 6)
    assert rdma_errors.beyond_limits(track) != ()
    for at in (60.0, 90.0):
        track = rdma_errors.after_reading(track, CounterReading(at, {"link_error_recovery": 6}))
    assert rdma_errors.beyond_limits(track) == ()


def test_reset_counter_counts_from_there() -> None:
    assert rdma_errors.beyond_limits(growing("symbol_error", 1_000, 0, 5)) == ()
    assert rdma_errors.beyond_limits(growing("symbol_error", 1_000, 0, 500)) != ()


def test_growth_while_port_is_down_does_not_count() -> None:
    track = growing("symbol_error", 0, 5)
    track = rdma_errors.after_reading(rdma_errors.after_outage(track), CounterReading(90.0, {"symbol_error": 9_000}))
    assert rdma_errors.beyond_limits(track) == ()


def test_missed_reading_continues_from_last_value() -> None:
    assert rdma_errors.beyond_limits(after({"symbol_error": 0}, {}, {"symbol_error": 121})) != ()


@pytest.mark.parametrize(("errors", "is_fault"), [(300, False), (301, True)])
def test_growth_over_a_long_time_without_readings_counts_by_its_mean(errors: int, is_fault: bool) -> None:
    track = after({"link_error_recovery": 0}, {}, {"link_error_recovery": errors}, period=1800.0)
    assert bool(rdma_errors.beyond_limits(track)) is is_fault


@pytest.mark.parametrize("counter", ["rnr_nak_retry_err", "port_xmit_data"])
def test_counter_without_limit_is_never_exceeded(counter: str) -> None:
    assert rdma_errors.beyond_limits(growing(counter, 0, 10**9)) == ()


@given(st.lists(st.integers(0, 200), max_size=20), st.sampled_from(sorted(rdma_errors.COUNTERS)))
def test_repeated_reading_changes_nothing(grown: list[int], counter: str) -> None:
    once = twice = ErrorTrack()
    for number, total in enumerate(_totals(grown)):
        reading = CounterReading(number * PERIOD, {counter: total})
        once = rdma_errors.after_reading(once, reading)
        twice = rdma_errors.after_reading(rdma_errors.after_reading(twice, reading), reading)
    assert once == twice


def _totals(grown: Iterable[int]) -> Iterable[int]:
    total = 0
    for each in grown:
        total += each
        yield total
