"""Call the API server: JSON in, JSON out, a deadline on every call, retries in one place.

The client connects at its first use, so a kubeconfig or a server that appears late needs no restart.
"""

import asyncio
import contextlib
import enum
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import aiohttp
import structlog
import tenacity

from kubemend.common.kube import errors, listing, paths, safe_json, transport, watch_protocol
from kubemend.common.kube.transport import Body, Json, Request

log = structlog.get_logger(__name__)

Params = Mapping[str, str | int | bool]
Project = Callable[[Json], Any]
"""Return the part of an object to keep. It is called as the object comes in; the object is dropped afterwards."""

_AS_METADATA: Final = "application/json;as={kind};g=meta.k8s.io;v=v1,application/json"


class Patch(enum.Enum):
    """Name the content types of a patch."""

    STRATEGIC = "application/strategic-merge-patch+json"
    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"


@dataclass(frozen=True, slots=True)
class Listing:
    """Hold a list's items (the kept parts), and the version from which a watch continues it."""

    items: list[Any]
    resource_version: str
    continued: str = ""  # token of the next page; empty on the last one


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Set timeouts in seconds.

    - ``connect``: one connection
    - ``call``: a call with all its retries
    - ``watch``: until the server ends a watch
    - ``silence``: a watch without any event for this long counts as dead. The server sends a bookmark about once a
      minute, so ``silence`` is a little more than that.
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


class ObjectReader(Protocol):
    """Read single objects: all that some components need of ``KubeClient``."""

    async def get(self, path: str) -> Json: ...


