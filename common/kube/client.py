"""One client for the API server: JSON in, JSON out, a deadline on every call, retries in one place.

The client connects when it is first used, so a kubeconfig or a server that appears late needs no restart.
"""

import asyncio
import contextlib
import enum
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import structlog
import tenacity

from common.kube import errors, listing, nesting, paths, transport, watching
from common.kube.transport import Body, Json, Request

log = structlog.get_logger(__name__)

Params = Mapping[str, str | int | bool]
Project = Callable[[Json], Any]
"""What is kept of an object; it is called as the object comes in, which is forgotten then."""

_AS_METADATA: Final = "application/json;as={kind};g=meta.k8s.io;v=v1,application/json"


class Patch(enum.Enum):
    """The content types of a patch."""

    STRATEGIC = "application/strategic-merge-patch+json"
    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"


@dataclass(frozen=True, slots=True)
class Listing:
    """A list's items (what was kept of them), and the version from which a watch continues it."""

    items: list[Any]
    resource_version: str
    continued: str = ""  # by what token the next page is asked for; empty where this is the last one


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

    async def list(self, path: str, *, params: Params | None = None, project: Project = lambda obj: obj) -> Listing:
        """Return the objects of a collection in their most recent state; ``project`` says what is kept of each."""
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
        """Yield the objects of a collection ``limit`` at a time, all as they were when the first page was read.

        So the server does not hold thousands of objects at once. Here one is held at a time, of which ``project`` says
        what is kept; ``limit`` 0 means all in one page. ``metadata_only``: objects have nothing but their metadata.
        Each page has ``Deadlines.call`` to begin with, and again after each bit of it that has come.

        Raises GoneError when that state is forgotten on the way.
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
    ) -> AsyncGenerator[watching.WatchEvent, None]:
        """Yield what happens to a collection after ``resource_version``, bookmarks included.

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
        splitter = watching.LineSplitter(longest=listing.LONGEST)
        try:
            while chunk := await self._chunk(response, request.target):
                for event in self._events(splitter, chunk, request.target, project):
                    yield event
        finally:
            _hang_up(response)

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

    def _events(
        self, splitter: watching.LineSplitter, chunk: bytes, target: paths.Target, project: Project
    ) -> Iterator[watching.WatchEvent]:
        """Yield the events that a chunk completes; no object is held any longer than ``project`` looks at it."""
        try:
            for event in map(watching.parse, splitter.feed(chunk), itertools.repeat(project)):
                if isinstance(event, watching.WatchFailure):
                    server = self._transport.server
                    raise errors.from_status(target, server=server, status=event.code, answer=event.status)
                yield event
        except watching.NoEventError as error:
            raise self._transport.unreachable(target, error) from error

    async def _page(self, request: Request, project: Project) -> Listing:
        """Return what is kept of the items of a list, or of one page of it."""
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
            response.close()  # of one that was read to its end the connection is kept

    async def _call(self, request: Request, *, attempts: int = 4) -> Json:
        async with self._deadline(request.target):
            answer: Json = await _retrying(attempts)(self._exchange, request)
            return answer

    async def _exchange(self, request: Request) -> Json:
        response = await self._transport.send(request)
        try:
            answer = nesting.loads(await transport.read(response, at_most=listing.LONGEST))
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


def _hang_up(response: aiohttp.ClientResponse) -> None:
    """Leave a watch that has no end of its own: a polite TLS goodbye would outlive the client."""
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()
    response.close()
