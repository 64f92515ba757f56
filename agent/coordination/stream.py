"""One stream to one replica of the hub, from Hello to its end."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import grpc
import grpc.aio
from google.protobuf.message import Message

from agent.coordination import wire
from agent.coordination.inbox import StaleLeaderError
from agent.coordination.metrics import OUT, HubMetrics
from agent.coordination.outbox import Outbox
from agent.coordination.troubles import TroubleError
from common.pb.coordination.v1 import coordination_pb2 as pb

_METHOD: Final = f"/{pb.DESCRIPTOR.services_by_name['Coordination'].full_name}/Connect"


@dataclass(frozen=True, slots=True)
class Heard:
    """What came in; None where it was no message of this protocol."""

    message: pb.HubMessage | None


Call = grpc.aio.StreamStreamCall[Message, Heard]
Take = Callable[[pb.HubMessage | None], Awaitable[bool]]


def call(channel: grpc.aio.Channel, *, token: str) -> Call:
    """Begin a stream. The token goes with the call, over TLS only."""
    method = channel.stream_stream(
        _METHOD,
        request_serializer=pb.AgentMessage.SerializeToString,
        response_deserializer=lambda data: Heard(wire.deserialized(data)),
    )
    return method(metadata=(("authorization", f"Bearer {token}"),))


async def converse(stream: Call, *, outbox: Outbox, take: Take, welcome_within: float, metrics: HubMetrics) -> None:
    """Say what there is to say and hear what is said, until the stream ends in peace.

    ``take`` returns True for a Welcome. Raises AioRpcError when the hub, or what is in between, breaks the stream;
    TimeoutError when no Welcome comes within that many seconds; and what ``take`` raises.
    """
    outbox.open()
    try:
        async with asyncio.TaskGroup() as tasks:
            saying = tasks.create_task(_say(stream, outbox, metrics), name="hub-say")
            fault = await _hear(stream, take, welcome_within=welcome_within)
            saying.cancel()
        if fault is not None:
            raise fault
    finally:
        outbox.close()
        stream.cancel()


async def _say(stream: Call, outbox: Outbox, metrics: HubMetrics) -> None:
    """Write until all is said, or nobody reads any more: of that the reader hears."""
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        while (message := await outbox.next()) is not None:
            await stream.write(message)
            metrics.messages.labels(OUT, message.WhichOneof("body")).inc()
        await stream.done_writing()


async def _hear(stream: Call, take: Take, *, welcome_within: float) -> Exception | None:
    """Take messages in until the stream ends; return what ended it, None when it ended in peace."""
    try:
        async with asyncio.timeout(welcome_within) as patience:
            while isinstance(heard := await stream.read(), Heard):
                if await take(heard.message):
                    patience.reschedule(None)
    except (grpc.aio.AioRpcError, TimeoutError, StaleLeaderError, TroubleError) as error:
        return error
    return None
