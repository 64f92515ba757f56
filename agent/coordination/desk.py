"""Where members' faults are taken to: the hub is told, and says what becomes of them."""

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final

import structlog

from agent.coordination import membership
from agent.coordination.faults import LONGEST, Fault, OpenFaults
from agent.coordination.members import Failure
from agent.coordination.metrics import HubMetrics
from agent.model.actions import ActionClass
from agent.model.rounds import FaultKind, Taken
from agent.model.workloads import ContainerRef, PodUid, PodView
from agent.restart import admission
from common.gangs import GangKey

log = structlog.get_logger(__name__)

UNANSWERED: Final = "Unanswered"
"""In metrics: no answer came within the patience."""


class Desk:
    """Takes faults (``agent.engine.ports.Gangs``). ``patience`` is how many seconds an answer is waited for."""

    def __init__(
        self,
        *,
        pods: Callable[[], Mapping[PodUid, PodView]],
        faults: OpenFaults,
        worst: Callable[[ContainerRef], Awaitable[ActionClass]],
        metrics: HubMetrics,
        opted_in_namespaces: frozenset[str],
        patience: float,
        dry_run: bool = False,
    ) -> None:
        """``worst`` tells the gravest action that a device of a container needs. A dry run restarts no gang either."""
        self._pods = pods
        self._faults = faults
        self._worst = worst
        self._metrics = metrics
        self._namespaces = opted_in_namespaces
        self._patience = patience
        self._dry_run = dry_run

    async def take(self, target: ContainerRef, cause: admission.Cause, *, kind: FaultKind) -> Taken:
        """Tell of a fault and return what becomes of it; ALONE at once for whom no gang has to be asked."""
        gang = self._gang(target)
        if gang is None:
            return Taken.ALONE
        return await self._answer(_fault(target, cause, gang=gang, kind=kind), patience=self._patience)

    async def device_lost(self, target: ContainerRef, cause: admission.Cause) -> Taken:
        """Tell that a container's device is lost for good; for as long as faults are told, as no restart here helps.

        ALONE at once for whom no gang has to be asked.
        """
        gang = self._gang(target)
        if gang is None:
            return Taken.ALONE
        return await self._answer(_fault(target, cause, gang=gang, kind=FaultKind.DEVICE), patience=LONGEST)

    async def _answer(self, fault: Fault, *, patience: float) -> Taken:
        """Tell of a fault, and wait for the answer as long as that is of use. It is told on, also to later leaders."""
        answer = self._faults.tell(fault)
        try:
            async with asyncio.timeout(patience):
                return await asyncio.shield(answer)
        except TimeoutError:
            self._metrics.answers.labels(fault.kind.value, UNANSWERED).inc()
            log.warning("hub.no_answer", container=str(fault.target), cause=fault.code, seconds=patience)
            return Taken.ALONE
        finally:
            if not answer.done():
                self._faults.leave_alone(fault.id)

    async def tell(self, failure: Failure, *, guarded: AbstractAsyncContextManager[asyncio.Event] | None) -> None:
        """Tell that a member has failed by itself. Whatever the answer, kubelet restarts it where nobody else does.

        ``guarded`` keeps what kubelet starts from running until a round's order has come, the answer is that there is
        none, or the patience ends. None where no answer can be had soon.
        """
        gang = self._gang(failure.container.ref)
        if gang is None:
            return
        if guarded is None:
            await self._tell(failure, gang)
            return
        with contextlib.suppress(TimeoutError):
            async with guarded as ordered:
                answer = await self._tell(failure, gang)  # however short the patience is: it is for the answer
                async with asyncio.timeout(self._patience):
                    if await asyncio.shield(answer) is Taken.ROUND:
                        await ordered.wait()

    async def _tell(self, failure: Failure, gang: GangKey) -> "asyncio.Future[Taken]":
        target = failure.container.ref
        why = f" ({failure.reason})" if failure.reason not in ("", "Error") else ""
        return self._faults.tell(
            Fault(
                id=f"exit:{failure.container.id}",
                target=target,
                gang=gang,
                kind=FaultKind.EXIT,
                code=f"Exit{failure.exit_code}",
                message=f"container {target.name} ended with exit code {failure.exit_code}{why}",
                happened_at=failure.at,
                exit_code=failure.exit_code,
                action=await self._worst(target),
            )
        )

    def _gang(self, target: ContainerRef) -> GangKey | None:
        """Return the gang that a fault of a container is told to; None where nothing that befalls it is one."""
        pod = self._pods().get(target.pod.uid)
        if self._dry_run or pod is None:
            return None
        refused = admission.why_no_fault(pod, target.name, opted_in_namespaces=self._namespaces)
        return membership.gang_of(pod) if refused is None else None


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
