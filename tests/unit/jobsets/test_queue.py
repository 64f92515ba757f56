"""The work queue: one look at a key at a time, nothing lost, and errors tried again."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from common import aio, contained
from common.kube import errors
from controller.jobsets.queue import Pace, Queue
from tests import eventually

AT_ONCE = Pace(settle=0.0, pause=0.0)


class Looker:
    """Looks, and can be kept at it; ``fail`` are the errors of the next looks, ``again`` what it returns."""

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


async def test_what_comes_together_is_one_look() -> None:
    looker = Looker(pace=Pace(settle=0.05, pause=0.0))
    async with looker.running():
        for _ in range(100):
            looker.queue.add("a")
        await looker.until_looks(1)
        looker.queue.add("b")
        await looker.until_looks(2)
        assert looker.looks == ["a", "b"]


async def test_what_takes_long_to_look_at_rests_and_nothing_waits_for_it() -> None:
    looker = Looker(rests=frozenset({"large"}))
    async with looker.running():
        looker.queue.add("large")
        await looker.until_looks(1)
        looker.queue.add("large")
        looker.queue.add("b")
        await looker.until_looks(2)
        assert looker.looks == ["large", "b"]
        assert not looker.queue.rests("large")


async def test_what_was_refused_is_not_asked_for_with_all_that_happens() -> None:
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


async def test_what_comes_during_a_look_is_looked_at_after_it() -> None:
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


async def test_one_key_waits_for_nobody_elses_look() -> None:
    looker = Looker(parallel=2)
    looker.go_on.clear()
    async with looker.running():
        looker.queue.add("a")
        looker.queue.add("b")
        await eventually.true(lambda: looker.at_it == {"a", "b"})
        looker.go_on.set()
        await looker.until_looks(2)


@pytest.mark.parametrize("error", [errors.ConflictError("changed"), errors.ApiUnavailableError("away")])
async def test_an_error_is_tried_again_until_it_works(error: Exception) -> None:
    looker = Looker()
    looker.fail = [error] * 5
    before = contained.count()
    async with looker.running():
        looker.queue.add("a")
        await looker.until_looks(6)
        assert contained.count() == before


async def test_a_defect_of_ours_is_counted_and_ends_nothing() -> None:
    looker = Looker()
    looker.fail = [ZeroDivisionError()]
    before = contained.count([contained.Part.JOBSET])
    async with looker.running():
        looker.queue.add("a")
        await looker.until_looks(2)
        assert contained.count([contained.Part.JOBSET]) == before + 1


async def test_a_look_can_ask_for_the_next_one() -> None:
    looker = Looker()
    looker.again = 0.01
    async with looker.running():
        looker.queue.add("a")
        await looker.until_looks(3)


async def test_what_is_forgotten_is_not_looked_at() -> None:
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


async def test_one_that_is_forgotten_while_it_is_looked_at_does_not_come_back() -> None:
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


async def test_a_new_term_begins_with_nothing() -> None:
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
