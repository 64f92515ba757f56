"""How a worker may end: late, never, by a crash or a kill. The worker is another program that behaves like that."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from kubemend.agent.model.devices import DeviceId
from kubemend.agent.prove import measurements, workers
from kubemend.agent.prove.measurements import Hanging
from kubemend.common import process
from tests import eventually

GPU = DeviceId("GPU-1")
AMPLE = 60.0
SLOW_END = """
sys.stdin.read()
threading.Event().wait({seconds})  # as a driver that frees a hundred GB
"""
HANGS = """
print('{"type": "Hanging", "call": "cuInit", "seconds": 1.0}', flush=True)
signal.pause()
"""
KILLED = """
print("starting", file=sys.stderr, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
IN_THE_MIDDLE = """
print('{"type": "Fini', end="", flush=True)
sys.exit(1)
"""

Started = Callable[[str], AbstractAsyncContextManager[workers.Worker]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Start a program in place of the worker; it goes on once it has received the request."""

    @contextlib.asynccontextmanager
    async def running(program: str) -> AsyncIterator[workers.Worker]:
        def command(*_: Any) -> list[str]:
            return [sys.executable, "-c", f"import os, signal, sys, threading\nsys.stdin.readline()\n{program}"]

        monkeypatch.setattr(process, "helper_command", command)
        made = workers.Worker(measurements.ONE_GPU, [GPU], deadline=AMPLE)
        try:
            yield made
        finally:
            made.close()
            if made._child.alive:
                os.kill(made._child.pid, signal.SIGKILL)
            await made._child.ended()

    return running


async def test_worker_that_is_cut_off_has_ended_when_the_restart_goes_on(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "STOP_SECONDS", AMPLE)
    async with started(SLOW_END.format(seconds=0.3)) as made:
        measured = await made.measured(timeout=0.01, stop=0.0)
        assert measured.ended == "it did not finish within 0.01 s"
        assert not made._child.alive, "it still has the GPU's memory"


async def test_worker_that_is_cut_off_and_does_not_end_is_left_behind(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "STOP_SECONDS", 0.1)
    async with started(SLOW_END.format(seconds=3600)) as made:
        await made.measured(timeout=0.01, stop=0.0)
        assert made._child.alive


async def test_worker_that_hangs_is_left_behind_at_once(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "STOP_SECONDS", 3600.0)
    async with started(HANGS) as made:
        measured = await made.measured(timeout=AMPLE, stop=0.0)
        assert measured.hanging == Hanging("cuInit", 1.0)
        assert made._child.alive


async def test_worker_that_is_killed_has_said_its_last_words(started: Started) -> None:
    async with started(KILLED) as made:
        measured = await made.measured(timeout=AMPLE)
    assert measured.ended == "its process ended by signal 9 (starting)"
    assert not measured.finished


async def test_message_that_was_cut_off_does_not_count(started: Started) -> None:
    async with started(IN_THE_MIDDLE) as made:
        measured = await made.measured(timeout=AMPLE)
    assert measured.ended == "its process ended with status 1 (no output)"
    assert not measured.finished


async def test_agent_that_was_stopped_gives_the_worker_the_rest_of_its_time(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(f"sys.stdin.readline()\n{KILLED}") as made:
        work = asyncio.create_task(made.measured(timeout=AMPLE))
        await eventually.true(lambda: made._child.stdout._waiter is not None)  # type: ignore[attr-defined]
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "time", lambda now=loop.time: now() + 10 * AMPLE)
        await asyncio.sleep(0)
        made._child.send(b"die\n")
        assert (await work).ended == "its process ended by signal 9 (starting)"
