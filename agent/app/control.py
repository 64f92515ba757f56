"""The control socket: operators on the node request restarts, follow them, and manage devices. Root only."""

import asyncio
import contextlib
import errno
import json
import socket
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import structlog
from aiohttp import web

from kubemend.agent.actuator import progress
from kubemend.agent.actuator.progress import Decided, Event, Reported
from kubemend.agent.control import client, events, messages
from kubemend.agent.model.workloads import ContainerRef
from kubemend.agent.restart import options, overrides
from kubemend.agent.restart.admission import Decision, Verb
from kubemend.agent.restart.reasons import Reason
from kubemend.agent.restarts.manual_requests import ManualRestarts, NoSuchPodError, PodsUnknownError
from kubemend.common import contained, unix_sockets
from kubemend.common.web import ListenError


class ProgressStream:
    """Accepts events without waiting; if the reader is too slow, the oldest are dropped and counted."""

    def __init__(self, *, capacity: int = 256) -> None:
        self._clock = asyncio.get_running_loop().time
        self._begun = self._clock()
        self._events: deque[tuple[float, Event]] = deque(maxlen=capacity)
        self._missed = 0
        self._last: Decided | Reported | None = None
        self._stopped = False
        self._ended = False
        self._news = asyncio.Event()

    def notify(self, event: Event) -> None:
        """Add an event."""
        self._missed += len(self._events) == self._events.maxlen
        self._events.append((self._clock(), event))
        if isinstance(event, Decided | Reported):
            self._last = event
        self._news.set()

    def end(self, *, stopped: bool) -> None:
        """End the stream; ``stopped`` means that the restart has not ended itself."""
        self._ended, self._stopped = True, stopped
        self._news.set()

    async def read(self, *, silence: float) -> AsyncGenerator[dict[str, Any] | None, None]:
        """Yield the events as objects, each with ``ms`` since the request, until the end.

        None is a sign of life, due after ``silence`` seconds without an event.
        """
        while True:
            try:
                async with asyncio.timeout(silence):
                    await self._news.wait()
            except TimeoutError:
                yield None
                continue
            self._news.clear()
            while self._events:
                if self._missed:
                    missed, self._missed = self._missed, 0
                    yield self._at(self._clock(), events.missed(missed))
                at, event = self._events.popleft()
                yield self._at(at, events.encode(event))
            if self._ended:
                yield self._at(self._clock(), events.done(self._last, stopped=self._stopped))
                return

    def _at(self, time: float, event: dict[str, Any]) -> dict[str, Any]:
        return events.at((time - self._begun) * 1000, event)


log = structlog.get_logger(__name__)

_READ_SECONDS: Final = 5.0
_WRITE_SECONDS: Final = 10.0
_SIGN_OF_LIFE: Final = client.SILENCE / 3
_CLOSING_SECONDS: Final = 2.0  # for the last events to readers when the agent stops

_STATUS: Final[dict[type[Exception], int]] = {
    messages.BadRequestError: 400,
    overrides.AmbiguousTargetError: 400,
    options.BadAnnotationError: 400,
    NoSuchPodError: 404,
    PodsUnknownError: 503,
}


@dataclass(frozen=True, slots=True)
class _Job:
    """A request that has been accepted."""

    asked: overrides.RestartOverrides
    target: ContainerRef
    requester: str
    feed: ProgressStream


