"""Calls in flight, and the announcement of hanging ones."""

import math

import pytest

from kubemend.agent.sources.nvml.calls import Calls


class Log:
    """The announcements, in order."""

    def __init__(self) -> None:
        self.announced: list[str | None] = []
        self.returns = 0

    def came_back(self) -> None:
        self.returns += 1

    def calls(self, *, deadline: float) -> Calls:
        return Calls(deadline=deadline, announce=self.announced.append, came_back=self.came_back)


def test_call_past_its_deadline_is_announced_until_it_returns() -> None:
    log = Log()
    calls = log.calls(deadline=0.0)

    with calls.during("nvmlInit"):
        calls.check()
        calls.check()

    assert log.announced == ["nvmlInit", "nvmlInit", None]
    assert log.returns == 1


def test_call_within_its_deadline_is_not_announced() -> None:
    log = Log()
    calls = log.calls(deadline=3600.0)

    with calls.during("nvmlInit"):
        calls.check()
        assert 0 < calls.until_due() <= 3600

    assert log.announced == [None]
    assert log.returns == 0


def test_wait_allowed_by_arguments_is_not_a_hang() -> None:
    log = Log()
    calls = log.calls(deadline=0.0)

    with calls.during("nvmlEventSetWait", wait=3600.0):
        calls.check()

    assert log.announced == [None]


def test_no_call_in_flight_is_never_due() -> None:
    assert Log().calls(deadline=1.0).until_due() == math.inf


def test_call_that_raises_is_over() -> None:
    log = Log()
    calls = log.calls(deadline=0.0)

    with pytest.raises(ZeroDivisionError), calls.during("nvmlInit"):
        _ = 1 / 0
    calls.check()

    assert log.announced == [None]
