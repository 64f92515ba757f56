"""Fake a replica of the controller's hub with scripted messages: a real gRPC server with TLS, on a port of its own."""

import asyncio
from typing import Any, Final, Self

import grpc
import grpc.aio

from hack.devnode import loopback
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from tests.fakes.certificates import Authority

NAME: Final = "kubemend-hub.kubemend.svc"
SECONDS: Final = 60.0
_STANDS_BY: Final = "this replica does not lead. Connect to another one"


class FakeStream:
    """One agent's stream, on the hub's side."""

    def __init__(self, context: "grpc.aio.ServicerContext[Any, Any]", *, epoch: int) -> None:
        metadata = dict(context.invocation_metadata() or ())
        self.authorization = metadata.get("authorization")
        self.epoch = epoch
        self.heard: asyncio.Queue[pb.AgentMessage] = asyncio.Queue()
        self.over = asyncio.Event()
        self._context = context
        self._reads = asyncio.Event()
        self._reads.set()
        self._end: tuple[grpc.StatusCode, str] | None = None

    async def next(self, body: str) -> Any:
        """Return the agent's next message of that kind; earlier others are dropped."""
        async with asyncio.timeout(SECONDS):
            while True:
                message = await self.heard.get()
                if message.WhichOneof("body") == body:
                    return getattr(message, body)

    async def each(self, *bodies: str) -> list[Any]:
        """Return the agent's next message of each kind, in any order."""
        found: dict[str, Any] = {}
        async with asyncio.timeout(SECONDS):
            while len(found) < len(bodies):
                message = await self.heard.get()
                body = message.WhichOneof("body")
                if body in bodies:
                    found.setdefault(body, getattr(message, body))
        return [found[body] for body in bodies]

    async def welcomed(self, *, leader: str = "replica-0") -> pb.Hello:
        """Receive the Hello and answer it."""
        hello: pb.Hello = await self.next("hello")
        await self.say(welcome=pb.Welcome(leader=leader))
        return hello

    async def say(self, *, epoch: int | None = None, **body: Any) -> None:
        """Send a message, as the leader of the hub's epoch or another."""
        await self.raw(pb.HubMessage(epoch=self.epoch if epoch is None else epoch, **body).SerializeToString())

    async def raw(self, data: bytes) -> None:
        """Send bytes that may not be a valid message."""
        await self._context.write(data)

    def stop_reading(self) -> None:
        """Receive nothing any more, not even data in flight."""
        self._reads.clear()

    def read_on(self) -> None:
        """Receive again."""
        self._reads.set()

    def end(self, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE, details: str = "going away") -> None:
        """End the stream."""
        self._end = (code, details)
        self.over.set()

    async def serve(self) -> None:
        """Receive the agent's messages until either side ends the stream."""
        reading = asyncio.create_task(self._read(), name="fake hub reads")
        try:
            await self.over.wait()
        finally:
            reading.cancel()
            await asyncio.wait({reading})
        if self._end is not None:
            await self._context.abort(*self._end)

    async def _read(self) -> None:
        while True:
            await self._reads.wait()
            message = await self._context.read()
            if not isinstance(message, pb.AgentMessage):
                self.over.set()
                return
            self.heard.put_nowait(message)


class FakeHub:
    """``async with``; ``stop`` breaks all streams, as a death does, and ``start`` serves at the same port again."""

    def __init__(self, authority: Authority, *, epoch: int = 1, name: str = NAME, port: int | None = None) -> None:
        self.epoch = epoch
        self.port = port if port is not None else loopback.free_port()
        self.stands_by = False
        self.refused = 0
        self._credentials = authority.server(name)
        self._streams: asyncio.Queue[FakeStream] = asyncio.Queue()
        self._server: grpc.aio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def address(self) -> tuple[str, int]:
        """Return its address."""
        return "127.0.0.1", self.port

    async def start(self) -> None:
        """Serve."""
        # Without a measured window an agent whose hub does not read soon notices it.
        self._server = grpc.aio.server(options=[("grpc.http2.bdp_probe", 0), ("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((self._handlers(),))
        self.port = self._server.add_secure_port(f"127.0.0.1:{self.port}", self._credentials)
        await self._server.start()

    async def stop(self) -> None:
        """Break every stream."""
        if self._server is not None:
            await self._server.stop(grace=None)
            self._server = None

    async def stream(self) -> FakeStream:
        """Return the next stream that an agent opens."""
        async with asyncio.timeout(SECONDS):
            return await self._streams.get()

    async def welcomed(self) -> tuple[FakeStream, pb.Hello]:
        """Welcome the next agent; return its stream and its Hello."""
        stream = await self.stream()
        return stream, await stream.welcomed()

    @property
    def unseen(self) -> int:
        """Return how many opened streams have not been requested."""
        return self._streams.qsize()

    def _handlers(self) -> grpc.GenericRpcHandler:
        service = pb.DESCRIPTOR.services_by_name["Coordination"].full_name
        connect = grpc.stream_stream_rpc_method_handler(
            self._connect, request_deserializer=pb.AgentMessage.FromString, response_serializer=bytes
        )
        return grpc.method_handlers_generic_handler(service, {"Connect": connect})

    async def _connect(self, _: object, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
        if self.stands_by:
            self.refused += 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, _STANDS_BY)
        stream = FakeStream(context, epoch=self.epoch)
        self._streams.put_nowait(stream)
        await stream.serve()