class ControlServer:
    """Accepts requests (``async with``) and executes them (``run``), even if their clients disconnect."""

    def __init__(self, *, path: Path, requests: ManualRestarts, more: Sequence[web.RouteDef] = ()) -> None:
        """``more`` are additional routes for the same socket."""
        self._path = path
        self._requests = requests
        self._jobs: asyncio.Queue[_Job] = asyncio.Queue()
        self._closed = False
        application = web.Application(client_max_size=messages.LARGEST)
        application.add_routes([web.post(messages.RESTARTS, self._restart), *more])
        self._runner = web.AppRunner(
            application, access_log=None, handler_cancellation=True, shutdown_timeout=_CLOSING_SECONDS
        )

    async def __aenter__(self) -> Self:
        """Listen. Raises ListenError, also when another agent listens there."""
        await self._runner.setup()
        try:
            await web.SockSite(self._runner, _bound(self._path)).start()
        except ListenError:
            await self._runner.cleanup()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._path.unlink(missing_ok=True)
        await self._runner.cleanup()

    async def run(self) -> None:
        """Execute requests concurrently, indefinitely."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    job = await self._jobs.get()
                    tasks.create_task(self._carry_out(job), name=f"restart {job.target} for {job.requester}")
        finally:
            self.close()
            while not self._jobs.empty():
                self._jobs.get_nowait().feed.end(stopped=True)

    def close(self) -> None:
        """Stop accepting requests."""
        self._closed = True

    async def _carry_out(self, job: _Job) -> None:
        stopped = True
        try:
            with contained.within(contained.Part.REQUEST, job.target) as work:
                await self._requests.carry_out(job.asked, target=job.target, requester=job.requester, followed=job.feed)
            if work.error is not None:
                refusal = Decision(Verb.REFUSE, Reason.INTERNAL, contained.describe(work.error))
                job.feed.notify(progress.Decided(refusal))
            stopped = False
        finally:
            job.feed.end(stopped=stopped)

    async def _restart(self, http: web.Request) -> web.StreamResponse:
        if self._closed:
            return _refusal(503, "the agent is stopping; retry when it is back")
        try:
            async with asyncio.timeout(_READ_SECONDS):
                request = messages.parse(await http.read())
            target = self._requests.target(namespace=request.namespace, pod=request.pod, asked=request.asked)
        except TimeoutError:
            return _refusal(408, f"the request was not received within {_READ_SECONDS:g} s")
        except web.HTTPRequestEntityTooLarge:
            return _refusal(413, f"the request is larger than {messages.LARGEST} bytes")
        except tuple(_STATUS) as error:
            return _refusal(_STATUS[type(error)], str(error))
        uid = client_uid(http)
        requester = f"uid {uid} ({request.reason})" if request.reason else f"uid {uid}"
        log.info("request.accepted", container=str(target), uid=uid, reason=request.reason)
        job = _Job(asked=request.asked, target=target, requester=requester, feed=ProgressStream())
        self._jobs.put_nowait(job)
        return await self._follow(http, job)

    async def _follow(self, http: web.Request, job: _Job) -> web.StreamResponse:
        """Stream the progress of a restart. Slow and disconnected clients are dropped; the restart continues."""
        answer = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        try:
            await answer.prepare(http)
            await _write(answer, events.at(0.0, events.accepted(job.target, requester=job.requester)))
            async with contextlib.aclosing(job.feed.read(silence=_SIGN_OF_LIFE)) as updates:
                async for event in updates:
                    await _write(answer, event)
        except (ConnectionError, TimeoutError) as error:
            log.info("request.no_longer_followed", container=str(job.target), error=repr(error))
            if http.transport is not None:
                http.transport.abort()
        return answer


def client_uid(http: web.Request) -> int:
    """Return the user id of the client process."""
    assert http.transport is not None, "the request has just been read"
    return unix_sockets.credentials(http.transport.get_extra_info("socket")).uid


def client_name(http: web.Request) -> str:
    """Return the client's name for conditions and logs."""
    return f"uid {client_uid(http)}"


async def _write(answer: web.StreamResponse, event: dict[str, Any] | None) -> None:
    """Write an object on a line of its own; None, a sign of life, is an empty line."""
    line = json.dumps(event) if event is not None else ""
    async with asyncio.timeout(_WRITE_SECONDS):
        await answer.write(line.encode() + b"\n")


def _refusal(status: int, text: str) -> web.Response:
    log.info("request.refused", status=status, error=text)
    return web.json_response({"error": text}, status=status)


def _bound(path: Path) -> socket.socket:
    """Return a socket at that path that only this user may connect to. Raises ListenError."""
    made = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket() and not _is_alive(path):
            path.unlink()  # left by an agent that died
        made.bind(str(path))
        path.chmod(0o600)
    except OSError as error:
        made.close()
        hint = "stop the agent that listens there, or " if error.errno == errno.EADDRINUSE else ""
        raise ListenError(
            f"cannot listen on {path}: {error.strerror or error}; {hint}choose another --state-dir"
        ) from error
    return made


def _is_alive(path: Path) -> bool:
    """Return whether a process listens there, even if it is too busy to answer (EAGAIN)."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0)
        return probe.connect_ex(str(path)) in (0, errno.EAGAIN)
