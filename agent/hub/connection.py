"""Keep one stream to the hub open: try each address in turn, and report what prevents a connection."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc.aio
import structlog

from kubemend.agent.hub import errors, stream
from kubemend.agent.hub.endpoint import Address, Dialer, HubEndpoint
from kubemend.agent.hub.errors import HubError, HubProblem, Severity
from kubemend.agent.hub.inbox import Inbox, StaleLeaderError
from kubemend.agent.hub.metrics import HubMetrics
from kubemend.agent.hub.outbox import Outbox
from kubemend.common import aio, contained
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb

log = structlog.get_logger(__name__)


_INTERNAL_ERROR_HINT = "This is an internal error; work.failed in the log has the traceback."


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
            return latest, error.trouble
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
                    why=problem.what,
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
                await stream.run_stream(
                    stream.call(channel, token=token),
                    outbox=self._outbox,
                    on_message=lambda message: self._receive(message, address),
                    welcome_within=self._limits.welcome,
                    metrics=self._metrics,
                )
        except HubError as error:
            return error.trouble
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

    async def _receive(self, message: pb.HubMessage | None, address: Address) -> bool:
        leader = await self._inbox.receive(message)
        if leader is None:
            return False
        self._welcomed_at = asyncio.get_running_loop().time()
        self._metrics.connected.set(1)
        log.info("hub.connected", address=str(address), leader=leader)
        self._report(ComponentStatus(ComponentState.READY, f"connected to {address}, leader {leader}"))
        return True


def after(addresses: Sequence[Address], latest: Address | None) -> Sequence[Address]:
    """Return all addresses, starting with the one after the ``latest``."""
    first = addresses.index(latest) + 1 if latest in addresses else 0
    return [*addresses[first:], *addresses[:first]]
