"""Errors about one object are contained; those that concern everything are not."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import structlog

from kubemend.common import aio, contained
from kubemend.common.contained import Part


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sequence[Any]]:
    """The log, starting with an unused minute."""
    monkeypatch.setattr(contained, "_minute", contained._Minute())
    with structlog.testing.capture_logs() as lines:
        yield lines


def broken() -> None:
    raise IndexError("tuple index out of range")


def test_error_is_counted_and_logged_and_work_continues(
    reported: Sequence[Any],
) -> None:
    before = contained.count([Part.RESTART])
    done = []
    for name in ("bad", "good"):
        with contained.within(Part.RESTART, f"default/{name}") as work:
            if name == "bad":
                broken()
            done.append(name)
        assert work.failed is (name == "bad")
    assert done == ["good"]
    assert contained.count([Part.RESTART]) == before + 1
    (line,) = reported
    assert (line["event"], line["log_level"], line["part"]) == ("work.failed", "error", "restart")
    assert line["about"] == "default/bad"
    assert "common/test_contained.py:" in line["where"]
    assert line["where"].endswith(" broken")
    assert "IndexError: tuple index out of range" in line["exception"]


@pytest.mark.parametrize(
    "error",
    [
        asyncio.CancelledError(),
        KeyboardInterrupt(),
        SystemExit(1),
        MemoryError(),
        aio.EternalTaskEndedError("a part"),
        ExceptionGroup("several", [ValueError(), MemoryError()]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_error_that_concerns_everything_passes(error: BaseException) -> None:
    before = contained.count()
    with pytest.raises(type(error)), contained.within(Part.RESTART, "a pod"):
        raise error
    assert contained.count() == before


def test_expected_error_passes() -> None:
    with pytest.raises(KeyError), contained.within(Part.REPLAY, "a pod", passing=(LookupError,)):
        raise KeyError("a")


def test_several_errors_of_one_thing_are_one() -> None:
    before = contained.count([Part.FAULT])
    with contained.within(Part.FAULT, "a pod"):
        raise ExceptionGroup("several", [ValueError(), KeyError()])
    assert contained.count([Part.FAULT]) == before + 1


def test_many_failures_do_not_flood_the_log(reported: Sequence[Any]) -> None:
    before = contained.count([Part.CONDITION])
    for _ in range(1000):
        with contained.within(Part.CONDITION, "a" * 1_000_000):
            raise ValueError("b" * 10_000)
    assert contained.count([Part.CONDITION]) == before + 1000
    assert len(reported) == 60
    assert all(len(line["about"]) <= 256 and len(line["exception"]) <= 8192 for line in reported)


async def test_concurrent_works_have_ended_when_an_error_is_raised() -> None:
    may_end, ended = asyncio.Event(), []

    async def fails() -> None:
        may_end.set()
        raise ZeroDivisionError

    async def works() -> None:
        await may_end.wait()
        await asyncio.sleep(0)
        ended.append(True)

    with pytest.raises(ZeroDivisionError):
        await aio.side_by_side(fails(), works())
    assert ended == [True]
