"""Waits with a timeout, in an event loop that is blocked for longer than it."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from kubemend.common import aio

BRIEF = 0.5
SECONDS = 60.0


class Fact:
    """Something that becomes known, and two ways to wait for it."""

    def __init__(self) -> None:
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._condition = asyncio.Condition()

    async def is_done(self, timeout: float) -> bool:
        return await aio.is_done_within(timeout, self._future)

    async def holds(self, timeout: float) -> bool:
        return await aio.holds_within(timeout, self._condition, self._future.done)

    async def becomes_known(self) -> None:
        async with self._condition:
            self._future.set_result(None)
            self._condition.notify_all()

    def ways(self) -> list[Callable[[float], Awaitable[bool]]]:
        return [self.is_done, self.holds]


@pytest.fixture
async def fact() -> AsyncIterator[Fact]:
    async with asyncio.timeout(SECONDS):
        yield Fact()


async def test_known_fact_is_not_waited_for(fact: Fact) -> None:
    await fact.becomes_known()
    assert [await wait(0.0) for wait in fact.ways()] == [True, True]


async def test_fact_that_stays_unknown_is_waited_for_until_the_timeout(fact: Fact) -> None:
    assert [await wait(0.01) for wait in fact.ways()] == [False, False]
    await fact.becomes_known()
    assert [await wait(0.0) for wait in fact.ways()] == [True, True], "the future was not cancelled"


async def test_fact_that_a_blocked_loop_learns_late_counts(fact: Fact) -> None:
    waits = [asyncio.ensure_future(wait(BRIEF)) for wait in fact.ways()]
    await asyncio.sleep(0)
    time.sleep(1.2 * BRIEF)  # noqa: ASYNC251 - blocks the loop
    for _ in range(5):
        await asyncio.sleep(0)
    await fact.becomes_known()
    assert await asyncio.gather(*waits) == [True, True]


async def test_first_of_ends_with_the_first_and_cancels_the_others() -> None:
    other = asyncio.Event()

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            other.set()

    await aio.first_of(asyncio.sleep(0), waits())
    assert other.is_set()


async def test_first_of_raises_the_exception_of_the_first() -> None:
    async def fails() -> None:
        raise OSError("lost")

    with pytest.raises(OSError, match="lost"):
        await aio.first_of(fails(), asyncio.Event().wait())
