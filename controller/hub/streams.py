"""One agent's stream: what waits to be sent, who sends it, and how it ends."""

import asyncio
import enum
from collections import deque
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from common.pb.coordination.v1 import coordination_pb2 as pb
from controller.hub import waiting
from controller.hub.rates import Bucket
from controller.model.members import NodeName

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
    """How a stream ends: the status that the agent is given."""

    why: Why
    code: grpc.StatusCode
    text: str


TOO_SLOW = Ending(Why.SLOW, grpc.StatusCode.UNAVAILABLE, "too slow a reader: connect again, say Hello")
REPLACED = Ending(Why.REPLACED, grpc.StatusCode.ABORTED, "a newer stream of this node has come")


@dataclass(frozen=True, slots=True)
class Caller:
    """Whom a stream is with: its node and token as the API server confirmed them, and its process."""

    node: NodeName
    token: str
    instance: str
    number: int


class Stream:
    """A ``ports.Session``. One task writes, and only while something waits; whoever sends never does.

    ``most`` is how many messages may wait, ``stamp`` what puts the epoch on each.
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
        self.unknown_pods = waiting.UnknownPods()
        self.told_faults = waiting.ToldFaults()
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
        """The node that the token names."""
        return self.caller.node

    @property
    def instance(self) -> str:
        """The agent's process, by its own word."""
        return self.caller.instance

    @property
    def number(self) -> int:
        """Which stream of this process it is."""
        return self.caller.number

    async def read(self) -> Any:
        """Return the next message's bytes, or ``grpc.aio.EOF``. Raises grpc.aio.BaseError when the call is over."""
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
        """Have the stream end so, unless it is over already. What waits to be sent is lost."""
        if not self.over.done():
            self.over.set_result(ending)
            self._queue.clear()

    def unmoved(self) -> int:
        """Return at how many looks in a row, this one included, the same message was still being written.

        Looks, not seconds: when this process itself stands still, that is no agent's fault.
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
            self._queue.clear()  # the stream has ended, as its handler is told, too
        finally:
            self._writer = None
