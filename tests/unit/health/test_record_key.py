"""Findings of the kernel log are ordered by their keys."""

import pytest

from kubemend.agent.health.kmsg import record_key


@pytest.mark.parametrize(
    ("newest", "key", "expected"),
    [
        ("kmsg:7:5000000", "kmsg:6:4000000", True),
        ("kmsg:7:5000000", "kmsg:7:5000000", True),
        ("kmsg:7:5000000", "kmsg:8:5000001", False),
        ("kmsg:7:5000000", "kmsg:6:5900000", True),  # of another CPU
        ("kmsg:7:5000000", "kmsg:6:6100000", False),  # of a log that was restarted
        ("kmsg:7:5000000", "kmsg:8:5000000", False),  # in the same microsecond
        ("kmsg:7:5000000", "kmsg:7:9000000", False),  # of a log that was restarted
        ("kmsg:7:5000000#2", "kmsg:7:5000000", True),
        ("kmsg:7:5000000#2", "kmsg:7:5000000#2", True),
        ("kmsg:7:5000000", "kmsg:7:5000000#2", False),
        ("kmsg:7:5000000#2", "kmsg:7:5000000#10", False),
        ("", "kmsg:7:5000000", False),
        ("kmsg:7:5000000", "", False),
        ("a later format", "kmsg:7:5000000", False),
    ],
)
def test_reaches_compares_places_in_the_log(newest: str, key: str, expected: bool) -> None:
    assert record_key.reaches(newest, key) is expected


def test_of_is_a_key_that_reaches_itself() -> None:
    key = record_key.of(7, 5_000_000)
    assert record_key.reaches(key, key)
