"""The Coordination service: turn calls into sessions."""

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Never

import grpc
import grpc.aio
import structlog

from kubemend.common import contained
from kubemend.common.coordination import PROTOCOL
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.hub import identity, messages, ports
from kubemend.controller.hub.identity import Identities
from kubemend.controller.hub.limits import Bucket, Caps, Rate
from kubemend.controller.hub.messages import Limits
from kubemend.controller.hub.metrics import HubMetrics
from kubemend.controller.hub.ports import Listener, Pods
from kubemend.controller.hub.receiver import MessageReceiver
from kubemend.controller.hub.refusals import Reason, RefusedError
from kubemend.controller.hub.session_registry import SessionRegistry
from kubemend.controller.hub.streams import Caller, Context, Ending, EndReason, Stream
from kubemend.controller.hub.unauthenticated import Visitors
from kubemend.controller.model.members import NodeName, PodUid

log = structlog.get_logger(__name__)

_NAME: Final = pb.DESCRIPTOR.services_by_name["Coordination"].full_name
_BYTES_OF_A_MESSAGE: Final = 4096
_GOLDEN: Final = 0.6180339887498949
_ENDS_A_STREAM: Final = (RefusedError, grpc.aio.BaseError)
_NOT_LEADING: Final = "this replica does not lead. Connect to another one"


@dataclass(frozen=True, slots=True)
class Rules:
    """Limits of one agent, or of an unauthenticated peer.

    - ``unauthenticated``: peers connected without a Hello, which is due within ``hello_seconds``
    - ``streams_of_node``: calls of one node, including ended ones that it has not read to the end
    - ``waiting``: messages queued for an agent
    - ``rate``: of an agent's messages
    - ``review_seconds``: after these at most its token is reviewed again
    """

    limits: Limits = field(default_factory=Limits)
    rate: Rate = field(default_factory=lambda: Rate(per_second=50, burst=2000))
    unauthenticated: int = 1024
    hello_seconds: float = 10.0
    streams_of_node: int = 4
    waiting: int = 256
    review_seconds: float = 300.0


