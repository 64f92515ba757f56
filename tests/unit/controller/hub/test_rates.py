"""The token bucket."""

from hypothesis import given
from hypothesis import strategies as st

from kubemend.controller.hub.limits import Bucket, Rate


def test_burst_is_followed_by_the_rate() -> None:
    bucket = Bucket(Rate(per_second=2, burst=3), now=10.0)
    assert [bucket.take(1, now=10.0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(1, now=10.5) for _ in range(2)] == [True, False]


def test_higher_cost_takes_more() -> None:
    bucket = Bucket(Rate(per_second=1, burst=10), now=0.0)
    assert [bucket.take(cost, now=0.0) for cost in (8, 4, 2)] == [True, False, True]


@given(st.lists(st.floats(min_value=0, max_value=10), max_size=200))
def test_bucket_never_exceeds_burst_and_growth(pauses: list[float]) -> None:
    rate = Rate(per_second=3, burst=5)
    bucket = Bucket(rate, now=0.0)
    now, taken = 0.0, 0
    for pause in pauses:
        now += pause
        taken += bucket.take(1, now=now)
        assert taken <= rate.burst + now * rate.per_second + 1e-6
