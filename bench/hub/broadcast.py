"""The floor for a round: gRPC sends every stream a message and reads an answer of each, twice.

It does so in the controller's process, on the same server and over the same connections (``bench.hub.served``), but
without a check, a decision or a record.
"""

import asyncio
import struct
from collections.abc import Sequence
from typing import Any, Final

import grpc
import grpc.aio

from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb

_NAME: Final = "kubemend.bench.Broadcast"
PATH: Final = f"/{_NAME}/Connect"
Context = grpc.aio.ServicerContext[Any, Any]
_LENGTH: Final = struct.Struct(">I")


def begin(*messages: bytes) -> bytes:
    """Return the message that has the server broadcast these, each when all have answered the one before."""
    return b"".join(_LENGTH.pack(len(each)) + each for each in messages)


def begun(data: bytes) -> Sequence[bytes]:
    """Return the messages of ``begin``."""
    found = []
    while data:
        (length,) = _LENGTH.unpack_from(data)
        found.append(data[_LENGTH.size : _LENGTH.size + length])
        data = data[_LENGTH.size + length :]
    return found


class Broadcast:
    """Serve the streams. While nothing is under way, any message begins a broadcast; others are answers."""

    def __init__(self) -> None:
        self._calls: list[Context] = []
        self._left: list[bytes] = []
        self._missing = 0
        self._writing: list[asyncio.Task[None]] = []

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler for a server."""
        method: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(self._connect)
        return grpc.method_handlers_generic_handler(_NAME, {"Connect": method})

    async def _connect(self, _: object, context: Context) -> None:
        await context.write(pb.HubMessage(welcome=pb.Welcome()).SerializeToString())
        self._calls.append(context)
        while (data := await context.read()) is not grpc.aio.EOF:
            self._take(data)

    def _take(self, data: bytes) -> None:
        if not self._missing:
            self._left = [*begun(data)]
        else:
            self._missing -= 1
        if self._left and not self._missing:
            message, self._missing = self._left.pop(0), len(self._calls)
            self._writing = [asyncio.ensure_future(_write(call, message)) for call in self._calls]


async def _write(call: Context, message: bytes) -> None:
    await call.write(message)
