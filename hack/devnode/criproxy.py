"""Proxy the runtime's CRI socket: hold, refuse, slow down or lose single calls of its client.

The agent under test, or kubelet (``looks``), gets the proxy's socket instead of the runtime's. All other calls pass
unchanged, byte by byte, with the caller's deadline.
"""

import asyncio
import enum
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Self

import grpc
import grpc.aio
from google.protobuf import message_factory
from google.protobuf.message import Message

from hack.devnode import sockets
from kubemend.common import grpcio
from kubemend.common.pb.runtime.v1 import api_pb2

_SERVICE = api_pb2.DESCRIPTOR.services_by_name["RuntimeService"]
_STREAMS = frozenset(name for name, method in _SERVICE.methods_by_name.items() if method.server_streaming)
_OPTIONS = (
    ("grpc.max_receive_message_length", grpcio.MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", grpcio.MAX_MESSAGE_BYTES),
)

_Context = grpc.aio.ServicerContext[bytes, bytes]


class When(enum.Enum):
    """``BEFORE``: the runtime has not received the call; ``AFTER``: it was carried out, and the caller waits."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class Call:
    """Describe one call. ``answer`` is available once the runtime has given one."""

    method: str
    body: bytes
    answer_body: bytes | None = None

    @property
    def request(self) -> Any:
        """Return the request as a message."""
        return _message(_SERVICE.methods_by_name[self.method].input_type, self.body)

    @property
    def answer(self) -> Any:
        """Return the answer as a message."""
        assert self.answer_body is not None, "the runtime has not answered yet"
        return _message(_SERVICE.methods_by_name[self.method].output_type, self.answer_body)


class RefusedError(Exception):
    """Raised by a hook: the caller gets this status, whether the call was carried out (AFTER) or not (BEFORE)."""

    def __init__(self, code: grpc.StatusCode, details: str = "scripted") -> None:
        super().__init__(f"{code.name}: {details}")
        self.code = code
        self.details = details


Hook = Callable[[Call, When], Awaitable[None]]
"""Called for every call, before and after. It may wait, and it may raise RefusedError."""


@dataclass(slots=True)
class Gate:
    """A hook that holds the first call that ``matches`` until the gate is opened."""

    matches: Callable[[Call], bool]
    when: When = When.BEFORE
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    _opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, call: Call, when: When) -> None:
        if when is self.when and not self.reached.is_set() and self.matches(call):
            self.reached.set()
            await self._opened.wait()

    def open(self) -> None:
        """Let the call continue."""
        self._opened.set()


@dataclass(slots=True)
class Fault:
    """A hook that refuses the next ``times`` calls of a method; ``AFTER`` loses the answer of a call that was carried
    out.
    """

    method: str
    code: grpc.StatusCode
    when: When = When.BEFORE
    times: int = 1

    async def __call__(self, call: Call, when: When) -> None:
        if self.times > 0 and when is self.when and call.method == self.method:
            self.times -= 1
            raise RefusedError(self.code)


@dataclass(frozen=True, slots=True)
class Slow:
    """A hook that delays every call of the methods by a number of seconds."""

    methods: frozenset[str]
    seconds: float

    async def __call__(self, call: Call, when: When) -> None:
        if when is When.BEFORE and call.method in self.methods:
            await asyncio.sleep(self.seconds)


class CriProxy:
    """Serve ``socket`` for the length of the ``async with`` block. ``hooks`` may be changed at any time.

    ``in_flight`` counts, by method, the calls that have not been answered yet.
    """

    def __init__(self, *, upstream: Path, socket: Path) -> None:
        self.socket = socket
        self.hooks: list[Hook] = []
        self.in_flight: Counter[str] = Counter()
        self._upstream = upstream
        self._channel: grpc.aio.Channel | None = None
        self._server: grpc.aio.Server | None = None

    async def __aenter__(self) -> Self:
        sockets.clear_way(self.socket)
        self._channel = grpcio.unix_channel(str(self._upstream))
        self._server = grpc.aio.server(options=_OPTIONS)
        self._server.add_generic_rpc_handlers((_Forward(self),))
        self._server.add_insecure_port(f"unix://{self.socket}")
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        assert self._channel is not None
        await self._server.stop(grace=None)
        await self._channel.close()
        sockets.clear_way(self.socket)

    async def forward(self, path: str, body: bytes, context: _Context) -> bytes:
        """Pass one call on and its answer back."""
        assert self._channel is not None
        call = Call(method=_method(path), body=body)
        self.in_flight[call.method] += 1
        try:
            await self._hook(call, When.BEFORE)
            pass_on: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(path)
            answer = await pass_on(body, timeout=context.time_remaining())
            await self._hook(Call(method=call.method, body=body, answer_body=answer), When.AFTER)
        except (RefusedError, grpc.aio.AioRpcError) as error:
            await _refuse(error, context)
        finally:
            self.in_flight[call.method] -= 1
        return answer

    async def forward_stream(self, path: str, body: bytes, context: _Context) -> AsyncIterator[bytes]:
        """Pass one call on and its answers back as they come."""
        assert self._channel is not None
        try:
            await self._hook(Call(method=_method(path), body=body), When.BEFORE)
            pass_on: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(path)
            async for answer in pass_on(body):
                yield answer
        except (RefusedError, grpc.aio.AioRpcError) as error:
            await _refuse(error, context)

    async def _hook(self, call: Call, when: When) -> None:
        for hook in tuple(self.hooks):
            await hook(call, when)


class _Forward(grpc.GenericRpcHandler):
    """Accept every call; without (de)serializers, gRPC hands the bytes through."""

    def __init__(self, proxy: CriProxy) -> None:
        self._proxy = proxy

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any]":
        path: str = handler_call_details.method

        async def unary(body: bytes, context: _Context) -> bytes:
            return await self._proxy.forward(path, body, context)

        async def stream(body: bytes, context: _Context) -> AsyncIterator[bytes]:
            async for answer in self._proxy.forward_stream(path, body, context):
                yield answer

        if _method(path) in _STREAMS:
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(unary)


async def _refuse(error: RefusedError | grpc.aio.AioRpcError, context: _Context) -> NoReturn:
    if isinstance(error, RefusedError):
        await context.abort(error.code, error.details)
    await context.abort(error.code(), error.details() or "")


def _method(path: str) -> str:
    return path.rpartition("/")[2]


def _message(kind: Any, body: bytes) -> Message:
    message = message_factory.GetMessageClass(kind)()
    message.ParseFromString(body)
    return message
