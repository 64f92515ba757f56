"""Report the failures of gang members' programs, which their launchers hold, and have the launchers obey the answers.

In a round the agent restarts the program as those of the other members. Otherwise its launcher decides by its own
rule. A launcher that hears nothing does the same.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from kubemend.agent import ports
from kubemend.agent.clients.cri.convert import ContainerStatus
from kubemend.agent.hub.members import Failure
from kubemend.agent.model.workloads import ContainerSummary, PodUid, PodView, SandboxId
from kubemend.agent.restart.process import Launcher, LauncherUnavailable
from kubemend.common import contained
from kubemend.common.coordination import FaultAnswer

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _FailedProgram:
    container: ContainerSummary
    status: ContainerStatus
    launcher: Launcher
    at: float


class FailedPrograms:
    """Receive failures, and handle each in ``run``."""

    def __init__(
        self,
        *,
        launchers: ports.LauncherDecisions,
        report: Callable[[Failure], Awaitable[FaultAnswer]],
        pod: Callable[[PodUid], PodView | None],
        ending_reason: Callable[[PodUid, SandboxId], str],
        now: Callable[[], float],
    ) -> None:
        """``report`` returns the hub's answer; ``ending_reason`` why a pod is ending, empty if it is not."""
        self._launchers = launchers
        self._report = report
        self._pod = pod
        self._ending_reason = ending_reason
        self._now = now
        self._queue: asyncio.Queue[_FailedProgram] = asyncio.Queue()

    def failed(self, container: ContainerSummary, status: ContainerStatus, launcher: Launcher) -> None:
        """Accept the failure of a program, for which its launcher waits."""
        log.info(
            "launcher.program_failed",
            container=str(container.ref),
            container_id=container.id,
            program=launcher.program,
            exit_code=launcher.code,
        )
        self._queue.put_nowait(_FailedProgram(container, status, launcher, self._now()))

    async def run(self) -> None:
        """Handle failures as they arrive."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                failed = await self._queue.get()
                tasks.create_task(self._handle(failed), name=f"failed program of {failed.container.ref}")

    async def _handle(self, failed: _FailedProgram) -> None:
        with contained.within(contained.Part.FAULT, failed.container.ref):
            answer = await self._answer(failed)
            log.info("launcher.decided", container=str(failed.container.ref), answer=answer.value)
            if answer is FaultAnswer.ROUND:
                return  # the round's order restarts the program
            ends = answer is FaultAnswer.NOTHING
            found = await self._launchers.decide(failed.status, failed.launcher.program, ends=ends)
            if isinstance(found, LauncherUnavailable):
                log.info("launcher.silent", container=str(failed.container.ref), reason=found.reason)

    async def _answer(self, failed: _FailedProgram) -> FaultAnswer:
        view = failed.container
        pod = self._pod(view.ref.pod.uid)
        if pod is None or self._ending_reason(view.ref.pod.uid, view.sandbox_id):
            return FaultAnswer.NOTHING
        return await self._report(
            Failure(
                pod=pod,
                container=view,
                exit_code=failed.launcher.code,
                reason="",
                at=failed.at,
                program=failed.launcher.program,
            )
        )
