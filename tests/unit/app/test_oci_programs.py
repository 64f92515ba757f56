"""The OCI runtimes are read at each connection to the container runtime, and what was read last is kept."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import structlog

from kubemend.agent.actuator.hold import oci_runtimes
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


@pytest.fixture(autouse=True)
def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was noted, and nothing of other tests."""
    found: list[str] = []
    monkeypatch.setattr(oci_runtimes, "_named", found)
    return found


async def read(*answers: Named | None) -> None:
    runtime = Answers(*answers)
    programs = OciPrograms(runtime)
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as tasks:
        work = aio.spawn_eternal(tasks, programs.run(), name="programs")
        await runtime.all_read.wait()
        await programs.asked()
        work.cancel()


async def test_latest_answer_counts(noted: list[str]) -> None:
    await read(Named(("/opt/1/crun",)), Named(("/opt/2/crun",)))
    assert noted == ["/opt/2/crun"]


async def test_failed_call_keeps_the_last_answer_and_blocks_nothing(noted: list[str]) -> None:
    await read(Named(("/opt/1/crun",)), None)
    assert noted == ["/opt/1/crun"]
    await read(None)


async def test_a_problem_is_logged_once_and_the_usable_rest_counts(noted: list[str]) -> None:
    with structlog.testing.capture_logs() as logs:
        await read(Named(("/opt/crun",), ODD), Named(("/opt/crun",), ODD))
    assert noted == ["/opt/crun"]
    assert [(each["event"], each["reason"], each["what"]) for each in logs] == [
        ("oci_programs.not_used", "NoProgram", ODD.what)
    ]
