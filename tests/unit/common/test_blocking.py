"""Calls that hang cost one thread, and nothing blocks on it."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from kubemend.common import blocking
from kubemend.common.blocking import DedicatedThread


@pytest.fixture
def thread() -> Iterator[DedicatedThread]:
    made = DedicatedThread("under test")
    yield made
    made.close()


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    """The event that a hanging call waits for; it is set at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


async def test_calls_are_made_one_after_the_other_in_one_thread(thread: DedicatedThread) -> None:
    first, second = [await thread.call(threading.get_ident, timeout=60) for _ in range(2)]
    assert first == second != threading.get_ident()


async def test_what_a_call_raises_is_raised(thread: DedicatedThread) -> None:
    with pytest.raises(ZeroDivisionError):
        await thread.call(lambda: 1 // 0, timeout=60)
    assert await thread.call(lambda: 1, timeout=60) == 1


async def test_hanging_call_times_out_and_further_ones_fail_at_once(
    thread: DedicatedThread, stuck: threading.Event
) -> None:
    before = set(threading.enumerate())  # those of earlier tests may end during this one
    with pytest.raises(TimeoutError):
        await thread.call(stuck.wait, timeout=0.01)
    for _ in range(10):
        with pytest.raises(TimeoutError, match="has not returned"):
            await thread.call(lambda: None, timeout=60)
    assert len(set(threading.enumerate()) - before) == 1


async def test_a_call_for_which_no_thread_could_start_leaves_room_for_the_next(
    thread: DedicatedThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OSError, match="can't start new thread"):
            await thread.call(lambda: None, timeout=60)
    assert await thread.call(lambda: "next", timeout=60) == "next"


async def test_a_call_that_comes_back_late_makes_room_for_the_next(
    thread: DedicatedThread, stuck: threading.Event
) -> None:
    with pytest.raises(TimeoutError):
        await thread.call(stuck.wait, timeout=0.01)
    stuck.set()
    async with asyncio.timeout(60):
        while True:
            try:
                assert await thread.call(lambda: "next", timeout=60) == "next"
            except TimeoutError:
                await asyncio.sleep(0.001)  # it is on its way
            else:
                return


async def test_waiting_caller_can_be_cancelled(thread: DedicatedThread, stuck: threading.Event) -> None:
    waiting = asyncio.create_task(thread.call(stuck.wait, timeout=60))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_the_last_job_is_done_when_the_thread_has_come_back(stuck: threading.Event) -> None:
    thread, order, ended = DedicatedThread("closing"), list[str](), threading.Event()

    def hang() -> None:
        stuck.wait()
        order.append("back")

    def last() -> None:
        order.append("last")
        ended.set()

    with pytest.raises(TimeoutError):
        await thread.call(hang, timeout=0.01)
    thread.close(last=last)
    assert order == []
    stuck.set()
    assert await asyncio.to_thread(ended.wait, 60)
    assert order == ["back", "last"]


def test_loop_that_has_ended_is_no_error(stuck: threading.Event) -> None:
    thread, ended = DedicatedThread("orphaned"), threading.Event()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await thread.call(stuck.wait, timeout=0.01)

    asyncio.run(give_up())
    thread.close(last=ended.set)
    stuck.set()
    assert ended.wait(60)


async def test_late_error_is_logged(
    thread: DedicatedThread, stuck: threading.Event, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail_late() -> None:
        stuck.wait()
        raise ZeroDivisionError

    with pytest.raises(TimeoutError):
        await thread.call(fail_late, timeout=0.01)
    stuck.set()
    said = ""
    async with asyncio.timeout(60):
        while "blocking.late_failure" not in said:
            await asyncio.sleep(0.001)
            said += capsys.readouterr().out
    assert "ZeroDivisionError" in said


async def test_a_thread_for_one_call_ends_with_it() -> None:
    before = set(threading.enumerate())
    assert await blocking.once(lambda: threading.current_thread().name, name="one call") == "one call"
    for left in set(threading.enumerate()) - before:
        await asyncio.to_thread(left.join, 60)
        assert not left.is_alive()
