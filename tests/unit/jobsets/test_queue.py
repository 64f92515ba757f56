"""The work queue: one reconcile of a key at a time, no lost change, and retries after errors."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from kubemend.common import aio, contained
from kubemend.common.kube import errors
from kubemend.controller.jobsets.queue import Intervals, Queue
from tests import eventually

AT_ONCE = Intervals(settle=0.0, pause=0.0)


class FakeReconciler:
    """A reconcile that can be blocked; ``fail`` are the errors of the next calls, ``again`` is its result."""

    def __init__(
        self, *, intervals: Intervals = AT_ONCE, parallel: int = 4, rests: frozenset[str] = frozenset()
    ) -> None:
        self.keys: list[str] = []
        self.at_it: set[str] = set()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.fail: list[Exception] = []
        self.again: float | None = None
        self.queue = Queue(
            self.reconcile,
            intervals=intervals,
            backoff=lambda: aio.Backoff(first=0.001, limit=0.01),
            parallel=parallel,
            rest=lambda key: 600.0 if key in rests else 0.0,
        )

    async def reconcile(self, key: str) -> float | None:
        assert key not in self.at_it
        self.at_it.add(key)
        self.keys.append(key)
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

    async def until_reconciled(self, count: int) -> None:
        await eventually.true(lambda: len(self.keys) >= count and not self.at_it)


async def test_simultaneous_changes_are_one_reconcile() -> None:
    reconciler = FakeReconciler(intervals=Intervals(settle=0.05, pause=0.0))
    async with reconciler.running():
        for _ in range(100):
            reconciler.queue.add("a")
        await reconciler.until_reconciled(1)
        reconciler.queue.add("b")
        await reconciler.until_reconciled(2)
        assert reconciler.keys == ["a", "b"]


async def test_slow_key_rests_without_blocking_others() -> None:
    reconciler = FakeReconciler(rests=frozenset({"large"}))
    async with reconciler.running():
        reconciler.queue.add("large")
        await reconciler.until_reconciled(1)
        reconciler.queue.add("large")
        reconciler.queue.add("b")
        await reconciler.until_reconciled(2)
        assert reconciler.keys == ["large", "b"]
        assert not reconciler.queue.is_settled("large")


async def test_refused_key_is_not_retried_at_each_change() -> None:
    reconciler = FakeReconciler(intervals=Intervals(settle=0.0, pause=0.0, refused=600.0))
    reconciler.fail = [errors.ForbiddenError("exceeded quota")]
    async with reconciler.running():
        reconciler.queue.add("a")
        await reconciler.until_reconciled(1)
        await eventually.true(lambda: not reconciler.at_it)
        reconciler.queue.add("a")
        reconciler.queue.add("b")
        await reconciler.until_reconciled(2)
        assert reconciler.keys == ["a", "b"]


async def test_change_during_reconcile_is_reconciled_afterwards() -> None:
    reconciler = FakeReconciler()
    reconciler.go_on.clear()
    async with reconciler.running():
        reconciler.queue.add("a")
        await eventually.true(lambda: reconciler.at_it == {"a"})
        for _ in range(3):
            reconciler.queue.add("a")
        assert reconciler.queue.depth == 1
        reconciler.go_on.set()
        await reconciler.until_reconciled(2)
        reconciler.queue.add("b")
        await reconciler.until_reconciled(3)
        assert reconciler.keys == ["a", "a", "b"]
        await eventually.true(lambda: reconciler.queue.depth == 0)


async def test_key_does_not_wait_for_another() -> None:
    reconciler = FakeReconciler(parallel=2)
    reconciler.go_on.clear()
    async with reconciler.running():
        reconciler.queue.add("a")
        reconciler.queue.add("b")
        await eventually.true(lambda: reconciler.at_it == {"a", "b"})
        reconciler.go_on.set()
        await reconciler.until_reconciled(2)


@pytest.mark.parametrize("error", [errors.ConflictError("changed"), errors.ApiUnavailableError("away")])
async def test_error_is_retried_until_success(error: Exception) -> None:
    reconciler = FakeReconciler()
    reconciler.fail = [error] * 5
    before = contained.count()
    async with reconciler.running():
        reconciler.queue.add("a")
        await reconciler.until_reconciled(6)
        assert contained.count() == before


async def test_internal_error_is_counted_and_contained() -> None:
    reconciler = FakeReconciler()
    reconciler.fail = [ZeroDivisionError()]
    before = contained.count([contained.Part.JOBSET])
    async with reconciler.running():
        reconciler.queue.add("a")
        await reconciler.until_reconciled(2)
        assert contained.count([contained.Part.JOBSET]) == before + 1


async def test_reconcile_can_schedule_the_next() -> None:
    reconciler = FakeReconciler()
    reconciler.again = 0.01
    async with reconciler.running():
        reconciler.queue.add("a")
        await reconciler.until_reconciled(3)


async def test_forgotten_key_is_not_reconciled() -> None:
    reconciler = FakeReconciler(intervals=Intervals(settle=0.05, pause=0.0))
    reconciler.again = 0.05
    async with reconciler.running():
        reconciler.queue.add("a")
        reconciler.queue.add("b")
        reconciler.queue.forget("a")
        await reconciler.until_reconciled(1)
        reconciler.queue.forget("b")
        assert reconciler.queue.depth == 0
        reconciler.queue.add("c")
        await reconciler.until_reconciled(2)
        assert reconciler.keys == ["b", "c"]


async def test_key_forgotten_during_reconcile_does_not_return() -> None:
    reconciler = FakeReconciler()
    reconciler.again = 0.0
    reconciler.go_on.clear()
    async with reconciler.running():
        reconciler.queue.add("a")
        await eventually.true(lambda: reconciler.at_it == {"a"})
        reconciler.queue.add("a")
        reconciler.queue.forget("a")
        reconciler.go_on.set()
        reconciler.again = None
        reconciler.queue.add("b")
        await reconciler.until_reconciled(2)
        assert reconciler.keys == ["a", "b"]


async def test_new_term_begins_empty() -> None:
    reconciler = FakeReconciler()
    reconciler.go_on.clear()
    async with reconciler.running():
        reconciler.queue.add("a")
        await eventually.true(lambda: reconciler.at_it == {"a"})
        reconciler.queue.add("a")
    assert reconciler.queue.depth == 0
    reconciler.go_on.set()
    async with reconciler.running():
        reconciler.queue.add("b")
        await reconciler.until_reconciled(2)
    assert reconciler.keys == ["a", "b"]
