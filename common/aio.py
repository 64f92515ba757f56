"""Run supervised asyncio tasks: named, in one TaskGroup, and never lost silently."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

import structlog

log = structlog.get_logger(__name__)

_T = TypeVar("_T")


class EternalTaskEndedError(RuntimeError):
    """A task that must run as long as the process has returned. This is an incident, never a clean exit."""


async def eternal(work: Coroutine[Any, Any, object], *, name: str) -> None:
    """Run work that must never return; raise EternalTaskEndedError when it does.

    An exception of the work passes through, so the TaskGroup around it stops everything and the process exits: a
    half-dead agent that still answers its probes would be a false green.
    """
    await work
    raise EternalTaskEndedError(f"task {name!r} ended although it should run for as long as the agent")


def spawn_eternal(group: asyncio.TaskGroup, work: Coroutine[Any, Any, object], *, name: str) -> asyncio.Task[None]:
    """Start eternal work as a named task of the group."""
    return group.create_task(eternal(work, name=name), name=name)


class Promise(Generic[_T]):
    """Hold a value that becomes known once, and for which any number of tasks may wait."""

    def __init__(self) -> None:
        self._known = asyncio.Event()
        self._value: _T | None = None

    @property
    def value(self) -> _T | None:
        """Return the value; None as long as it is unknown."""
        return self._value

    def fulfil(self, value: _T) -> None:
        """Make the value known."""
        self._value = value
        self._known.set()

    async def wait(self) -> _T:
        """Return the value as soon as it is known."""
        await self._known.wait()
        assert self._value is not None
        return self._value


class Backoff:
    """Compute exponential waits with jitter for loops that retry indefinitely.

    ``first`` and ``limit`` are seconds. Each wait doubles and is spread by ±20 % so that a fleet does not reconnect in
    step.
    """

    def __init__(self, *, first: float = 0.1, limit: float = 10.0) -> None:
        self._first = first
        self._limit = limit
        self._next = first

    def reset(self) -> None:
        """Start over after a success."""
        self._next = self._first

    def next_wait(self) -> float:
        """Return the next wait in seconds and advance."""
        wait, self._next = self._next, min(self._next * 2, self._limit)
        return wait * random.uniform(0.8, 1.2)  # noqa: S311 - jitter, not a secret

    async def wait(self) -> None:
        """Wait for the next waiting time."""
        await asyncio.sleep(self.next_wait())


async def side_by_side(*works: Coroutine[Any, Any, _T]) -> list[_T]:
    """Run works concurrently and return their results in order. A single one needs no task of its own.

    An exception is raised only after all works have ended, so the caller never continues while one of them still runs.
    """
    if len(works) == 1:
        return [await works[0]]
    tasks = [asyncio.ensure_future(work) for work in works]
    await asyncio.gather(*tasks, return_exceptions=True)
    return [task.result() for task in tasks]


async def first_of(*works: Awaitable[object]) -> None:
    """Wait until the first has ended, and cancel the others. Its exception is raised once all have ended."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


_SLICES: Final = 4


async def holds_within(timeout: float, condition: asyncio.Condition, predicate: Callable[[], bool]) -> bool:
    """Wait for a predicate under a Condition; return whether it holds within ``timeout`` seconds.

    The time counts as in ``is_done_within``.
    """
    for _ in range(_SLICES):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout / _SLICES), condition:
                await condition.wait_for(predicate)
        if predicate():
            return True
    return False


async def is_done_within(timeout: float, future: asyncio.Future[_T]) -> bool:
    """Wait for a future, which is never cancelled; return whether it is done within ``timeout`` seconds.

    The time counts in slices, because a busy event loop finds an expired timer together with what it was waiting for,
    and processes the timer first: a loop that was blocked once for longer than ``timeout`` still gets the rest of it.
    """
    for _ in range(_SLICES):
        await asyncio.wait({future}, timeout=timeout / _SLICES)
        if future.done():
            return True
    return False


async def ticks(*, period: float) -> AsyncIterator[None]:
    """Yield at once and then every ``period`` seconds."""
    while True:
        yield
        await asyncio.sleep(period)
