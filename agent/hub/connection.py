"""Keep one stream to the hub open and exchange messages on it; report what prevents a connection.

Each address is tried in turn.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import grpc.aio
import structlog
from google.protobuf.message import Message

from kubemend.agent.hub import errors, wire
from kubemend.agent.hub.endpoint import Address, Dialer, HubEndpoint
from kubemend.agent.hub.errors import HubError, HubProblem, Severity
from kubemend.agent.hub.inbox import Inbox, StaleLeaderError
from kubemend.agent.hub.metrics import OUT, HubMetrics
from kubemend.agent.hub.outbox import Outbox
from kubemend.common import aio, contained
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb

log = structlog.get_logger(__name__)

_METHOD: Final = f"/{pb.DESCRIPTOR.services_by_name['Coordination'].full_name}/Connect"
_INTERNAL_ERROR_HINT = "This is an internal error; work.failed in the log has the traceback."


@dataclass(frozen=True, slots=True)
class _Received:
    """A received message; None if the bytes were no message of this protocol."""

    message: pb.HubMessage | None


_Call = grpc.aio.StreamStreamCall[Message, _Received]


@dataclass(frozen=True, slots=True)
class Limits:
    """Timeouts in seconds.

    - ``welcome``: until a replica welcomes the agent.
    - ``settled``: a stream that ends sooner counts as failed, because a message in one direction breaks it.
    - ``first_wait``, ``longest_wait``: the backoff after a failure of all addresses.
    """

    welcome: float = 15.0
    settled: float = 10.0
    first_wait: float = 0.3
    longest_wait: float = 5.0


class Connection:
    """The stream to the leading replica. Without a stream, ``report`` receives the problem and a hint."""

    def __init__(
        self,
        where: HubEndpoint,
        *,
        outbox: Outbox,
        inbox: Inbox,
        report: Callable[[ComponentStatus], None],
        metrics: HubMetrics,
        limits: Limits | None = None,
    ) -> None:
        self._where = where
        self._outbox = outbox
        self._inbox = inbox
        self._report = report
        self._metrics = metrics
        self._limits = limits if limits is not None else Limits()
        self._dialer = Dialer(where)
        self._welcomed_at: float | None = None  # loop time
        self._leaving = False
        self._left = asyncio.Event()

    @property
    def is_welcomed(self) -> bool:
        """Return whether a leading replica has welcomed this agent."""
        return self._welcomed_at is not None

    async def run(self) -> None:
        """Connect, and reconnect whenever the stream ends."""
        backoff = aio.Backoff(first=self._limits.first_wait, limit=self._limits.longest_wait)
        latest: Address | None = None
        try:
            while True:
                latest, problem = await self._try_all(latest)
                if self._leaving:
                    break
                if problem is None:
                    backoff.reset()
                else:
                    self._report(
                        ComponentStatus(ComponentState.DEGRADED, f"{problem.what}: the agent works alone", problem.hint)
                    )
                await backoff.wait()
            self._left.set()
            await asyncio.get_running_loop().create_future()
        finally:
            self._dialer.close()

    async def leave(self, *, timeout: float) -> None:
        """Send the queued messages and end the stream; after ``timeout`` seconds end it in any case."""
        self._leaving = True
        self._outbox.leave()
        if self._outbox.is_open:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._left.wait()

    async def _try_all(self, latest: Address | None) -> tuple[Address | None, HubProblem | None]:
        """Try every address once, starting after the ``latest``, until a stream that was welcomed has ended.

        Return the last address, and the worst problem if no replica welcomed the agent, or not for long.
        """
        try:
            addresses = await self._dialer.addresses()
        except HubError as error:
            return latest, error.problem
        found: list[HubProblem] = []
        for address in after(addresses, latest):
            latest = address
            problem = HubProblem(f"exchanging messages with the hub at {address} failed", _INTERNAL_ERROR_HINT)
            with contained.within(contained.Part.HUB, address):
                problem = await self._run_stream(address)
            if self._welcomed_at is not None:
                lasted = asyncio.get_running_loop().time() - self._welcomed_at
                self._welcomed_at = None
                log.info(
                    "hub.left" if self._leaving else "hub.lost",
                    address=str(address),
                    reason=problem.what,
                    seconds=round(lasted, 1),
                )
                return latest, problem if lasted < self._limits.settled else None
            found.append(problem)
        return latest, max(found, key=lambda each: (each.severity, each.what))

    async def _run_stream(self, address: Address) -> HubProblem:
        """Run one stream to its end, and return why it ended."""
        try:
            token = await self._dialer.token()
            async with await self._dialer.channel(address) as channel:
                await self._exchange(_call(channel, token=token), address)
        except HubError as error:
            return error.problem
        except grpc.aio.AioRpcError as error:
            where = self._where
            return errors.of_rpc(error.code(), error.details() or "", where=str(address), ca=where.ca, name=where.name)
        except TimeoutError:
            return HubProblem(f"the hub at {address} did not answer within {self._limits.welcome:g} s", errors.RUNNING)
        except StaleLeaderError as error:
            return HubProblem(f"the hub at {address} no longer leads: {error}", errors.RUNNING, Severity.NOT_LEADING)
        finally:
            self._metrics.connected.set(0)
        return HubProblem(f"the hub at {address} has ended the stream", errors.RUNNING)

    async def _exchange(self, stream: _Call, address: Address) -> None:
        """Send and receive messages until the stream ends normally.

        Raises AioRpcError if the hub or the network breaks the stream; TimeoutError if no Welcome comes in time; and
        what the inbox raises.
        """
        self._outbox.open()
        try:
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(self._send_all(stream), name="hub-send")
                fault = await self._receive_all(stream, address)
                sending.cancel()
            if fault is not None:
                raise fault
        finally:
            self._outbox.close()
            stream.cancel()

    async def _send_all(self, stream: _Call) -> None:
        """Send until the outbox closes or the peer stops reading; ``_receive_all`` reports the error."""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while (message := await self._outbox.next()) is not None:
                await stream.write(message)
                self._metrics.messages.labels(OUT, message.WhichOneof("body")).inc()
            await stream.done_writing()

    async def _receive_all(self, stream: _Call, address: Address) -> Exception | None:
        """Receive messages until the stream ends; return the error that ended it, None if it ended normally."""
        try:
            async with asyncio.timeout(self._limits.welcome) as deadline:
                while isinstance(received := await stream.read(), _Received):
                    if await self._is_welcome(received.message, address):
                        deadline.reschedule(None)
        except (grpc.aio.AioRpcError, TimeoutError, StaleLeaderError, HubError) as error:
            return error
        return None

    async def _is_welcome(self, message: pb.HubMessage | None, address: Address) -> bool:
        """Process a message; return whether a leader welcomes the agent with it."""
        leader = await self._inbox.receive(message)
        if leader is None:
            return False
        self._welcomed_at = asyncio.get_running_loop().time()
        self._metrics.connected.set(1)
        log.info("hub.connected", address=str(address), leader=leader)
        self._report(ComponentStatus(ComponentState.READY, f"connected to {address}, leader {leader}"))
        return True


def _call(channel: grpc.aio.Channel, *, token: str) -> _Call:
    """Start a stream. The token is sent with the call, over TLS only."""
    method = channel.stream_stream(
        _METHOD,
        request_serializer=pb.AgentMessage.SerializeToString,
        response_deserializer=lambda data: _Received(wire.deserialized(data)),
    )
    return method(metadata=(("authorization", f"Bearer {token}"),))


def after(addresses: Sequence[Address], latest: Address | None) -> Sequence[Address]:
    """Return all addresses, starting with the one after the ``latest``."""
    first = addresses.index(latest) + 1 if latest in addresses else 0
    return [*addresses[first:], *addresses[:first]]
