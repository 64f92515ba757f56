"""Counting over a sliding window."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kubemend.agent.health.gpu.record import PARTS, Window

LENGTH = 600.0

samples = st.lists(st.tuples(st.floats(0.1, 200), st.integers(0, 5)), min_size=1, max_size=60)


def counted(steps: list[tuple[float, int]]) -> tuple[Window, list[tuple[float, int]]]:
    window, now, at = Window(length=LENGTH), 0.0, list[tuple[float, int]]()
    for step, hits in steps:
        now += step
        window = window.with_sample(now=now, hits=hits)
        at.append((now, hits))
    return window, at


@settings(deadline=None)
@given(steps=samples)
def test_window_keeps_hits_of_about_its_length(steps: list[tuple[float, int]]) -> None:
    window, at = counted(steps)
    now = at[-1][0]

    surely = sum(hits for when, hits in at if when > now - LENGTH * (PARTS - 1) / PARTS)
    at_most = sum(hits for when, hits in at if when > now - LENGTH)
    assert surely <= window.hits <= at_most


@settings(deadline=None)
@given(steps=samples)
def test_window_stays_small(steps: list[tuple[float, int]]) -> None:
    window, _ = counted(steps)

    assert len(window.parts) <= PARTS


def test_few_polls_at_its_ends_do_not_fill_it() -> None:
    window, _ = counted([(1, 0), (500, 0), (95, 0)])

    assert not window.full(now=596.0)


def test_regular_polls_fill_it_and_a_long_gap_empties_it() -> None:
    window, _ = counted([(60, 0)] * 10)
    later = window.with_sample(now=1300.0, hits=0)

    assert window.full(now=600.0)
    assert not later.full(now=1300.0)


def test_share_is_per_poll() -> None:
    window, _ = counted([(5, 1), (5, 0), (5, 1), (5, 0)])

    assert window.share == 0.5
    assert Window(length=LENGTH).share == 0.0
