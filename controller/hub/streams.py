"""One agent's stream: its send queue, its writer task, and how it ends."""

import asyncio
import enum
from collections import deque
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.hub import deferred_messages
from kubemend.controller.hub.rates import Bucket
from kubemend.controller.model.members import NodeName

Context = grpc.aio.ServicerContext[Any, Any]
"""A call's context; requests and responses are bytes here."""


class Why(enum.Enum):
    """Why the hub ends a stream: label values of ``kubemend_hub_sessions_ended_total``."""

    DONE = "Done"
    SLOW = "Slow"
    REPLACED = "Replaced"
    STANDBY = "Standby"
    TOKEN = "Token"  # noqa: S105 - a name
    REFUSED = "Refused"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a stream ends: the status that the agent receives."""

    why: Why
    code: grpc.StatusCode
    text: str


TOO_SLOW = Ending(Why.SLOW, grpc.StatusCode.UNAVAILABLE, "the agent reads too slowly. Connect again and send Hello")
REPLACED = Ending(Why.REPLACED, grpc.StatusCode.ABORTED, "a newer stream of this node has connected")


@dataclass(frozen=True, slots=True)
class Caller:
    """The peer of a stream: its node and token as the API server confirmed them."""

    node: NodeName
    token: str
    number: int


class Stream:
    """A ``ports.Session``. A task writes while messages are queued; the sender never waits.

    ``most`` is the limit of queued messages, ``stamp`` the serialized epoch for each.
    """

    __slots__ = (
        "_context",
        "_most",
        "_queue",
        "_unmoved",
        "_writer",
        "_written",
        "_written_before",
        "bucket",
        "caller",
        "over",
        "review_at",
        "stamp",
        "told_faults",
        "unknown_pods",
    )

    def __init__(
        self,
        context: Context,
        caller: Caller,
        *,
        stamp: bytes,
        most: int,
        bucket: Bucket,
    ) -> None:
        self.caller = caller
        self.bucket = bucket
        self.over: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self.review_at = 0.0
        self.unknown_pods = deferred_messages.UnknownPods()
        self.told_faults = deferred_messages.ToldFaults()
        self._context = context
        self.stamp = stamp
        self._most = most
        self._queue: deque[bytes] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._written = 0
        self._written_before = 0
        self._unmoved = 0

    @property
    def node(self) -> NodeName:
        """Return the node that the token names."""
        return self.caller.node

    @property
    def number(self) -> int:
        """Return the number of this stream in this process."""
        return self.caller.number

    async def read(self) -> Any:
        """Return the next message's bytes, or ``grpc.aio.EOF``. Raises grpc.aio.BaseError if the call is over."""
        return await self._context.read()

    def send(self, message: pb.HubMessage | bytes) -> bool:
        """See ``ports.Session.send``."""
        if self.over.done():
            return False
        if len(self._queue) >= self._most:
            self.end(TOO_SLOW)
            return False
        data = message if isinstance(message, bytes) else message.SerializeToString()
        self._queue.append(data + self.stamp)
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write(), name="hub-write")
        return True

    def end(self, ending: Ending) -> None:
        """End the stream with this status unless it is over already. Queued messages are lost."""
        if not self.over.done():
            self.over.set_result(ending)
            self._queue.clear()

    def unmoved(self) -> int:
        """Return at how many checks in a row, including this one, the same message was still being written.

        Checks are counted instead of seconds: if this process itself stalls, that is not the agent's fault.
        """
        if self._writer is None or self._written != self._written_before:
            self._written_before = self._written
            self._unmoved = 0
        else:
            self._unmoved += 1
        return self._unmoved

    async def _write(self) -> None:
        try:
            while self._queue:
                await self._context.write(self._queue.popleft())
                self._written += 1
        except grpc.aio.BaseError:
            self._queue.clear()  # the stream has ended; its handler is notified, too
        finally:
            self._writer = None
