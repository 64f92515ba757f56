"""Where members' faults are taken to: the hub is told, and says what becomes of them."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog

from agent.coordination import exits, membership
from agent.coordination.faults import Fault, OpenFaults
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
        fault = Fault(
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
        answer = self._faults.tell(fault)
        try:
            async with asyncio.timeout(self._patience):
                return await answer
        except TimeoutError:
            self._metrics.answers.labels(kind.value, UNANSWERED).inc()
            log.warning("hub.no_answer", container=str(target), cause=cause.code, seconds=self._patience)
            return Taken.ALONE
        finally:
            if not answer.done() or answer.cancelled():
                self._faults.withdraw(fault.id)

    async def tell(self, failure: Failure) -> None:
        """Tell that a member has failed by itself. Whatever the answer, kubelet restarts it where nobody else does."""
        target = failure.container.ref
        gang = self._gang(target)
        if gang is None:
            return
        why = f" ({failure.reason})" if failure.reason not in ("", "Error") else ""
        self._faults.tell(
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
        pod = self._pods().get(target.pod.uid)
        if self._dry_run or pod is None or not exits.may_tell(pod, opted_in_namespaces=self._namespaces):
            return None
        return membership.gang_of(pod)
