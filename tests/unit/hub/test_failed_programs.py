"""A launcher that holds its program's failure obeys the hub's answer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import pytest

from kubemend.agent.clients.cri.convert import ContainerStatus
from kubemend.agent.hub.failed_programs import FailedPrograms
from kubemend.agent.hub.members import Failure
from kubemend.agent.model.workloads import ContainerState, PodView
from kubemend.agent.restart.process import Launcher, LauncherUnavailable, State
from kubemend.common.coordination import FaultAnswer
from tests import eventually
from tests.unit.hub import builders
from tests.unit.hub.test_exits import view
from tests.unit.launcher.test_client import CONTAINER

FAILED = Launcher(State.FAILED, program=2, code=3)
RUNNING = view("c1", state=ContainerState.RUNNING)


@dataclass
class Env:
    """The hub's ``answer``, the reports to it, and the launcher's orders: the program, whether to end."""

    answer: FaultAnswer = FaultAnswer.ALONE
    pod: PodView | None = field(default_factory=builders.member)
    ending: str = ""
    result: Launcher | LauncherUnavailable = FAILED
    reported: list[Failure] = field(default_factory=list)
    decided: list[tuple[int, bool]] = field(default_factory=list)

    async def decide(self, container: ContainerStatus, program: int, *, ends: bool) -> Launcher | LauncherUnavailable:
        assert container is CONTAINER
        self.decided.append((program, ends))
        return self.result

    async def report(self, failure: Failure) -> FaultAnswer:
        self.reported.append(failure)
        return self.answer

    @contextlib.asynccontextmanager
    async def failed(self, launcher: Launcher = FAILED) -> AsyncIterator[None]:
        programs = FailedPrograms(
            launchers=self,
            report=self.report,
            pod=lambda _: self.pod,
            ending_reason=lambda _uid, _sandbox: self.ending,
            now=lambda: 1000.0,
        )
        programs.failed(RUNNING, CONTAINER, launcher)
        work = asyncio.create_task(programs.run())
        try:
            yield
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


@pytest.mark.parametrize(("answer", "ends"), [(FaultAnswer.ALONE, False), (FaultAnswer.NOTHING, True)])
async def test_without_a_round_the_launcher_decides_or_ends(answer: FaultAnswer, ends: bool) -> None:
    env = Env(answer)
    async with env.failed():
        await eventually.true(lambda: env.decided == [(2, ends)])
    (failure,) = env.reported
    assert (failure.exit_code, failure.program, failure.at) == (3, 2, 1000.0)
    assert failure.id == "program:c1/2"


async def test_in_a_round_its_order_restarts_the_program() -> None:
    env = Env(FaultAnswer.ROUND)
    async with env.failed():
        await eventually.true(lambda: bool(env.reported))
    assert env.decided == []


@pytest.mark.parametrize("gone", [True, False])
async def test_a_pod_that_is_ending_has_no_failures(gone: bool) -> None:
    env = Env(FaultAnswer.ROUND, pod=None) if gone else Env(FaultAnswer.ROUND, ending="it is deleted")
    async with env.failed():
        await eventually.true(lambda: env.decided == [(2, True)])
    assert env.reported == []


async def test_a_launcher_that_does_not_answer_harms_no_other() -> None:
    env = Env(result=LauncherUnavailable("gone"))
    async with env.failed(replace(FAILED, program=7)):
        await eventually.true(lambda: env.decided == [(7, False)])
