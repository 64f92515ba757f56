"""One client for the API server: JSON in, JSON out, a deadline on every call, retries in one place.

The client connects when it is first used, so a kubeconfig or a server that appears late needs no restart.
"""

import asyncio
import contextlib
import enum
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
import structlog
import tenacity

from common.kube import errors, nesting, paths, transport, watching
from common.kube.transport import Body, Json, Request

log = structlog.get_logger(__name__)

Params = Mapping[str, str | int | bool]


class Patch(enum.Enum):
    """The content types of a patch."""

    STRATEGIC = "application/strategic-merge-patch+json"
    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"


@dataclass(frozen=True, slots=True)
class Listing:
    """A list's items, and the version from which a watch continues it."""

    items: list[Json]
    resource_version: str


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds: ``connect`` for one connection, ``call`` for a call with all its retries, ``watch`` until the server
    ends a watch, ``silence`` after which a watch without any event is taken for dead.

    The server sends a bookmark about once a minute, so ``silence`` is a little more than that.
    """

    connect: float = 5.0
    call: float = 10.0
    watch: float = 290.0
    silence: float = 75.0


def connect(*, kubeconfig: Path | None = None, deadlines: Deadlines | None = None) -> "KubeClient":
    """Return a client; use it as ``async with``. No I/O happens before the first call.

    ``kubeconfig`` None means the pod's service account, else ``$KUBECONFIG``, else ``~/.kube/config``.
    """
    return KubeClient(kubeconfig=kubeconfig, deadlines=deadlines or Deadlines())


class KubeClient:
    """Talks to the API server. All methods raise the errors of ``common.kube.errors``."""

    def __init__(self, *, kubeconfig: Path | None, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._transport = transport.Transport(kubeconfig=kubeconfig, connect_timeout=deadlines.connect)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transport.close()

    async def get(self, path: str) -> Json:
        """Return one object (or any other JSON document, such as ``/version``)."""
        return await self._call(Request("GET", path))

    async def create(self, path: str, body: Json) -> Json:
        """Create an object in a collection and return it. Sent once: a lost answer leaves open whether it exists."""
        return await self._call(Request("POST", path, body=body), attempts=1)

    async def update(self, path: str, body: Json, *, attempts: int = 4) -> Json:
        """Replace an object and return it; with ``metadata.resourceVersion`` only if nobody was faster.

        Sent once more after a lost answer it can be faster than itself: who must know sends it once (``attempts``).
        """
        return await self._call(Request("PUT", path, body=body), attempts=attempts)

    async def patch(self, path: str, body: Body, *, content_type: Patch = Patch.STRATEGIC) -> Json:
        """Patch an object or a subresource and return it; a ``metadata.uid`` in the body is a precondition."""
        return await self._call(Request("PATCH", path, body=body, content_type=content_type.value))

    async def patch_status(self, path: str, body: Body, *, content_type: Patch = Patch.STRATEGIC) -> Json:
        """Patch the status of the object at ``path`` (without ``/status``) and return the object."""
        return await self.patch(f"{path}/status", body, content_type=content_type)

    async def delete(self, path: str, *, options: Json | None = None) -> Json:
        """Delete an object; ``options`` is a ``DeleteOptions`` body (grace, preconditions)."""
        return await self._call(Request("DELETE", path, body=options))

    async def list(self, path: str, *, params: Params | None = None) -> Listing:
        """Return the objects of a collection in their most recent state."""
        answer = await self._call(Request("GET", path, params=dict(params or {})))
        return Listing(
            items=[*(answer.get("items") or ())],
            resource_version=str((answer.get("metadata") or {}).get("resourceVersion", "")),
        )

    async def pages(
        self, path: str, *, params: Params | None = None, limit: int = 500
    ) -> AsyncGenerator[Listing, None]:
        """Yield the objects of a collection ``limit`` at a time, all as they were when the first page was read.

        So neither side holds thousands of objects at once. Raises GoneError when that state is forgotten on the way.
        """
        continued: dict[str, str] = {}
        while True:
            answer = await self._call(Request("GET", path, params={**(params or {}), "limit": limit, **continued}))
            metadata = answer.get("metadata") or {}
            yield Listing([*(answer.get("items") or ())], resource_version=str(metadata.get("resourceVersion", "")))
            if not metadata.get("continue"):
                return
            continued = {"continue": metadata["continue"]}

    async def watch(
        self, path: str, *, params: Params | None = None, resource_version: str = ""
    ) -> AsyncGenerator[watching.WatchEvent, None]:
        """Yield what happens to a collection after ``resource_version``, bookmarks included.

        Ends when the server ends it or has been silent for too long (a dead connection looks like that): watch again
        from the last event's version. Raises GoneError when that version is too old, ApiUnavailableError when the
        connection breaks. Close it (``contextlib.aclosing``) when leaving early.
        """
        request = Request(
            "GET",
            path,
            params={
                **(params or {}),
                "watch": True,
                "allowWatchBookmarks": True,
                "timeoutSeconds": int(self._deadlines.watch),
                "resourceVersion": resource_version,
            },
            watch=True,
        )
        async with self._deadline(request.target):
            response = await self._transport.send(request)
        try:
            async for line in self._lines(response, request.target):
                yield self._event(line, request.target)
        finally:
            _hang_up(response)

    async def _lines(self, response: aiohttp.ClientResponse, target: paths.Target) -> AsyncIterator[bytes]:
        splitter = watching.LineSplitter()
        while chunk := await self._chunk(response, target):
            for line in splitter.feed(chunk):
                yield line

    async def _chunk(self, response: aiohttp.ClientResponse, target: paths.Target) -> bytes:
        """Return what came next, or nothing at the end; a silence that is too long is an end too."""
        try:
            async with asyncio.timeout(self._deadlines.silence) as silence:
                return await response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            if silence.expired():
                log.debug("kube.watch_silent", target=str(target), seconds=self._deadlines.silence)
                return b""
            raise self._transport.unreachable(target, error) from error

    def _event(self, line: bytes, target: paths.Target) -> watching.WatchEvent:
        try:
            event = watching.parse(line)
        except ValueError as error:
            raise self._transport.unreachable(target, error) from error
        if isinstance(event, watching.WatchFailure):
            raise errors.from_status(target, server=self._transport.server, status=event.code, answer=event.status)
        return event

    async def _call(self, request: Request, *, attempts: int = 4) -> Json:
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(_worth_another_try),
            wait=_wait,
            stop=tenacity.stop_after_attempt(attempts),
            reraise=True,
        )
        async with self._deadline(request.target):
            answer: Json = await retrying(self._exchange, request)
            return answer

    async def _exchange(self, request: Request) -> Json:
        response = await self._transport.send(request)
        try:
            answer = nesting.loads(await response.read())
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._transport.unreachable(request.target, error) from error
        if not isinstance(answer, dict):
            raise self._transport.unreachable(request.target, ValueError("the answer is not a JSON object"))
        return answer

    @contextlib.asynccontextmanager
    async def _deadline(self, target: paths.Target) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._deadlines.call):
                yield
        except TimeoutError as error:
            raise errors.ApiUnavailableError(
                f"cannot {target} at {self._transport.server}: no answer within {self._deadlines.call:g} s",
                mend=transport.REACH,
            ) from error


_WAIT = tenacity.wait_exponential_jitter(multiplier=0.1, jitter=0.1, max=2.0)


def _worth_another_try(error: BaseException) -> bool:
    return isinstance(error, errors.ApiUnavailableError) and not isinstance(error, errors.NotConfiguredError)


def _wait(state: tenacity.RetryCallState) -> float:
    """Wait as long as the server asked for (``Retry-After``), else exponentially; the call's deadline bounds both."""
    error = state.outcome.exception() if state.outcome is not None else None
    if isinstance(error, errors.KubeError) and error.retry_after is not None:
        return error.retry_after
    return _WAIT(state)


def _hang_up(response: aiohttp.ClientResponse) -> None:
    """Leave a watch that has no end of its own: a polite TLS goodbye would outlive the client."""
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()
    response.close()
