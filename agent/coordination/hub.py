"""The agent's end of the controller's hub, put together: members and faults are told, rounds are taken part in.

Without a hub the agent works alone. So nobody waits for anything here but at the desk, and that not for long.
"""

import asyncio
import secrets
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

from agent.coordination import ports
from agent.coordination.connection import Connection, Limits
from agent.coordination.desk import Desk
from agent.coordination.dialing import Where
from agent.coordination.faults import OpenFaults
from agent.coordination.fence import Fence
from agent.coordination.inbox import Inbox
from agent.coordination.members import Ears, Failure, Members
from agent.coordination.metrics import HubMetrics
from agent.coordination.outbox import Introduction, Outbox
from agent.coordination.sampling import Sampler
from agent.coordination.verdicts import Verdicts
from agent.model.rounds import FaultKind, Order, Standing, Taken
from agent.model.workloads import ContainerRef, PodRef, PodUid
from agent.restart import admission
from common import aio, contained
from common.parts import PartStatus


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this agent is, and for whom it speaks."""

    node: str
    version: str
    opted_in_namespaces: frozenset[str] = frozenset()
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Outside:
    """What there is before the container runtime has been found."""

    pods: ports.Pods
    epochs: ports.Epochs
    holders: ports.Holders
    loads: ports.Loads
    verdicts: Verdicts


class Hub:
    """The part. Faults may be taken to it from the first moment on (``agent.engine.ports.Gangs``)."""

    def __init__(
        self,
        where: Where,
        *,
        identity: Identity,
        outside: Outside,
        report: Callable[[PartStatus], None],
        metrics: HubMetrics,
        patience: float,
        limits: Limits | None = None,
    ) -> None:
        """``patience``: for how many seconds a fault waits for the hub's answer."""
        self._where = where
        self._identity = identity
        self._outside = outside
        self._report = report
        self._metrics = metrics
        self._limits = limits
        self._faults = OpenFaults()
        self._desk = Desk(
            pods=outside.pods.pods,
            faults=self._faults,
            worst=outside.verdicts.worst,
            metrics=metrics,
            opted_in_namespaces=identity.opted_in_namespaces,
            patience=patience,
            dry_run=identity.dry_run,
        )
        self._connection: Connection | None = None

    async def take(self, target: ContainerRef, cause: admission.Cause, *, kind: FaultKind) -> Taken:
        """Tell of a fault and return what becomes of it. Never raises; see ``Desk``."""
        return await self._desk.take(target, cause, kind=kind)

    async def device_lost(self, target: ContainerRef, cause: admission.Cause) -> Taken:
        """Tell that a container's device is lost for good (``agent.engine.lost_devices.Tell``); see ``Desk``."""
        return await self._desk.device_lost(target, cause)

    async def leave(self, *, timeout: float) -> None:
        """Say what is left to say, such as how rounds have gone, and end the stream."""
        if self._connection is not None:
            await self._connection.leave(timeout=timeout)

    async def run(
        self, *, rounds: ports.Rounds, containers: ports.Containers, runtime: ports.Runtime, can_hold: bool
    ) -> None:
        """Be there for the hub for ever, once the container runtime has been found.

        ``can_hold``: whether a successor is held before its first instruction.
        """
        fence = Fence(self._outside.epochs)
        await fence.load()
        async with asyncio.TaskGroup() as tasks:

            def begin(order: Order, pod: PodRef) -> None:
                work = rounds.carry_out(order, told=lambda standing: outbox.result(_named(standing, pod)))
                tasks.create_task(work, name=f"round {order.round} of {pod}")

            def failed(failure: Failure) -> None:
                guarded = rounds.guarding(failure.container) if self._is_heard else None
                work = self._tell(failure, guarded)
                tasks.create_task(work, name=f"fault of {failure.container.ref}")

            def changed(uid: PodUid) -> None:
                outbox.changed(uid)

            members = Members(
                pods=self._outside.pods,
                containers=containers,
                runtime=runtime,
                rounds=rounds,
                ears=Ears(changed=changed, failed=failed, gone=self._faults.gone),
                opted_in_namespaces=self._identity.opted_in_namespaces,
            )
            about = self._introduction(fence, rounds, can_hold=can_hold)
            outbox = Outbox(introduction=about, members=members, faults=self._faults)
            self._faults.on_new(outbox.wake)
            rounds.tell_taken_up(outbox.result)
            inbox = Inbox(
                fence=fence,
                rounds=rounds,
                faults=self._faults,
                begin=begin,
                say_hello=outbox.say_hello,
                metrics=self._metrics,
            )
            self._connection = self._connect(outbox, inbox)
            aio.spawn_eternal(tasks, members.run(), name="gang-members")
            await members.until_known()
            aio.spawn_eternal(tasks, self._sampler(outbox).run(), name="gang-samples")
            aio.spawn_eternal(tasks, self._connection.run(), name="hub-connection")

    async def _tell(self, failure: Failure, guarded: "AbstractAsyncContextManager[asyncio.Event] | None") -> None:
        with contained.within(contained.Part.FAULT, failure.container.ref):
            await self._desk.tell(failure, guarded=guarded)

    @property
    def _is_heard(self) -> bool:
        return self._connection is not None and self._connection.is_welcomed

    def _introduction(self, fence: Fence, rounds: ports.Rounds, *, can_hold: bool) -> Introduction:
        return Introduction(
            node=self._identity.node,
            instance=secrets.token_hex(8),
            version=self._identity.version,
            can_hold=can_hold,
            epoch=lambda: fence.obeyed,
            standings=rounds.standings,
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
        outside = self._outside
        return Sampler(pods=outside.pods, holders=outside.holders, loads=outside.loads, outbox=outbox)


def _named(standing: Standing, pod: PodRef) -> Standing:
    """Return where a member stands, by the hub's name for the pod where this node knows none: it is not here."""
    return standing if standing.pod.name else replace(standing, pod=pod)
