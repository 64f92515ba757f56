import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.common.kube import timestamps


def test_fractions_of_a_second_are_left_out() -> None:
    assert timestamps.rfc3339(86400.9) == "1970-01-02T00:00:00Z"


@given(st.integers(0, 4_000_000_000))
def test_written_times_are_read_as_they_were(moment: int) -> None:
    assert timestamps.unix(timestamps.rfc3339(moment)) == moment


def test_other_zones_and_fractions_are_read() -> None:
    assert timestamps.unix("1970-01-01T02:00:01.500000+02:00") == 1


@pytest.mark.parametrize("text", ["", "yesterday", "1970-01-01T00:00:00"])
def test_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"isoformat|without a time zone"):
        timestamps.unix(text)
