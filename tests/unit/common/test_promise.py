"""A promise has one value, for all that wait for it."""

import asyncio

from kubemend.common import aio


async def test_promise_gives_its_value_to_tasks_that_waited_and_to_later_ones() -> None:
    promise: aio.Promise[str] = aio.Promise()
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(promise.wait()) for _ in range(2)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        promise.fulfil("found")
    assert [task.result() for task in waiting] == ["found", "found"]
    assert [promise.value, await promise.wait()] == ["found", "found"]


async def test_cancelled_wait_leaves_the_promise_to_the_others() -> None:
    promise: aio.Promise[str] = aio.Promise()
    cancelled = asyncio.ensure_future(promise.wait())
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    promise.fulfil("found")
    assert await promise.wait() == "found"
