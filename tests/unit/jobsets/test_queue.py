"""The work queue: one reconcile of a key at a time, no lost change, and retries after errors."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from kubemend.common import aio, contained
from kubemend.common.kube import errors
from kubemend.controller.jobsets.queue import Pace, Queue
from tests import eventually

AT_ONCE = Pace(settle=0.0, pause=0.0)


class Looker:
    """A reconcile that can be blocked; ``fail`` are the errors of the next calls, ``again`` is its result."""

    def __init__(self, *, pace: Pace = AT_ONCE, parallel: int = 4, rests: frozenset[str] = frozenset()) -> None:
        self.looks: list[str] = []
        self.at_it: set[str] = set()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.fail: list[Exception] = []
        self.again: float | None = None
        self.queue = Queue(
            self.look,
            pace=pace,
            backoff=lambda: aio.Backoff(first=0.001, limit=0.01),
            parallel=parallel,
            rest=lambda key: 600.0 if key in rests else 0.0,
        )

    async def look(self, key: str) -> float | None:
        assert key not in self.at_it
        self.at_it.add(key)
        self.looks.append(key)
        try:
            await self.go_on.wait()
            if self.fail:
                raise self.fail.pop(0)
            return self.again
        finally:
            self.at_it.remove(key)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.queue.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until_looks(self, count: int) -> None:
        await eventually.true(lambda: len(self.looks) >= count and not self.at_it)


async def test_simultaneous_changes_are_one_reconcile() -> None:
    looker = Looker(pace=Pace(settle=0.05, pause=0.0))
    async with looker.running():
        for _ in range(100):
            looker.queue.add("a")
        await looker.until_looks(1)
        looker.queue.add("b")
        await looker.until_looks(2)
        assert looker.looks == ["a", "b"]


async def test_slow_key_rests_without_blocking_others() -> None:
    looker = Looker(rests=frozenset({"large"}))
    async with looker.running():
        looker.queue.add("large")
        await looker.until_looks(1)
        looker.queue.add("large")
        looker.queue.add("b")
        await looker.until_looks(2)
        assert looker.looks == ["large", "b"]
        assert not looker.queue.rests("large")


async def test_refused_key_is_not_retried_at_each_change() -> None:
    looker = Looker(pace=Pace(settle=0.0, pause=0.0, refused=600.0))
    looker.fail = [errors.ForbiddenError("exceeded quota")]
    async with looker.running():
        looker.queue.add("a")
        await looker.until_looks(1)
        await eventually.true(lambda: not looker.at_it)
        looker.queue.add("a")
        looker.queue.add("b")
        await looker.until_looks(2)
        assert looker.looks == ["a", "b"]


async def test_change_during_reconcile_is_reconciled_afterwards() -> None:
    looker = Looker()
    looker.go_on.clear()
    async with looker.running():
        looker.queue.add("a")
        await eventually.true(lambda: looker.at_it == {"a"})
        for _ in range(3):
            looker.queue.add("a")
        assert looker.queue.depth == 1
        looker.go_on.set()
        await looker.until_looks(2)
        looker.queue.add("b")
        await looker.until_looks(3)
        assert looker.looks == ["a", "a", "b"]
        await eventually.true(lambda: looker.queue.depth == 0)


async def test_key_does_not_wait_for_another() -> None:
    looker = Looker(parallel=2)
    looker.go_on.clear()
    async with looker.running():
        looker.queue.add("a")
        looker.queue.add("b")
        await eventually.true(lambda: looker.at_it == {"a", "b"})
        looker.go_on.set()
        await looker.until_looks(2)


@pytest.mark.parametrize("error", [errors.ConflictError("changed"), errors.ApiUnavailableError("away")])
async def test_error_is_retried_until_success(error: Exception) -> None:
    looker = Looker()
    looker.fail = [error] * 5
    before = contained.count()
    async with looker.running():
        looker.queue.add("a")
        await looker.until_looks(6)
        assert contained.count() == before


async def test_internal_error_is_counted_and_contained() -> None:
    looker = Looker()
    looker.fail = [ZeroDivisionError()]
    before = contained.count([contained.Part.JOBSET])
    async with looker.running():
        looker.queue.add("a")
        await looker.until_looks(2)
        assert contained.count([contained.Part.JOBSET]) == before + 1


async def test_reconcile_can_schedule_the_next() -> None:
    looker = Looker()
    looker.again = 0.01
    async with looker.running():
        looker.queue.add("a")
        await looker.until_looks(3)


async def test_forgotten_key_is_not_reconciled() -> None:
    looker = Looker(pace=Pace(settle=0.05, pause=0.0))
    looker.again = 0.05
    async with looker.running():
        looker.queue.add("a")
        looker.queue.add("b")
        looker.queue.forget("a")
        await looker.until_looks(1)
        looker.queue.forget("b")
        assert looker.queue.depth == 0
        looker.queue.add("c")
        await looker.until_looks(2)
        assert looker.looks == ["b", "c"]


async def test_key_forgotten_during_reconcile_does_not_return() -> None:
    looker = Looker()
    looker.again = 0.0
    looker.go_on.clear()
    async with looker.running():
        looker.queue.add("a")
        await eventually.true(lambda: looker.at_it == {"a"})
        looker.queue.add("a")
        looker.queue.forget("a")
        looker.go_on.set()
        looker.again = None
        looker.queue.add("b")
        await looker.until_looks(2)
        assert looker.looks == ["a", "b"]


async def test_new_term_begins_empty() -> None:
    looker = Looker()
    looker.go_on.clear()
    async with looker.running():
        looker.queue.add("a")
        await eventually.true(lambda: looker.at_it == {"a"})
        looker.queue.add("a")
    assert looker.queue.depth == 0
    looker.go_on.set()
    async with looker.running():
        looker.queue.add("b")
        await looker.until_looks(2)
    assert looker.looks == ["a", "b"]
