"""A jump of the wall clock expires nothing: all parts that count hours have the clock that never jumps."""

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from kubemend.controller.app import controller
from kubemend.controller.settings import Settings


class BuiltError(Exception):
    """All parts of interest have been built."""


async def test_expiry_of_objects_and_events_goes_by_the_clock_that_never_jumps(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks: list[Callable[[], float]] = []

    def events(*, clock: Callable[[], float], **_: Any) -> None:
        clocks.append(clock)

    def store(*, clock: Callable[[], float], **_: Any) -> NoReturn:
        clocks.append(clock)
        raise BuiltError

    def steady() -> float:
        return 0.0

    monkeypatch.setattr(controller, "steady_clock", lambda: steady)
    monkeypatch.setattr(controller, "RoundEventRecorder", events)
    monkeypatch.setattr(controller, "RestartStore", store)
    with pytest.raises(BuiltError):
        await controller._run_parts(Settings(), stop=asyncio.Event(), api=object())  # type: ignore[arg-type]
    assert clocks == [steady, steady]
