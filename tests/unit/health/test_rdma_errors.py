"""Error counters count by how fast they grow, from the first reading on."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.health import rdma_errors
from agent.health.rdma_errors import CounterReading, ErrorTrack

PERIOD = 30.0


def after(*values: dict[str, int], period: float = PERIOD) -> ErrorTrack:
    track = ErrorTrack()
    for number, reading in enumerate(values):
        track = rdma_errors.after_reading(track, CounterReading(number * period, reading))
    return track


def growing(counter: str, *totals: int) -> ErrorTrack:
    return after(*({counter: total} for total in totals))


def test_a_counter_that_was_high_before_the_first_reading_says_nothing() -> None:
    """Of its whole value nobody knows how old it is (DCGM's lifetime counters took healthy H100s out)."""
    assert rdma_errors.beyond_limits(growing("symbol_error", 65_535, 65_535)) == ()


def test_one_error_is_too_many_where_there_may_be_none() -> None:
    (said,) = rdma_errors.beyond_limits(growing("local_link_integrity_errors", 7, 8))
    assert said == "local_link_integrity_errors grew by more than 0 in 1 min"


def test_symbol_errors_may_be_as_many_in_an_hour_as_the_specification_allows() -> None:
    assert rdma_errors.beyond_limits(growing("symbol_error", 0, 60, 120)) == ()
    assert rdma_errors.beyond_limits(growing("symbol_error", 0, 60, 121)) != ()


def test_a_burst_is_not_taken_for_a_rate() -> None:
    """A peer that dies makes thousands of timeouts at once, on NICs that are well."""
    assert rdma_errors.beyond_limits(growing("local_ack_timeout_err", 0, 50_000, 50_000, 50_000)) == ()
    assert rdma_errors.beyond_limits(growing("local_ack_timeout_err", 0, 5_000, 10_000, 15_000)) != ()


def test_growth_is_forgotten_with_its_window() -> None:
    track = growing("link_error_recovery", 0, 6)
    assert rdma_errors.beyond_limits(track) != ()
    for at in (60.0, 90.0):
        track = rdma_errors.after_reading(track, CounterReading(at, {"link_error_recovery": 6}))
    assert rdma_errors.beyond_limits(track) == ()


def test_a_counter_that_was_reset_counts_from_there() -> None:
    assert rdma_errors.beyond_limits(growing("symbol_error", 1_000, 0, 5)) == ()
    assert rdma_errors.beyond_limits(growing("symbol_error", 1_000, 0, 500)) != ()


def test_what_a_counter_gains_while_its_port_is_down_does_not_count() -> None:
    track = growing("symbol_error", 0, 5)
    track = rdma_errors.after_reading(rdma_errors.after_outage(track), CounterReading(90.0, {"symbol_error": 9_000}))
    assert rdma_errors.beyond_limits(track) == ()


def test_a_counter_that_could_not_be_read_once_goes_on_from_its_last_value() -> None:
    assert rdma_errors.beyond_limits(after({"symbol_error": 0}, {}, {"symbol_error": 121})) != ()


@pytest.mark.parametrize("counter", ["rnr_nak_retry_err", "port_xmit_data"])
def test_what_has_no_limit_is_never_beyond_it(counter: str) -> None:
    assert rdma_errors.beyond_limits(growing(counter, 0, 10**9)) == ()


@given(st.lists(st.integers(0, 200), max_size=20), st.sampled_from(sorted(rdma_errors.COUNTERS)))
def test_the_same_reading_taken_again_changes_nothing(grown: list[int], counter: str) -> None:
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