class Coordination:
    """Handle the calls. All of them are refused until ``lead``."""

    def __init__(
        self,
        *,
        name: str,
        listener: Listener,
        pods: Pods,
        identities: Identities,
        metrics: HubMetrics,
        rules: Rules | None = None,
        caps: Caps | None = None,
    ) -> None:
        self.roster = SessionRegistry(listener, metrics)
        self.visitors = Visitors(caps or Caps(), metrics)
        self._name = name
        self._identities = identities
        self._metrics = metrics
        self._rules = rules or Rules()
        self._receiver = MessageReceiver(listener=listener, pods=pods, metrics=metrics, limits=self._rules.limits)
        self._stamp: bytes | None = None
        self._unauthenticated_peers = 0
        self._calls: Counter[NodeName] = Counter()
        self._numbers = itertools.count(1)

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler for a server. Bytes in, bytes out: messages to send are often serialized already."""
        method: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(self._connect)
        return grpc.method_handlers_generic_handler(_NAME, {"Connect": method})

    def lead(self, epoch: int) -> None:
        """Accept agents from now on. After a later call everything that is sent carries the new epoch."""
        self._stamp = ports.stamp(epoch)
        for stream in self.roster.streams.values():
            stream.stamp = self._stamp

    def stand_by(self) -> None:
        """End all sessions, and refuse new ones."""
        self._stamp = None
        self.roster.end_all(Ending(EndReason.STANDBY, grpc.StatusCode.UNAVAILABLE, _NOT_LEADING))

    def pod_bound(self, uid: PodUid, node: NodeName) -> None:
        """Process its node's earlier messages about a pod, now that it is known to be bound."""
        if (stream := self.roster.streams.get(node)) is not None:
            with self._ending_stream_on_error(stream):
                self._receiver.pod_bound(stream, uid)

    async def review(self, stream: Stream) -> None:
        """Review a living stream's token again; end the stream if the token is no longer valid."""
        stream.review_at = time.monotonic() + self._rules.review_seconds
        try:
            await self._identities.identify(stream.caller.token, fresh=True)
        except RefusedError as error:
            if error.reason is not Reason.REVIEW_FAILED or _is_expired(stream.caller.token):
                self._metrics.refused(error.reason)
                self.roster.end(stream, Ending(EndReason.TOKEN, grpc.StatusCode.UNAUTHENTICATED, str(error)))

    async def _connect(self, _: object, context: Context) -> None:
        with contextlib.ExitStack() as held:
            try:
                ending = await self._run_stream(context, held)
            except RefusedError as error:
                self._metrics.refused(error.reason)
                if error.reason is not Reason.STANDBY:  # every agent of the cluster tries every replica
                    peer = self.visitors.address(context.peer())
                    log.info("hub.refused", peer=peer, reason=error.reason.value, detail=str(error))
                ending = Ending(EndReason.REFUSED, error.code, str(error))
            else:
                self._metrics.ended.labels(ending.reason.value).inc()
            if ending.code is not grpc.StatusCode.OK:
                await _abort(context, ending)

    async def _run_stream(self, context: Context, held: contextlib.ExitStack) -> Ending:
        with self._unauthenticated():
            caller, hello = await self._authenticate(context, held)
        # A call of its own: a status could not follow a first message that the agent never reads.
        await context.send_initial_metadata(())
        return await self._session(self._stream(context, caller), hello)

    async def _authenticate(self, context: Context, held: contextlib.ExitStack) -> tuple[Caller, pb.Hello]:
        """Return the caller and its Hello.

        From its token on, it counts against its node's limit. So the token of one node cannot use up the room for all
        unauthenticated peers by sending no Hello.
        """
        try:
            async with asyncio.timeout(self._rules.hello_seconds):
                token = identity.token_of(context.invocation_metadata() or ())
                caller = await self._identities.identify(token)
                held.enter_context(self._streaming(caller.node))
                held.enter_context(self.visitors.known(context.peer()))
                data = await context.read()
        except TimeoutError as error:
            raise RefusedError(Reason.SILENT, f"no Hello within {self._rules.hello_seconds:g} s") from error
        if data is grpc.aio.EOF:
            raise RefusedError(Reason.SILENT, "the stream ended without a Hello")
        hello = messages.hello_of(messages.parse(data, limits=self._rules.limits), node=caller.node)
        return Caller(caller.node, token, next(self._numbers)), hello

    async def _session(self, stream: Stream, hello: pb.Hello) -> Ending:
        self.roster.join(stream, pb.HubMessage(welcome=pb.Welcome(leader=self._name, protocol=PROTOCOL)))
        receiving = asyncio.create_task(self._receive_loop(stream, hello), name="hub-receive")
        try:
            return await stream.over
        finally:
            receiving.cancel()
            self.roster.leave(stream)

    async def _receive_loop(self, stream: Stream, hello: pb.Hello) -> None:
        """Pass all messages to the listener until the stream ends or breaks the rules."""
        with self._ending_stream_on_error(stream):
            self._receiver.hello(stream, hello)
            while (data := await stream.read()) is not grpc.aio.EOF and not stream.over.done():
                self._check_rate(stream, data)
                self._receiver.receive(stream, data)
            stream.end(Ending(EndReason.DONE, grpc.StatusCode.OK, ""))

    @contextlib.contextmanager
    def _ending_stream_on_error(self, stream: Stream) -> Iterator[None]:
        """End a stream that breaks the rules or makes the listener fail; nothing else ends with it."""
        try:
            with contained.within(contained.Part.STREAM, stream.node, passing=_ENDS_A_STREAM) as work:
                yield
        except RefusedError as error:
            self._metrics.refused(error.reason)
            log.warning("hub.protocol_violated", node=stream.node, reason=error.reason.value, detail=str(error))
            stream.end(Ending(EndReason.REFUSED, error.code, str(error)))
        except grpc.aio.BaseError:
            stream.end(Ending(EndReason.DONE, grpc.StatusCode.OK, ""))  # the call has ended already
        else:
            if work.failed:
                self._metrics.refused(Reason.INTERNAL)
                stream.end(
                    Ending(EndReason.REFUSED, grpc.StatusCode.INTERNAL, "the hub failed at this message; see its log")
                )

    def _check_rate(self, stream: Stream, data: bytes) -> None:
        """Raise RefusedError if an agent sends too much; long messages count as several."""
        if not stream.bucket.take(1 + len(data) / _BYTES_OF_A_MESSAGE, now=time.monotonic()):
            raise RefusedError(Reason.TOO_OFTEN, f"more than {self._rules.rate.per_second:g} messages a second")

    def _stream(self, context: Context, caller: Caller) -> Stream:
        now = time.monotonic()
        stream = Stream(
            context,
            caller,
            stamp=self._leading(),
            most=self._rules.waiting,
            bucket=Bucket(self._rules.rate, now=now),
        )
        stream.review_at = now + first_review_after(caller.number, seconds=self._rules.review_seconds)
        return stream

    def _leading(self) -> bytes:
        """Return the stamp of the epoch. Raises RefusedError."""
        if self._stamp is None:
            raise RefusedError(Reason.STANDBY, _NOT_LEADING)
        return self._stamp

    @contextlib.contextmanager
    def _unauthenticated(self) -> Iterator[None]:
        self._leading()
        if self._unauthenticated_peers >= self._rules.unauthenticated:
            raise RefusedError(Reason.CROWDED, "too many peers are connecting. Try again")
        self._unauthenticated_peers += 1
        try:
            yield
        finally:
            self._unauthenticated_peers -= 1

    @contextlib.contextmanager
    def _streaming(self, node: NodeName) -> Iterator[None]:
        if self._calls[node] >= self._rules.streams_of_node:
            raise RefusedError(
                Reason.CROWDED, f"node {node} has too many streams that are silent or not read to their ends"
            )
        self._calls[node] += 1
        try:
            yield
        finally:
            self._calls[node] -= 1
            if not self._calls[node]:
                del self._calls[node]


def first_review_after(number: int, *, seconds: float) -> float:
    """Return after how many seconds the token of a stream with this number is first reviewed: half of them, or more.

    All agents connect at once, as after a change of leader. Without a spread their reviews, each a request to the API
    server, would keep the hub from its rounds for seconds, again and again. Multiples of the golden ratio fill the time
    evenly, however many there are.
    """
    return seconds * (0.5 + number * _GOLDEN % 1 / 2)


async def _abort(context: Context, ending: Ending) -> Never:
    """Send a call its status; return when the agent has read everything before it, or has disconnected."""
    try:
        await context.abort(ending.code, ending.text)
    except grpc.aio.InternalError as error:
        raise asyncio.CancelledError from error  # it has disconnected; grpc.aio logs any other error as the handler's


def _is_expired(token: str) -> bool:
    return identity.expiry_of(token) <= time.time()
