"""``python -m bench.faults.hostile``: a hostile client of the hub.

One JSON line on stdin has the hub's address and the stolen credentials; it attacks in every way it knows, repeatedly,
until stdin ends, and prints how often.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import secrets
import socket
import ssl
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Self

import grpc
import grpc.aio

from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb

_METHOD: Final = "/kubemend.coordination.v1.Coordination/Connect"
_OVERSIZED: Final = 2 * 2**20
_REPLAYS: Final = 100
_FLOOD: Final = 1000
_LONG: Final = "x" * 8000
"""The maximum length of a text for people: a long message counts for several in the hub's limit of messages a second.
"""

_SECONDS: Final = 15.0
_SILENCE: Final = 3.0
_PAUSE: Final = 0.01
_HELD_OPEN: Final = 1.0
"""Silent connections are a burden only while they are open."""

Call = grpc.aio.StreamStreamCall[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Booty:
    """Describe the hub, and what has been stolen: a node's token.

    ``own`` and ``foreign`` are pods, by UID, of that node and of another one; ``gang`` is the foreign pod's. ``host``
    is the hub's as this client reaches it: from an address that is not the agents'.
    """

    host: str
    port: int
    bundle: str
    name: str
    token: str
    node: str
    own: str
    foreign: str
    gang: str
    connections: int

    @classmethod
    def of(cls, line: str) -> Self:
        """Parse the result of ``line``."""
        return cls(**json.loads(line))

    def line(self) -> str:
        """Format it as a line."""
        return json.dumps(dataclasses.asdict(self)) + "\n"


class Client:
    """Attack, and count the attacks by name."""

    def __init__(self, booty: Booty) -> None:
        self.attacks: Counter[str] = Counter()
        self._booty = booty
        self._ids = itertools.count()

    async def run(self) -> None:
        """Attack until cancelled: with the stolen token first, for which the other attacks leave little room."""
        await self._as_the_node()
        ways: Sequence[Callable[[], Awaitable[None]]] = (
            self._without_token, self._with_a_guess, self._with_the_token, self._connect_only,
        )  # fmt: skip
        await asyncio.gather(*(self._again_and_again(way) for way in ways))

    async def _again_and_again(self, way: Callable[[], Awaitable[None]]) -> None:
        while True:
            self.attacks[way.__name__.strip("_")] += 1
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, OSError, TimeoutError):
                await way()
            await asyncio.sleep(_PAUSE)

    async def _without_token(self) -> None:
        await self._say(token=None, messages=[self._hello()])

    async def _with_a_guess(self) -> None:
        await self._say(token=secrets.token_hex(), messages=[self._hello()])

    async def _with_the_token(self) -> None:
        """Misuse the token with messages, then silently: at the same time, one would take the node's few streams from
        the other.
        """
        await self._as_the_node()
        await self._stay_silent()

    async def _as_the_node(self) -> None:
        """Misuse the stolen token, in one way after another."""
        booty = self._booty
        hello, fault = self._hello(), self._fault
        for messages in (
            [pb.AgentMessage(hello=pb.Hello(protocol=1, node="another")).SerializeToString()],
            [secrets.token_bytes(64)],
            [hello, secrets.token_bytes(64)],
            [hello, hello + bytes(_OVERSIZED)],
            [hello, *[fault(booty.foreign, "foreign")] * _REPLAYS],
            [hello, *[fault(booty.own, "replayed")] * _REPLAYS],
            [hello, *(fault(booty.own, f"f-{next(self._ids)}", _LONG) for _ in range(_FLOOD))],
            [hello, self._result(booty.foreign)],
        ):
            self.attacks["messages"] += len(messages)
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
                await self._say(token=booty.token, messages=messages)

    async def _connect_only(self) -> None:
        """Open connections, half of them with TLS, and send nothing."""
        trusting = ssl.create_default_context(cadata=self._booty.bundle)
        trusting.set_alpn_protocols(["h2"])
        with contextlib.ExitStack() as opened:
            sockets = []
            for number in range(self._booty.connections):
                family = socket.AF_INET6 if ":" in self._booty.host else socket.AF_INET
                plain = opened.enter_context(socket.socket(family))
                plain.settimeout(0)
                plain.connect_ex((self._booty.host, self._booty.port))
                sockets.append(plain)
                if number % 20 == 0:
                    await asyncio.sleep(_PAUSE)
            self.attacks["connections"] += len(sockets)
            await asyncio.sleep(_HELD_OPEN)
            for plain in sockets[::2]:
                with contextlib.suppress(OSError):  # SSLWantReadError is one: nothing is read
                    made = trusting.wrap_socket(plain, server_hostname=self._booty.name, do_handshake_on_connect=False)
                    opened.enter_context(made).do_handshake()
            await asyncio.sleep(_HELD_OPEN)

    async def _stay_silent(self) -> None:
        """Begin streams with the stolen token and never send Hello."""
        async with contextlib.AsyncExitStack() as opened:
            for _ in range(self._booty.connections):
                call = await opened.enter_async_context(self._call(self._booty.token))
                self.attacks["silent_streams"] += 1
                with contextlib.suppress(grpc.aio.AioRpcError):  # refused: the next one
                    await call.wait_for_connection()
            await asyncio.sleep(_SILENCE)

    async def _say(self, *, token: str | None, messages: Sequence[bytes]) -> None:
        """Send all messages on a stream of its own, and wait for that stream's end."""
        async with asyncio.timeout(_SECONDS), self._call(token) as call:
            for message in messages:
                await call.write(message)
            await call.done_writing()
            while await call.read() is not grpc.aio.EOF:
                pass

    @contextlib.asynccontextmanager
    async def _call(self, token: str | None) -> AsyncIterator[Call]:
        credentials = grpc.ssl_channel_credentials(self._booty.bundle.encode())
        options = [("grpc.ssl_target_name_override", self._booty.name), ("grpc.use_local_subchannel_pool", 1)]
        metadata = (("authorization", f"Bearer {token}"),) if token is not None else ()
        host = f"[{self._booty.host}]" if ":" in self._booty.host else self._booty.host
        async with grpc.aio.secure_channel(f"{host}:{self._booty.port}", credentials, options=options) as channel:
            connect: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(_METHOD)
            call = connect(metadata=metadata)
            try:
                yield call
            finally:
                call.cancel()

    def _hello(self) -> bytes:
        hello = pb.Hello(protocol=1, node=self._booty.node)
        return pb.AgentMessage(hello=hello).SerializeToString()

    def _pod(self, uid: str) -> pb.Pod:
        return pb.Pod(namespace="default", name="stolen", uid=uid)

    def _fault(self, uid: str, name: str, message: str = "") -> bytes:
        fault = pb.Fault(
            id=name,
            pod=self._pod(uid),
            gang=self._booty.gang,
            container="trainer",
            kind=pb.Fault.EXIT,
            code="Exit1",
            message=message,
        )
        return pb.AgentMessage(fault=fault).SerializeToString()

    def _result(self, uid: str) -> bytes:
        result = pb.StepResult(round="default/stolen-1", pod=self._pod(uid), phase=pb.StepResult.STOPPED)
        return pb.AgentMessage(result=result).SerializeToString()


async def _main() -> None:
    loop = asyncio.get_running_loop()
    line = await loop.run_in_executor(None, sys.stdin.readline)
    client = Client(Booty.of(line))
    running = asyncio.create_task(client.run())
    await loop.run_in_executor(None, sys.stdin.read)
    print(json.dumps(client.attacks), flush=True)
    if running.done():
        running.result()  # raises its error
    os._exit(0)  # exit without cleanup: the connections end as they are


if __name__ == "__main__":
    asyncio.run(_main())
