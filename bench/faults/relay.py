"""Relay between agents and the hub, so that each appears to the other to be of another release."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio

from hack.devnode import accounts, controllers
from kubemend.common.kube import client as kube
from kubemend.common.kube import paths
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb

_METHOD: Final = "/kubemend.coordination.v1.Coordination/Connect"
_SECRET: Final = "kubemend-hub-tls"
_SECONDS: Final = 10.0
_NEW_FIELD: Final = b"\xc2\x3e\x03new"  # field 1000, a string: still unknown
_NEW_BODY: Final = b"\x9a\x06\x02\x08\x01"  # field 99, a message: a kind that is still unknown

Message = pb.AgentMessage | pb.HubMessage


@dataclass(frozen=True, slots=True)
class Accent:
    """Define how messages are changed. ``protocol``: the version in Hello and Welcome, None: none (0).

    ``news``: each message has a field that the other side does not know, and messages of an unknown kind are inserted.
    """

    protocol: int | None = None
    news: bool = False

    def of(self, message: Message) -> Iterator[bytes]:
        """Return the messages to pass on for a message."""
        for name in ("hello", "welcome"):
            if message.WhichOneof("body") == name:
                getattr(message, name).protocol = self.protocol or 0
        if not self.news:
            yield message.SerializeToString()
            return
        getattr(message, message.WhichOneof("body") or "").MergeFromString(_NEW_FIELD)
        yield message.SerializeToString() + _NEW_FIELD
        yield (
            pb.HubMessage(epoch=message.epoch).SerializeToString() if isinstance(message, pb.HubMessage) else b""
        ) + (_NEW_BODY)


class Relay:
    """Serve as the hub. ``agents`` and ``hubs`` change the messages of each side; ``passed`` counts messages."""

    def __init__(self, *, hub: str, bundle: bytes, agents: Accent, hubs: Accent) -> None:
        self.port = 0
        self.passed = 0
        self._hub = hub
        self._bundle = bundle
        self._agents = agents
        self._hubs = hubs

    @classmethod
    @contextlib.asynccontextmanager
    async def on(cls, api: kube.KubeClient, *, hub: str, agents: Accent, hubs: Accent) -> "AsyncIterator[Relay]":
        """Serve with the hub's own certificate for the length of the block."""
        secret = (await api.get(f"{paths.collection('secrets', namespace=accounts.NAMESPACE)}/{_SECRET}"))["data"]
        bundle, certificate, key = (base64.b64decode(secret[name]) for name in ("ca.crt", "tls.crt", "tls.key"))
        relay = cls(hub=hub, bundle=bundle, agents=agents, hubs=hubs)
        server = grpc.aio.server()
        handler: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(relay._connect)
        service, _, method = _METHOD.strip("/").partition("/")
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        relay.port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)]))
        await server.start()
        try:
            yield relay
        finally:
            await server.stop(grace=None)

    async def _connect(self, _: object, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        token = dict(context.invocation_metadata() or ())["authorization"]
        credentials = grpc.ssl_channel_credentials(self._bundle)
        options = [("grpc.ssl_target_name_override", controllers.HUB_NAME)]
        async with grpc.aio.secure_channel(self._hub, credentials, options=options) as channel:
            connect: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(_METHOD)
            call = connect(metadata=(("authorization", token),))
            saying = asyncio.create_task(self._say(context, call), name="relay-say")
            try:
                while isinstance(data := await call.read(), bytes):
                    for each in self._hubs.of(pb.HubMessage.FromString(data)):
                        await context.write(each)
                        self.passed += 1
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "")
            finally:
                saying.cancel()
                await asyncio.gather(saying, return_exceptions=True)

    async def _say(
        self,
        context: "grpc.aio.ServicerContext[bytes, bytes]",
        call: "grpc.aio.StreamStreamCall[bytes, bytes]",
    ) -> None:
        while isinstance(data := await context.read(), bytes):
            for each in self._agents.of(pb.AgentMessage.FromString(data)):
                await call.write(each)
                self.passed += 1
        await call.done_writing()
