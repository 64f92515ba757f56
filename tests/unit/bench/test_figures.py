"""Percentiles are samples, not guesses between samples."""

import pytest

from bench import figures


@pytest.mark.parametrize(
    ("samples", "percent", "expected"),
    [([3.0], 99, 3.0), ([1.0, 2.0], 50, 1.0), ([1.0, 2.0], 51, 2.0), ([float(n) for n in range(1, 101)], 99, 99.0)],
)
def test_the_percentile_is_by_nearest_rank(samples: list[float], percent: float, expected: float) -> None:
    assert figures.percentile(samples[::-1], percent) == expected


def test_seconds_become_milliseconds() -> None:
    assert figures.milliseconds([0.001, 0.002, 0.0091]) == {"p50": 2.0, "p99": 9.1, "max": 9.1}