class KubeClient:
    """Call the API server. All methods raise the errors of ``common.kube.errors``."""

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
        """Create an object in a collection and return it.

        Sent once: after a lost answer the object may exist or not.
        """
        return await self._call(Request("POST", path, body=body), attempts=1)

    async def update(self, path: str, body: Json, *, attempts: int = 4) -> Json:
        """Replace an object and return it; with ``metadata.resourceVersion`` only if no other writer was first.

        A retry after a lost answer can conflict with its own first attempt. Callers that must distinguish send it once
        (``attempts``).
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

    async def list(self, path: str, *, params: Params | None = None, project: Project = lambda obj: obj) -> Listing:
        """Return the current objects of a collection; ``project`` returns the part of each to keep."""
        return await self._page(Request("GET", path, params=dict(params or {})), project)

    async def pages(
        self,
        path: str,
        *,
        params: Params | None = None,
        limit: int = 500,
        project: Project = lambda obj: obj,
        metadata_only: bool = False,
    ) -> AsyncGenerator[Listing, None]:
        """Yield the objects of a collection ``limit`` at a time, all as of the read of the first page.

        The server need not hold thousands of objects at once. The client holds one at a time and keeps the part that
        ``project`` returns; ``limit`` 0 means all in one page. ``metadata_only``: objects have only their metadata.
        Each page has ``Deadlines.call`` until its first bytes, and again after each chunk.

        Raises GoneError when the server forgets that state on the way.
        """
        continued: dict[str, str] = {}
        while True:
            request = Request(
                "GET",
                path,
                params={**(params or {}), "limit": limit, **continued},
                accept=_AS_METADATA.format(kind="PartialObjectMetadataList") if metadata_only else transport.JSON,
            )
            page = await self._page(request, project)
            yield page
            if not page.continued:
                return
            continued = {"continue": page.continued}

    async def watch(
        self,
        path: str,
        *,
        params: Params | None = None,
        resource_version: str = "",
        project: Project = lambda obj: obj,
        metadata_only: bool = False,
    ) -> AsyncGenerator[watch_protocol.WatchEvent, None]:
        """Yield the events of a collection after ``resource_version``, bookmarks included.

        Ends when the server ends it or has been silent for too long (a dead connection looks like that): watch again
        from the last event's version. Raises GoneError when that version is too old, ApiUnavailableError when the
        connection breaks. Close it (``contextlib.aclosing``) when leaving early. ``project``, ``metadata_only``: as for
        ``pages``; a bookmark is not projected.
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
            accept=_AS_METADATA.format(kind="PartialObjectMetadata") if metadata_only else transport.JSON,
        )
        async with self._deadline(request.target):
            response = await self._transport.send(request)
        splitter = watch_protocol.LineSplitter(longest=listing.LONGEST)
        try:
            while chunk := await self._chunk(response, request.target):
                for event in self._events(splitter, chunk, request.target, project):
                    yield event
        finally:
            _abort(response)

    async def _chunk(self, response: aiohttp.ClientResponse, target: paths.Target) -> bytes:
        """Return the next chunk, or nothing at the end; a silence that is too long also ends the watch."""
        try:
            async with asyncio.timeout(self._deadlines.silence) as silence:
                return await response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            if silence.expired():
                log.debug("kube.watch_silent", target=str(target), seconds=self._deadlines.silence)
                return b""
            raise self._transport.unreachable(target, error) from error

    def _events(
        self, splitter: watch_protocol.LineSplitter, chunk: bytes, target: paths.Target, project: Project
    ) -> Iterator[watch_protocol.WatchEvent]:
        """Yield the events that a chunk completes; an object is held no longer than the call of ``project``."""
        try:
            for event in map(watch_protocol.parse, splitter.feed(chunk), itertools.repeat(project)):
                if isinstance(event, watch_protocol.WatchFailure):
                    server = self._transport.server
                    raise errors.from_status(target, server=server, status=event.code, answer=event.status)
                yield event
        except watch_protocol.NoEventError as error:
            raise self._transport.unreachable(target, error) from error

    async def _page(self, request: Request, project: Project) -> Listing:
        """Return the kept parts of a list's items, or of one page of it."""
        async with self._deadline(request.target):
            response: aiohttp.ClientResponse = await _retrying(4)(self._transport.send, request)
        splitter = listing.ListSplitter()
        kept: list[Any] = []
        try:
            while True:
                async with self._deadline(request.target):
                    chunk = await response.content.readany()
                kept += map(project, splitter.feed(chunk) if chunk else splitter.end())
                if not chunk:
                    metadata = splitter.metadata
                    return Listing(
                        items=kept,
                        resource_version=str(metadata.get("resourceVersion", "")),
                        continued=str(metadata.get("continue") or ""),
                    )
        except (aiohttp.ClientError, OSError, listing.NoListError) as error:
            raise self._transport.unreachable(request.target, error) from error
        finally:
            response.close()  # a response that was read to its end keeps its connection

    async def _call(self, request: Request, *, attempts: int = 4) -> Json:
        async with self._deadline(request.target):
            answer: Json = await _retrying(attempts)(self._exchange, request)
            return answer

    async def _exchange(self, request: Request) -> Json:
        response = await self._transport.send(request)
        try:
            answer = safe_json.loads(await transport.read(response, at_most=listing.LONGEST))
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
                hint=transport.REACH,
            ) from error


async def get_by_uid(api: KubeClient, path: str, *, uid: str) -> Json | None:
    """Return the object at a path; None if it no longer exists or has another UID. Raises KubeError.

    Use it after a write with the UID as its precondition was refused: a wrong UID answers 409 or 422, as other errors
    do.
    """
    try:
        found = await api.get(path)
    except errors.NotFoundError:
        return None
    return found if found["metadata"]["uid"] == uid else None


_WAIT = tenacity.wait_exponential_jitter(multiplier=0.1, jitter=0.1, max=2.0)


def _retrying(attempts: int) -> tenacity.AsyncRetrying:
    return tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception(_worth_another_try),
        wait=_wait,
        stop=tenacity.stop_after_attempt(attempts),
        reraise=True,
    )


def _worth_another_try(error: BaseException) -> bool:
    return isinstance(error, errors.ApiUnavailableError) and not isinstance(error, errors.NotConfiguredError)


def _wait(state: tenacity.RetryCallState) -> float:
    """Wait as long as the server asked for (``Retry-After``), else exponentially; the call's deadline bounds both."""
    error = state.outcome.exception() if state.outcome is not None else None
    if isinstance(error, errors.KubeError) and error.retry_after is not None:
        return error.retry_after
    return _WAIT(state)


def _abort(response: aiohttp.ClientResponse) -> None:
    """Abort a watch that has no end of its own: a graceful TLS shutdown would outlive the client."""
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()
    response.close()
