"""Keeps one stream to the hub up: each address in turn, for ever, with a word on what is in the way."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc.aio
import structlog

from agent.coordination import stream, troubles
from agent.coordination.dialing import Address, Dialer, Where
from agent.coordination.inbox import Inbox, StaleLeaderError
from agent.coordination.metrics import HubMetrics
from agent.coordination.outbox import Outbox
from agent.coordination.troubles import Rank, Trouble, TroubleError
from common import aio, contained
from common.parts import PartState, PartStatus
from common.pb.coordination.v1 import coordination_pb2 as pb

log = structlog.get_logger(__name__)


_OUR_DEFECT = "a defect of ours: work.failed in the log has the traceback"


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds: how long a replica may take to welcome us, and how long is waited when no address was of use.

    A stream that has not lasted for ``settled`` was of no use either: something of what we say, or hear, breaks it.
    """

    welcome: float = 15.0
    settled: float = 10.0
    first_wait: float = 0.3
    longest_wait: float = 5.0


class Connection:
    """The stream, whichever replica it leads to. ``report`` gets what a person can do while there is none."""

    def __init__(
        self,
        where: Where,
        *,
        outbox: Outbox,
        inbox: Inbox,
        report: Callable[[PartStatus], None],
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
        """Whether there is a replica that leads, and hears us."""
        return self._welcomed_at is not None

    async def run(self) -> None:
        """Connect for ever."""
        backoff = aio.Backoff(first=self._limits.first_wait, limit=self._limits.longest_wait)
        latest: Address | None = None
        try:
            while True:
                latest, trouble = await self._once_around(latest)
                if self._leaving:
                    break
                if trouble is None:
                    backoff.reset()
                else:
                    self._report(PartStatus(PartState.DEGRADED, f"{trouble.what}: the agent works alone", trouble.mend))
                await backoff.wait()
            self._left.set()
            await asyncio.get_running_loop().create_future()
        finally:
            self._dialer.close()

    async def leave(self, *, timeout: float) -> None:
        """Say what is left to say, and end the stream; after ``timeout`` seconds whatever has been said."""
        self._leaving = True
        self._outbox.leave()
        if self._outbox.is_open:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._left.wait()

    async def _once_around(self, latest: Address | None) -> tuple[Address | None, Trouble | None]:
        """Try every address once, that after the ``latest`` first, until one has welcomed us and its stream has ended.

        Return the address tried last, and the gravest trouble where none has, or not for long.
        """
        try:
            addresses = await self._dialer.addresses()
        except TroubleError as error:
            return latest, error.trouble
        found: list[Trouble] = []
        for address in after(addresses, latest):
            latest = address
            trouble = Trouble(f"what the hub at {address} was to be told, or said, was not understood", _OUR_DEFECT)
            with contained.within(contained.Part.HUB, address):
                trouble = await self._talk(address)
            if self._welcomed_at is not None:
                lasted = asyncio.get_running_loop().time() - self._welcomed_at
                self._welcomed_at = None
                log.info(
                    "hub.left" if self._leaving else "hub.lost",
                    address=str(address),
                    why=trouble.what,
                    seconds=round(lasted, 1),
                )
                return latest, trouble if lasted < self._limits.settled else None
            found.append(trouble)
        return latest, max(found, key=lambda each: (each.rank, each.what))

    async def _talk(self, address: Address) -> Trouble:
        """Hold one stream from its beginning to its end, and return why it ended."""
        try:
            token = await self._dialer.token()
            async with await self._dialer.channel(address) as channel:
                await stream.converse(
                    stream.call(channel, token=token),
                    outbox=self._outbox,
                    take=lambda message: self._take(message, address),
                    welcome_within=self._limits.welcome,
                    metrics=self._metrics,
                )
        except TroubleError as error:
            return error.trouble
        except grpc.aio.AioRpcError as error:
            where = self._where
            return troubles.of_rpc(
                error.code(), error.details() or "", where=str(address), ca=where.ca, name=where.name
            )
        except TimeoutError:
            return Trouble(f"the hub at {address} has not answered within {self._limits.welcome:g} s", troubles.RUNNING)
        except StaleLeaderError as error:
            return Trouble(f"the hub at {address} leads no longer: {error}", troubles.RUNNING, Rank.NOT_LEADING)
        finally:
            self._metrics.connected.set(0)
        return Trouble(f"the hub at {address} has ended the stream", troubles.RUNNING)

    async def _take(self, message: pb.HubMessage | None, address: Address) -> bool:
        leader = await self._inbox.take(message)
        if leader is None:
            return False
        self._welcomed_at = asyncio.get_running_loop().time()
        self._metrics.connected.set(1)
        log.info("hub.connected", address=str(address), leader=leader)
        self._report(PartStatus(PartState.READY, f"connected to {address}, leader {leader}"))
        return True


def after(addresses: Sequence[Address], latest: Address | None) -> Sequence[Address]:
    """Return all addresses, beginning with the one after the ``latest``."""
    first = addresses.index(latest) + 1 if latest in addresses else 0
    return [*addresses[first:], *addresses[:first]]
