"""Report members' faults to the hub, and wait for its answers."""

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final

import structlog

from kubemend.agent.hub.members import Failure
from kubemend.agent.hub.metrics import HubMetrics
from kubemend.agent.hub.open_faults import LONGEST, Fault, OpenFaults
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.workloads import ContainerRef, PodUid, PodView
from kubemend.agent.restart import admission
from kubemend.common import aio
from kubemend.common.coordination import FaultAnswer, FaultKind
from kubemend.common.gangs import GangKey

log = structlog.get_logger(__name__)

UNANSWERED: Final = "Unanswered"
"""In metrics: no answer arrived before the timeout."""


class FaultReporter:
    """Report faults (``agent.ports.Gangs``). ``answer_timeout`` is how many seconds to wait for an answer."""

    def __init__(
        self,
        *,
        pods: Callable[[], Mapping[PodUid, PodView]],
        faults: OpenFaults,
        worst: Callable[[ContainerRef], Awaitable[ActionClass]],
        metrics: HubMetrics,
        opted_in_namespaces: frozenset[str],
        answer_timeout: float,
        dry_run: bool = False,
    ) -> None:
        """``worst`` returns the most severe action that a container's devices need. A dry run reports no fault."""
        self._pods = pods
        self._faults = faults
        self._worst = worst
        self._metrics = metrics
        self._namespaces = opted_in_namespaces
        self._answer_timeout = answer_timeout
        self._dry_run = dry_run

    async def report_fault(self, target: ContainerRef, cause: admission.Cause, *, kind: FaultKind) -> FaultAnswer:
        """Report a fault and return the answer; ALONE at once for a container that is in no gang."""
        gang = self._gang(target)
        if gang is None:
            return FaultAnswer.ALONE
        return await self._report_and_wait(_fault(target, cause, gang=gang, kind=kind), timeout=self._answer_timeout)

    async def device_lost(self, target: ContainerRef, cause: admission.Cause) -> FaultAnswer:
        """Report the permanent loss of a container's device.

        Waits as long as faults stay open, because no restart on this node helps. ALONE at once for a container that is
        in no gang.
        """
        gang = self._gang(target)
        if gang is None:
            return FaultAnswer.ALONE
        return await self._report_and_wait(_fault(target, cause, gang=gang, kind=FaultKind.DEVICE), timeout=LONGEST)

    async def _report_and_wait(self, fault: Fault, *, timeout: float) -> FaultAnswer:
        """Report a fault and wait for the answer. After the timeout the report continues, also to later leaders."""
        answer = self._faults.add(fault)
        try:
            if await aio.is_done_within(timeout, answer):
                return answer.result()
            self._metrics.answers.labels(fault.kind.value, UNANSWERED).inc()
            log.warning("hub.no_answer", container=str(fault.target), cause=fault.code, seconds=timeout)
            return FaultAnswer.ALONE
        finally:
            if not answer.done():
                self._faults.leave_alone(fault.id)

    async def report_exit(
        self,
        failure: Failure,
        *,
        guarded: AbstractAsyncContextManager[asyncio.Event] | None,
        doubt: Callable[[Failure], Awaitable[str]],
    ) -> FaultAnswer:
        """Report that a member has failed by itself, and return the answer.

        - ``doubt`` returns why the exit is not a failure because the pod is ending; then nothing is reported.
        - ``guarded`` holds what kubelet starts until a round's order arrives, the answer is that there is none, or the
          timeout ends. None if no answer can arrive soon: then the member is restarted alone, and its gang is informed
          later.
        """
        async with guarded if guarded is not None else contextlib.nullcontext() as ordered:
            if reason := await doubt(failure):
                log.info("hub.member_ending", container=str(failure.container.ref), reason=reason)
                return FaultAnswer.NOTHING
            gang = self._gang(failure.container.ref)
            if gang is None:
                return FaultAnswer.ALONE
            fault = await self._exit_fault(failure, gang)  # outside the timeout, which is for the answer
            answer = self._faults.add(fault)
            if ordered is None:
                self._faults.leave_alone(failure.id)
                return FaultAnswer.ALONE
            return await self._await_order(failure, answer, ordered)

    async def program_failed(self, failure: Failure, *, is_welcomed: bool) -> FaultAnswer:
        """Report that the program in a member's container has failed, which its launcher holds; return the answer.

        ALONE at once where no answer can arrive soon: the gang is informed later.
        """
        gang = self._gang(failure.container.ref)
        if gang is None:
            return FaultAnswer.ALONE
        fault = await self._exit_fault(failure, gang)
        if is_welcomed:
            return await self._report_and_wait(fault, timeout=self._answer_timeout)
        self._faults.add(fault)
        self._faults.leave_alone(fault.id)
        return FaultAnswer.ALONE

    async def _await_order(
        self, failure: Failure, answer: "asyncio.Future[FaultAnswer]", ordered: asyncio.Event
    ) -> FaultAnswer:
        """Wait for the answer, and for the order that follows it, until the timeout."""
        until = asyncio.get_running_loop().time() + self._answer_timeout
        if not await aio.is_done_within(self._answer_timeout, answer):
            self._faults.leave_alone(failure.id)
            return FaultAnswer.ALONE
        taken = answer.result()
        if taken is FaultAnswer.ROUND:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await ordered.wait()
        return taken

    async def _exit_fault(self, failure: Failure, gang: GangKey) -> Fault:
        target = failure.container.ref
        what = f"the program in container {target.name}" if failure.program else f"container {target.name}"
        reason = f" ({failure.reason})" if failure.reason not in ("", "Error") else ""
        return Fault(
            id=failure.id,
            target=target,
            gang=gang,
            kind=FaultKind.EXIT,
            code=f"Exit{failure.exit_code}",
            message=f"{what} ended with exit code {failure.exit_code}{reason}",
            happened_at=failure.at,
            exit_code=failure.exit_code,
            action=await self._worst(target),
        )

    def _gang(self, target: ContainerRef) -> GangKey | None:
        """Return the gang to which a container's faults are reported; None if they are not reported."""
        pod = self._pods().get(target.pod.uid)
        if self._dry_run or pod is None:
            return None
        refused = admission.no_fault_reason(pod, target.name, opted_in_namespaces=self._namespaces)
        return pod.gang if refused is None else None


def _fault(target: ContainerRef, cause: admission.Cause, *, gang: GangKey, kind: FaultKind) -> Fault:
    return Fault(
        id=uuid.uuid4().hex,
        target=target,
        gang=gang,
        kind=kind,
        code=cause.code,
        message=cause.message,
        happened_at=cause.happened_at,
        action=cause.action if cause.devices_known else ActionClass.ASK_DRIVER,
        device=cause.device or "",
    )
