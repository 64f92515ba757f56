"""One agent's stream: its send queue, its writer task, messages about unknown pods, and how it ends."""

import asyncio
import enum
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio

from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.hub import pod_authorization
from kubemend.controller.hub.limits import Bucket
from kubemend.controller.model.members import NodeName

MOST_DEFERRED: Final = 256
DEFERRED_SECONDS: Final = 600.0
"""Seconds after which a message about an unknown pod is about one that has been deleted: its loss is none."""
MOST_FAULTS: Final = 256


class UnknownPods:
    """Messages that wait until the pod Informer has their pod: the newest of each kind and pod, in order of arrival."""

    __slots__ = ("_messages",)

    def __init__(self) -> None:
        self._messages: OrderedDict[tuple[str, str], tuple[pb.AgentMessage, float]] = OrderedDict()

    def keep(self, message: pb.AgentMessage, *, now: float) -> int:
        """Keep a message; return how many were lost for it (0 or 1). ``now`` is monotonic."""
        key = (pod_authorization.subject(message), _topic(message))
        self._messages.pop(key, None)
        self._messages[key] = message, now
        if len(self._messages) <= MOST_DEFERRED:
            return 0
        _, (_, kept_at) = self._messages.popitem(last=False)
        return int(now - kept_at < DEFERRED_SECONDS)

    def pop(self, uid: str) -> list[pb.AgentMessage]:
        """Return and forget the messages about a pod, oldest first."""
        if not self._messages:
            return []
        return [self._messages.pop(key)[0] for key in [key for key in self._messages if key[0] == uid]]

    def clear(self) -> None:
        """Forget everything: a new Hello replaces all earlier messages."""
        self._messages.clear()


class ReportedFaults:
    """Recognize a repeated fault. An agent repeats one only after a Hello (coordination/v1)."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: OrderedDict[str, None] = OrderedDict()

    def is_new(self, fault: str) -> bool:
        """Return whether this id is the first of its kind since the last Hello, and remember it."""
        if fault in self._ids:
            return False
        self._ids[fault] = None
        if len(self._ids) > MOST_FAULTS:
            self._ids.popitem(last=False)
        return True

    def clear(self) -> None:
        """Forget all ids, because of a Hello."""
        self._ids.clear()


def _topic(message: pb.AgentMessage) -> str:
    """Return a key for the messages that replace each other."""
    return f"fault {message.fault.id}" if message.HasField("fault") else f"result {message.result.round}"


Context = grpc.aio.ServicerContext[Any, Any]
"""A call's context; requests and responses are bytes here."""


class EndReason(enum.Enum):
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

    reason: EndReason
    code: grpc.StatusCode
    text: str


TOO_SLOW = Ending(
    EndReason.SLOW, grpc.StatusCode.UNAVAILABLE, "the agent reads too slowly. Connect again and send Hello"
)
REPLACED = Ending(EndReason.REPLACED, grpc.StatusCode.ABORTED, "a newer stream of this node has connected")


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
        "reported_faults",
        "review_at",
        "stamp",
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
        self.unknown_pods = UnknownPods()
        self.reported_faults = ReportedFaults()
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
