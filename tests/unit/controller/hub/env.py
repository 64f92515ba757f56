"""A hub on a real port with TLS, a listener that records its calls, and agents driven by the test."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
from prometheus_client import CollectorRegistry

from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.certificates import making
from kubemend.controller.certificates.plan import Periods
from kubemend.controller.hub.identity import Identities
from kubemend.controller.hub.limits import Caps
from kubemend.controller.hub.metrics import HubMetrics
from kubemend.controller.hub.ports import Identity, Session
from kubemend.controller.hub.refusals import Reason, RefusedError
from kubemend.controller.hub.server import Hub, HubOptions
from kubemend.controller.hub.service import Coordination, Rules
from kubemend.controller.model.members import NodeName, PodUid
from tests.unit.controller.hub import words

SECONDS = 60.0
_CONNECT = "/kubemend.coordination.v1.Coordination/Connect"
_NOW = 1_800_000_000.0
_CA = making.make_ca(now=_NOW - 86400 * 400, periods=Periods(ca=86400 * 3650))
_SERVER = making.issue_server(
    _CA, names=frozenset({"127.0.0.1"}), now=_NOW - 86400 * 400, periods=Periods(server=86400 * 3650)
)


_OF_ITS_OWN = (("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0))
"""Options of an agent's connection, which it shares with no other. What gRPC buffers of messages that are not read does
not grow with the speed of the connection."""


class Tokens:
    """Token reviews of the API server: ``token-of-NODE`` is valid unless it is in ``revoked``."""

    def __init__(self) -> None:
        self.revoked: set[str] = set()
        self.asked: asyncio.Queue[str] = asyncio.Queue()
        self.answering = asyncio.Event()
        self.answering.set()

    async def review(self, token: str) -> Identity:
        self.asked.put_nowait(token)
        await self.answering.wait()
        if not token.startswith("token-of-") or token in self.revoked:
            raise RefusedError(Reason.BAD_TOKEN, "the token is not valid")
        return Identity(user="agent", node=NodeName(token.removeprefix("token-of-")))


class Engine:
    """A listener that records its calls, in order."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, Any]] = []
        self.sessions: dict[NodeName, Session] = {}
        self.broken = False
        self._changed = asyncio.Event()

    def connected(self, session: Session) -> None:
        assert session.node not in self.sessions
        self.sessions[session.node] = session
        self._add(session, "connected", session.number)

    def hello(self, session: Session, hello: pb.Hello) -> None:
        assert self.sessions[session.node] is session
        self._add(session, "hello", hello)

    def received(self, session: Session, message: pb.AgentMessage) -> None:
        assert self.sessions[session.node] is session
        if self.broken:
            raise ZeroDivisionError
        self._add(session, "message", message)

    def disconnected(self, session: Session) -> None:
        assert self.sessions.pop(session.node) is session
        self._add(session, "gone", session.number)

    def of(self, kind: str) -> list[Any]:
        """Return the recorded calls of one kind."""
        return [what for each, _, what in self.heard if each == kind]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a recorded call makes the condition true."""
        async with asyncio.timeout(SECONDS):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def _add(self, session: Session, kind: str, what: object) -> None:
        self.heard.append((kind, session.node, what))
        self._changed.set()


class Agent:
    """One agent's stream on its own connection."""

    def __init__(self, channel: grpc.aio.Channel, *, token: str | None) -> None:
        metadata = (("authorization", f"Bearer {token}"),) if token is not None else ()
        connect: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(_CONNECT)
        self.call = connect(metadata=metadata)

    async def say(self, message: pb.AgentMessage | bytes) -> None:
        """Send a message; on an ended stream it is dropped, and ``ended`` has the status."""
        async with asyncio.timeout(SECONDS):
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await self.call.write(message if isinstance(message, bytes) else message.SerializeToString())

    async def hear(self) -> pb.HubMessage:
        """Return the hub's next message. Raises AioRpcError at the end."""
        async with asyncio.timeout(SECONDS):
            data = await self.call.read()
        assert isinstance(data, bytes)
        return pb.HubMessage.FromString(data)

    async def ended(self) -> tuple[grpc.StatusCode, str]:
        """Wait for the stream's end, skipping messages before it; return its status."""
        async with asyncio.timeout(SECONDS):
            with contextlib.suppress(grpc.aio.AioRpcError):
                while await self.call.read() is not grpc.aio.EOF:
                    pass
            return await self.call.code(), await self.call.details()


class HubServiceEnv:
    """The environment of one test. ``pods`` maps each pod to its node."""

    def __init__(
        self, *, rules: Rules | None = None, options: HubOptions | None = None, caps: Caps | None = None
    ) -> None:
        self.engine = Engine()
        self.tokens = Tokens()
        self.pods: dict[PodUid, NodeName] = {PodUid("uid-1"): NodeName("node-1"), PodUid("uid-2"): NodeName("node-2")}
        self.registry = CollectorRegistry()
        self.service = Coordination(
            name="hub-0",
            listener=self.engine,
            pods=self,
            identities=Identities(self.tokens),
            metrics=HubMetrics(self.registry),
            rules=rules,
            caps=caps,
        )
        self.hub = Hub(self.service, options=options or HubOptions(address="127.0.0.1:0"))
        self.bundle = _CA.certificate_pem.decode()
        self._stack = contextlib.AsyncExitStack()
        self.port = 0

    def node_of(self, uid: PodUid) -> NodeName | None:
        return self.pods.get(uid)

    async def agent(self, node: str = "node-1", *, token: str | None = "") -> Agent:
        """Open a stream; ``token`` "" is the node's own."""
        channel = await self._stack.enter_async_context(
            grpc.aio.secure_channel(
                f"127.0.0.1:{self.port}",
                grpc.ssl_channel_credentials(_CA.certificate_pem),
                options=_OF_ITS_OWN,
            )
        )
        return Agent(channel, token=f"token-of-{node}" if token == "" else token)

    async def session(self, node: str = "node-1", *uids: str) -> tuple[Agent, Session]:
        """Return a connected agent, and the hub's side of its session."""
        agent = await self.agent(node)
        await agent.say(words.hello(*uids, node=node))
        assert (await agent.hear()).welcome.leader == "hub-0"
        return agent, self.engine.sessions[NodeName(node)]

    def counted(self, metric: str = "kubemend_hub_refused_total") -> Counter[str]:
        """Return counted values by reason."""
        found: Counter[str] = Counter()
        for family in self.registry.collect():
            for sample in family.samples:
                if sample.name == metric and sample.value:
                    found[sample.labels["reason"]] = int(sample.value)
        return found

    @contextlib.asynccontextmanager
    async def running(self, *, epoch: int | None = 7) -> AsyncIterator["HubServiceEnv"]:
        """Serve, and lead unless ``epoch`` is None."""
        credentials = grpc.ssl_server_credentials([(_SERVER.key_pem, _SERVER.certificate_pem)])
        self.port = await self.hub.start(credentials)
        if epoch is not None:
            self.hub.lead(epoch)
        running = asyncio.create_task(self.hub.run())
        try:
            async with self._stack:
                yield self
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await self.hub.stop(grace=0.5)
