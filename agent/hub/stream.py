"""Run one stream to one replica of the hub, from Hello to its end."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import grpc
import grpc.aio
from google.protobuf.message import Message

from kubemend.agent.hub import wire
from kubemend.agent.hub.errors import HubError
from kubemend.agent.hub.inbox import StaleLeaderError
from kubemend.agent.hub.metrics import OUT, HubMetrics
from kubemend.agent.hub.outbox import Outbox
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb

_METHOD: Final = f"/{pb.DESCRIPTOR.services_by_name['Coordination'].full_name}/Connect"


@dataclass(frozen=True, slots=True)
class Received:
    """A received message; None if the bytes were no message of this protocol."""

    message: pb.HubMessage | None


Call = grpc.aio.StreamStreamCall[Message, Received]
OnMessage = Callable[[pb.HubMessage | None], Awaitable[bool]]


def call(channel: grpc.aio.Channel, *, token: str) -> Call:
    """Start a stream. The token is sent with the call, over TLS only."""
    method = channel.stream_stream(
        _METHOD,
        request_serializer=pb.AgentMessage.SerializeToString,
        response_deserializer=lambda data: Received(wire.deserialized(data)),
    )
    return method(metadata=(("authorization", f"Bearer {token}"),))


async def run_stream(
    stream: Call, *, outbox: Outbox, on_message: OnMessage, welcome_within: float, metrics: HubMetrics
) -> None:
    """Send and receive messages until the stream ends normally.

    ``on_message`` returns True for a Welcome. Raises AioRpcError if the hub or the network breaks the stream;
    TimeoutError if no Welcome comes within ``welcome_within`` seconds; and what ``on_message`` raises.
    """
    outbox.open()
    try:
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(_send_loop(stream, outbox, metrics), name="hub-send")
            fault = await _receive_loop(stream, on_message, welcome_within=welcome_within)
            sending.cancel()
        if fault is not None:
            raise fault
    finally:
        outbox.close()
        stream.cancel()


async def _send_loop(stream: Call, outbox: Outbox, metrics: HubMetrics) -> None:
    """Send until the outbox closes or the peer stops reading; the receive loop reports the error."""
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        while (message := await outbox.next()) is not None:
            await stream.write(message)
            metrics.messages.labels(OUT, message.WhichOneof("body")).inc()
        await stream.done_writing()


async def _receive_loop(stream: Call, on_message: OnMessage, *, welcome_within: float) -> Exception | None:
    """Receive messages until the stream ends; return the error that ended it, None if it ended normally."""
    try:
        async with asyncio.timeout(welcome_within) as deadline:
            while isinstance(received := await stream.read(), Received):
                if await on_message(received.message):
                    deadline.reschedule(None)
    except (grpc.aio.AioRpcError, TimeoutError, StaleLeaderError, HubError) as error:
        return error
    return None
