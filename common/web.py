"""Serve /metrics, /healthz and /readyz.

Any peer can connect, so a request costs no more than its answer: few connections, one request each, a few seconds for
it, and a short head (RFC 9112, of which this implements as much as these pages need).
"""

import asyncio
import contextlib
import functools
import http
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Self

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from kubemend.common.components import ComponentRegistry

log = structlog.get_logger(__name__)

_MOST: Final = 16
"""Connections at once. An answer takes milliseconds, so the oldest connection is the one that blocks others."""
_LONGEST_HEAD: Final = 8192
_SHARE: Final = 10
"""A metrics page is cached for this many times its generation time: the event loop has other work."""


class ListenError(Exception):
    """The address cannot be listened on; the text has the address and the fix."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Set the seconds until a request must be complete, and then until its answer must have been read."""

    request: float = 5.0
    answer: float = 10.0


@dataclass(frozen=True, slots=True)
class Page:
    """Hold an answer."""

    body: bytes
    kind: str = "text/plain; charset=utf-8"
    status: http.HTTPStatus = http.HTTPStatus.OK

    def encoded(self, *, with_body: bool = True) -> bytes:
        """Return the page as an HTTP response."""
        head = (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\nContent-Type: {self.kind}\r\n"
            f"Content-Length: {len(self.body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + (self.body if with_body else b"")


class WebServer:
    """Serve the pages; ``async with``. Without a ``registry`` there is no /metrics: for probes only."""

    def __init__(
        self,
        *,
        address: tuple[str, int],
        parts: ComponentRegistry,
        registry: CollectorRegistry | None,
        setting: str = "--metrics-address",
        timeouts: Timeouts | None = None,
    ) -> None:
        self._address = address
        self._setting = setting
        self._timeouts = timeouts or Timeouts()
        self.pages: Mapping[str, Callable[[], Page]] = {
            "/healthz": healthz,
            "/readyz": functools.partial(readyz, parts),
            **({"/metrics": MetricsPage(registry)} if registry is not None else {}),
        }
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def __aenter__(self) -> Self:
        host, port = self._address
        try:
            self._server = await asyncio.start_server(self._connected, host or None, port, limit=_LONGEST_HEAD)
        except OSError as error:
            raise ListenError(
                f"cannot listen on {host}:{port}: {error.strerror or error}; choose another {self._setting}"
            ) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        ending = [*self._open]
        for task in ending:
            self._end(task)
        await asyncio.gather(*ending, return_exceptions=True)

    @property
    def port(self) -> int:
        """Return the port that it listens on."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= _MOST:
            self._end(next(iter(self._open)))
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer), name="web")
        self._open[task] = writer
        task.add_done_callback(lambda done: self._open.pop(done, None))

    def _end(self, task: asyncio.Task[None]) -> None:
        """Close a connection at once, even with data in flight."""
        self._open.pop(task).transport.abort()
        task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                answer = await self._answer(reader)
                async with asyncio.timeout(self._timeouts.answer):
                    writer.write(answer)
                    writer.close()
                    await writer.wait_closed()
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        """Return the answer to the one request. Raises IncompleteReadError and OSError when there is none."""
        try:
            async with asyncio.timeout(self._timeouts.request):
                head = await reader.readuntil(b"\r\n\r\n")
        except TimeoutError:
            return _refusal(http.HTTPStatus.REQUEST_TIMEOUT)
        except asyncio.LimitOverrunError:
            return _refusal(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        target, _, version = rest.partition(" ")
        if not version.startswith("HTTP/1."):
            return _refusal(http.HTTPStatus.BAD_REQUEST)
        if method not in ("GET", "HEAD"):
            return _refusal(http.HTTPStatus.METHOD_NOT_ALLOWED)
        page = self.pages.get(target.partition("?")[0])
        if page is None:
            return _refusal(http.HTTPStatus.NOT_FOUND)
        try:
            return page().encoded(with_body=method == "GET")
        except Exception:  # a failing page is no reason to end the process
            log.exception("web.page_failed", page=target.partition("?")[0])
            return _refusal(http.HTTPStatus.INTERNAL_SERVER_ERROR)


@contextlib.asynccontextmanager
async def serving(
    *, metrics: tuple[str, int], probes: tuple[str, int] | None, parts: ComponentRegistry, registry: CollectorRegistry
) -> AsyncIterator[None]:
    """Serve all pages at ``metrics``, and those for kubelet also at ``probes``, where no other client competes.

    Raises ListenError.
    """
    async with contextlib.AsyncExitStack() as servers:
        await servers.enter_async_context(WebServer(address=metrics, parts=parts, registry=registry))
        if probes is not None:
            alone = WebServer(address=probes, parts=parts, registry=None, setting="--probes-address")
            await servers.enter_async_context(alone)
        yield


class MetricsPage:
    """Generate /metrics; too frequent requests get the previous page."""

    def __init__(self, registry: CollectorRegistry, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._clock = clock
        self._last: Page | None = None
        self._good_until = 0.0

    def __call__(self) -> Page:
        """Return the page."""
        began = self._clock()
        if self._last is None or began >= self._good_until:
            self._last = Page(generate_latest(self._registry), CONTENT_TYPE_LATEST)
            ended = self._clock()
            self._good_until = ended + _SHARE * (ended - began)
        return self._last


def healthz() -> Page:
    """Generate /healthz. A task that ends takes the process with it, so a responding loop suffices."""
    return Page(b"ok\n")


def readyz(parts: ComponentRegistry) -> Page:
    """Generate /readyz: the state of each component."""
    components = {
        name: {"state": status.state.value, "message": status.message, "hint": status.hint}
        for name, status in parts.all().items()
    }
    body = json.dumps({"ready": parts.ready(), "parts": components}, indent=2) + "\n"
    status = http.HTTPStatus.OK if parts.ready() else http.HTTPStatus.SERVICE_UNAVAILABLE
    return Page(body.encode(), "application/json; charset=utf-8", status)


def _refusal(status: http.HTTPStatus) -> bytes:
    return Page(f"{status.phrase}\n".encode(), status=status).encoded()
