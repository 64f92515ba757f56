"""Calls in flight, and what is said about the ones that hang."""

import math

import pytest

from agent.sources.nvml.calls import Calls


class Log:
    """What was announced, in order."""

    def __init__(self) -> None:
        self.said: list[str | None] = []
        self.returns = 0

    def came_back(self) -> None:
        self.returns += 1

    def calls(self, *, deadline: float) -> Calls:
        return Calls(deadline=deadline, announce=self.said.append, came_back=self.came_back)


def test_a_call_past_its_deadline_is_announced_until_it_comes_back() -> None:
    log = Log()
    calls = log.calls(deadline=0.0)

    with calls.during("nvmlInit"):
        calls.check()
        calls.check()

    assert log.said == ["nvmlInit", "nvmlInit", None]
    assert log.returns == 1


def test_a_call_within_its_deadline_is_not_mentioned() -> None:
    log = Log()
    calls = log.calls(deadline=3600.0)

    with calls.during("nvmlInit"):
        calls.check()
        assert 0 < calls.until_due() <= 3600

    assert log.said == [None]
    assert log.returns == 0


def test_a_wait_that_its_own_arguments_allow_is_no_hang() -> None:
    log = Log()
    calls = log.calls(deadline=0.0)

    with calls.during("nvmlEventSetWait", wait=3600.0):
        calls.check()

    assert log.said == [None]


def test_nothing_in_flight_is_due_never() -> None:
    assert Log().calls(deadline=1.0).until_due() == math.inf


def test_a_call_that_raises_is_over() -> None:
    log = Log()
    calls = log.calls(deadline=0.0)

    with pytest.raises(ZeroDivisionError), calls.during("nvmlInit"):
        _ = 1 / 0
    calls.check()

    assert log.said == [None]
