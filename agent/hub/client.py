"""Assemble the client of the controller's hub: report members' faults, take part in rounds.

Without a hub the agent works alone. Only fault reports wait for the hub, with a timeout.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from kubemend.agent import ports
from kubemend.agent.hub.connection import Connection, Limits
from kubemend.agent.hub.endpoint import HubEndpoint
from kubemend.agent.hub.failed_programs import FailedPrograms
from kubemend.agent.hub.fault_reporter import FaultReporter
from kubemend.agent.hub.fence import Fence
from kubemend.agent.hub.inbox import Inbox
from kubemend.agent.hub.member_devices import Sampler, Verdicts
from kubemend.agent.hub.members import Failure, MemberCallbacks, Members
from kubemend.agent.hub.metrics import HubMetrics
from kubemend.agent.hub.open_faults import OpenFaults
from kubemend.agent.hub.outbox import HelloInfo, Outbox
from kubemend.agent.model.rounds import StepResult
from kubemend.agent.model.workloads import ContainerRef, PodUid, SandboxId
from kubemend.agent.restart import admission
from kubemend.common import aio, contained
from kubemend.common.components import ComponentStatus
from kubemend.common.coordination import FaultAnswer, FaultKind


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of this agent and its node."""

    node: str
    opted_in_namespaces: frozenset[str] = frozenset()
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Dependencies that exist before the container runtime has been found."""

    pods: ports.Pods
    epochs: ports.Epochs
    exits: ports.StoredIds
    holders: ports.Holders
    loads: ports.Loads
    verdicts: Verdicts


async def _no_doubt(_: Failure) -> str:
    return ""


async def _left_to_kubelet(_: Failure) -> None:
    return


class Hub:
    """The hub client. It accepts faults from the start (``agent.ports.Gangs``)."""

    def __init__(
        self,
        where: HubEndpoint,
        *,
        identity: Identity,
        dependencies: Dependencies,
        report: Callable[[ComponentStatus], None],
        metrics: HubMetrics,
        answer_timeout: float,
        limits: Limits | None = None,
    ) -> None:
        """``answer_timeout``: for how many seconds a fault waits for the hub's answer."""
        self._where = where
        self._identity = identity
        self._dependencies = dependencies
        self._report = report
        self._metrics = metrics
        self._limits = limits
        self._faults = OpenFaults()
        self._fault_reporter = FaultReporter(
            pods=dependencies.pods.pods,
            faults=self._faults,
            worst=dependencies.verdicts.worst,
            metrics=metrics,
            opted_in_namespaces=identity.opted_in_namespaces,
            answer_timeout=answer_timeout,
            dry_run=identity.dry_run,
        )
        self._outbox: Outbox | None = None
        self._connection: Connection | None = None

    async def report_fault(self, target: ContainerRef, cause: admission.Cause, *, kind: FaultKind) -> FaultAnswer:
        """Report a fault and return the answer. Never raises; see ``FaultReporter``."""
        return await self._fault_reporter.report_fault(target, cause, kind=kind)

    async def device_lost(self, target: ContainerRef, cause: admission.Cause) -> FaultAnswer:
        """Report a container's lost device (``agent.faults.lost_devices.ReportLost``); see ``FaultReporter``."""
        return await self._fault_reporter.device_lost(target, cause)

    async def program_failed(self, failure: Failure) -> FaultAnswer:
        """Report that the program in a member's container has failed; see ``FaultReporter``."""
        return await self._fault_reporter.program_failed(failure, is_welcomed=self._is_welcomed)

    def report_result(self, step_result: StepResult) -> None:
        """Send a member's state in its round. Without a stream it is dropped: the next Hello contains it."""
        if self._outbox is not None:
            self._outbox.result(step_result)

    def failed_programs(
        self,
        launchers: ports.LauncherDecisions,
        *,
        ending_reason: Callable[[PodUid, SandboxId], str],
        now: Callable[[], float],
    ) -> FailedPrograms:
        """Return the handler for failures of members' programs; see there."""
        return FailedPrograms(
            launchers=launchers,
            report=self.program_failed,
            pod=lambda uid: self._dependencies.pods.pods().get(uid),
            ending_reason=ending_reason,
            now=now,
        )

    async def leave(self, *, timeout: float) -> None:
        """Send the queued messages, such as results of rounds, and end the stream."""
        if self._connection is not None:
            await self._connection.leave(timeout=timeout)

    async def run(
        self,
        *,
        rounds: ports.Rounds,
        containers: ports.Events,
        runtime: ports.ContainerEnds,
        doubt: Callable[[Failure], Awaitable[str]] = _no_doubt,
        alone: Callable[[Failure], Awaitable[None]] = _left_to_kubelet,
    ) -> None:
        """Serve the hub, once the container runtime has been found.

        - ``doubt`` returns why an exit is not a failure because the pod is ending; empty: it is a failure.
        - ``alone`` restarts a member that the hub leaves to this agent.
        """
        fence = Fence(self._dependencies.epochs)
        await fence.load()
        async with asyncio.TaskGroup() as tasks:

            def failed(failure: Failure) -> None:
                guarded = rounds.guarding(failure.container) if self._is_welcomed else None
                work = self._report_failure(failure, guarded, members=members, doubt=doubt, alone=alone)
                tasks.create_task(work, name=f"fault of {failure.container.ref}")

            members = Members(
                pods=self._dependencies.pods,
                containers=containers,
                runtime=runtime,
                rounds=rounds,
                handled=self._dependencies.exits,
                callbacks=MemberCallbacks(failed=failed, gone=self._faults.gone),
                opted_in_namespaces=self._identity.opted_in_namespaces,
            )
            outbox = self._outbox = Outbox(introduction=self._hello_info(fence, rounds), faults=self._faults)
            inbox = Inbox(
                fence=fence,
                rounds=rounds,
                faults=self._faults,
                tasks=tasks,
                send_hello=outbox.send_hello,
                settled=members.fault_settled,
                metrics=self._metrics,
            )
            self._connection = self._connect(outbox, inbox)
            aio.spawn_eternal(tasks, members.run(), name="gang-members")
            await members.until_known()
            aio.spawn_eternal(tasks, self._sampler(outbox).run(), name="gang-samples")
            aio.spawn_eternal(tasks, self._connection.run(), name="hub-connection")

    async def _report_failure(
        self,
        failure: Failure,
        guarded: "AbstractAsyncContextManager[asyncio.Event] | None",
        *,
        members: Members,
        doubt: Callable[[Failure], Awaitable[str]],
        alone: Callable[[Failure], Awaitable[None]],
    ) -> None:
        with contained.within(contained.Part.FAULT, failure.container.ref):
            taken = await self._fault_reporter.report_exit(failure, guarded=guarded, doubt=doubt)
            if taken is FaultAnswer.NOTHING:
                members.settled(failure.container.id)
            elif taken is FaultAnswer.ALONE:
                await alone(failure)

    @property
    def _is_welcomed(self) -> bool:
        return self._connection is not None and self._connection.is_welcomed

    def _hello_info(self, fence: Fence, rounds: ports.Rounds) -> HelloInfo:
        return HelloInfo(
            node=self._identity.node,
            epoch=lambda: fence.obeyed,
            step_results=rounds.step_results,
        )

    def _connect(self, outbox: Outbox, inbox: Inbox) -> Connection:
        return Connection(
            self._where,
            outbox=outbox,
            inbox=inbox,
            report=self._report,
            metrics=self._metrics,
            limits=self._limits,
        )

    def _sampler(self, outbox: Outbox) -> Sampler:
        dependencies = self._dependencies
        return Sampler(pods=dependencies.pods, holders=dependencies.holders, loads=dependencies.loads, outbox=outbox)
