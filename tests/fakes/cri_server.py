"""Serve the stand-in runtime on a unix socket: CRI v1 over gRPC, with scripted failures, delays and a call log."""

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Self, cast

import grpc
import grpc.aio
from google.protobuf import message_factory
from google.protobuf.message import Message

from kubemend.common.pb.runtime.v1 import api_pb2
from tests.fakes.cri_runtime import Behaviour, RefusedError, Runtime

_SERVICE = api_pb2.DESCRIPTOR.services_by_name["RuntimeService"]
_EVENTS = "GetContainerEvents"

_Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One received call."""

    method: str
    request: Message


@dataclass(slots=True)
class _Failure:
    code: grpc.StatusCode
    details: str
    times: int
    carried_out: bool


class CriServer:
    """Serve a Runtime. ``async with CriServer(path)``; ``stop`` and ``start`` in between keep the containers.

    Like containerd it queues events while there is no reader, and sends them to the next reader first.
    """

    def __init__(self, socket: str, *, behaviour: Behaviour | None = None) -> None:
        self.endpoint = socket
        self.runtime = Runtime(on_event=self._on_event, behaviour=behaviour if behaviour is not None else Behaviour())
        self.calls: list[Call] = []
        self._failures: dict[str, _Failure] = {}
        self._delays: dict[str, float] = {}
        self._delay_ended: dict[str, asyncio.Event] = {}
        self._unread: collections.deque[api_pb2.ContainerEventResponse] = collections.deque(maxlen=1000)
        self._readers: set[asyncio.Queue[api_pb2.ContainerEventResponse]] = set()
        self._reader_came = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Serve on the socket."""
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((self._handlers(),))
        self._server.add_insecure_port(f"unix://{self.endpoint}")
        await self._server.start()

    async def stop(self) -> None:
        """Break every connection at once, as a dying runtime does."""
        if self._server is not None:
            await self._server.stop(grace=None)
            self._server = None

    def fail(
        self,
        method: str,
        code: grpc.StatusCode,
        *,
        details: str = "scripted",
        times: int = 1,
        carried_out: bool = False,
    ) -> None:
        """Let the next ``times`` calls of a method fail: before they do anything, or when they are ``carried_out``."""
        self._failures[method] = _Failure(code=code, details=details, times=times, carried_out=carried_out)

    def delay(self, method: str, seconds: float) -> None:
        """Delay every call of a method; 0 ends it, also for the calls that wait."""
        self._delays[method] = seconds
        self._delay_ended.pop(method, asyncio.Event()).set()

    def called(self) -> list[str]:
        """Return the methods called so far, in order."""
        return [call.method for call in self.calls]

    async def reader_present(self) -> None:
        """Wait until there is a reader of the event stream."""
        await self._reader_came.wait()

    def _on_event(self, event: api_pb2.ContainerEventResponse) -> None:
        for queue in self._readers:
            queue.put_nowait(event)
        if not self._readers:
            self._unread.append(event)

    def _handlers(self) -> grpc.GenericRpcHandler:
        runtime = self.runtime
        plain: dict[str, Callable[[Any], Message]] = {
            "Version": runtime.version,
            "Status": runtime.status,
            "RunPodSandbox": runtime.run_pod_sandbox,
            "StopPodSandbox": runtime.stop_pod_sandbox,
            "RemovePodSandbox": runtime.remove_pod_sandbox,
            "ListPodSandbox": runtime.list_pod_sandbox,
            "PodSandboxStatus": runtime.pod_sandbox_status,
            "CreateContainer": runtime.create_container,
            "StartContainer": runtime.start_container,
            "StopContainer": runtime.stop_container,
            "RemoveContainer": runtime.remove_container,
            "ListContainers": runtime.list_containers,
            "ContainerStatus": runtime.container_status,
            "ExecSync": runtime.exec_sync,
        }
        handlers = {name: self._unary(name, answer) for name, answer in plain.items()}
        if runtime.behaviour.has_events:
            handlers[_EVENTS] = grpc.unary_stream_rpc_method_handler(cast("Any", self._events), **_serializers(_EVENTS))
        return grpc.method_handlers_generic_handler(_SERVICE.full_name, handlers)

    def _unary(self, method: str, answer: Callable[[Any], Message]) -> "grpc.RpcMethodHandler[Any, Any]":
        async def handle(request: Message, context: _Context) -> Message:
            await self._enter(method, request, context)
            try:
                done = answer(request)
            except RefusedError as refusal:
                await context.abort(refusal.code, refusal.details)
            await self._fail(method, context, carried_out=True)
            return done

        return grpc.unary_unary_rpc_method_handler(cast("Any", handle), **_serializers(method))

    async def _events(self, request: Message, context: _Context) -> AsyncIterator[api_pb2.ContainerEventResponse]:
        await self._enter(_EVENTS, request, context)
        queue: asyncio.Queue[api_pb2.ContainerEventResponse] = asyncio.Queue()
        while self._unread:
            queue.put_nowait(self._unread.popleft())
        self._readers.add(queue)
        self._reader_came.set()
        try:
            while True:
                yield await queue.get()
        finally:
            self._readers.discard(queue)
            if not self._readers:
                self._reader_came.clear()

    async def _enter(self, method: str, request: Message, context: _Context) -> None:
        self.calls.append(Call(method=method, request=request))
        if seconds := self._delays.get(method):
            ended = self._delay_ended.setdefault(method, asyncio.Event())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await ended.wait()
        await self._fail(method, context, carried_out=False)

    async def _fail(self, method: str, context: _Context, *, carried_out: bool) -> None:
        failure = self._failures.get(method)
        if failure is not None and failure.times > 0 and failure.carried_out is carried_out:
            failure.times -= 1
            await context.abort(failure.code, failure.details)


def _serializers(method: str) -> dict[str, Any]:
    descriptor = _SERVICE.methods_by_name[method]
    request = message_factory.GetMessageClass(descriptor.input_type)
    return {
        "request_deserializer": request.FromString,
        "response_serializer": lambda message: message.SerializeToString(),
    }
