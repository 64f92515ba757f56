"""The OCI runtimes are read at each connection to the container runtime, and the last answer is kept."""

import asyncio
from collections.abc import AsyncIterator

import structlog

from kubemend.agent.actuator.hold.oci_runtimes import OciRuntimes
from kubemend.agent.app.oci_programs import OciPrograms
from kubemend.agent.clients.cri.errors import RuntimeUnavailable
from kubemend.agent.restart.oci_programs import Named, Problem, Reason
from kubemend.common import aio

SECONDS = 20.0
ODD = Problem(Reason.NO_PROGRAM, "'x/y' is neither")


class Answers:
    """A runtime that is connected to once for each answer; None is a failed call."""

    def __init__(self, *answers: Named | None) -> None:
        self._answers = iter(answers)
        self._count = len(answers)
        self.all_read = asyncio.Event()

    async def connections(self) -> AsyncIterator[None]:
        for _ in range(self._count):
            yield
        self.all_read.set()
        await asyncio.Event().wait()

    async def named_programs(self) -> Named:
        answer = next(self._answers)
        if answer is None:
            raise RuntimeUnavailable("Status: no answer")
        return answer


async def read(*answers: Named | None) -> tuple[str, ...]:
    """Return the programs that are used after these answers."""
    runtime, found = Answers(*answers), OciRuntimes()
    programs = OciPrograms(runtime, found)
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as tasks:
        work = aio.spawn_eternal(tasks, programs.run(), name="programs")
        await runtime.all_read.wait()
        await programs.asked()
        work.cancel()
    return found.named


async def test_latest_answer_counts() -> None:
    assert await read(Named(("/opt/1/crun",)), Named(("/opt/2/crun",))) == ("/opt/2/crun",)


async def test_failed_call_keeps_the_last_answer_and_blocks_nothing() -> None:
    assert await read(Named(("/opt/1/crun",)), None) == ("/opt/1/crun",)
    assert await read(None) == ()


async def test_a_problem_is_logged_once_and_the_usable_rest_counts() -> None:
    with structlog.testing.capture_logs() as logs:
        assert await read(Named(("/opt/crun",), ODD), Named(("/opt/crun",), ODD)) == ("/opt/crun",)
    assert [(each["event"], each["reason"], each["what"]) for each in logs] == [
        ("oci_programs.not_used", "NoProgram", ODD.what)
    ]
