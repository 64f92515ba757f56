"""Send one request to the API server; configuration and credentials are loaded on demand."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import aiohttp

from kubemend.common.kube import config, errors, paths

Json = dict[str, Any]
Body = Json | list[Json]

JSON: Final = "application/json"
REACH = "is the API server up, and reachable from here?"
"""The hint for every missing answer."""

_LONGEST_FAILURE: Final = 2**20


@dataclass(frozen=True, slots=True)
class Request:
    """Hold a request. ``params`` may hold booleans and integers; they are written as the API expects them."""

    method: str
    path: str
    params: dict[str, str | int | bool] = field(default_factory=dict)
    body: Body | None = None
    content_type: str = JSON
    watch: bool = False
    accept: str = JSON

    @property
    def target(self) -> paths.Target:
        """Return the subject of the request, for people."""
        return paths.describe(self.method, self.path, watch=self.watch)

    @property
    def path_and_query(self) -> str:
        """Return the request target of HTTP."""
        if not self.params:
            return self.path
        texts = {name: str(value).lower() if isinstance(value, bool) else value for name, value in self.params.items()}
        return f"{self.path}?{urlencode(texts, quote_via=quote)}"


class Transport:
    """Send requests. Tokens and certificate authorities rotate, so the configuration is loaded again when they fail.

    That is once after a 401, and for the next request after the server's certificate was not trusted.
    """

    def __init__(self, *, kubeconfig: Path | None, connect_timeout: float) -> None:
        self._kubeconfig = kubeconfig
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout)
        self._session: Any = None  # library.RESTClientObject | None; kubernetes has no types
        self._loading = asyncio.Lock()

    @property
    def server(self) -> str:
        """Return the server's URL once the configuration is loaded."""
        return str(self._session.configuration.host) if self._session is not None else "the API server"

    async def send(self, request: Request) -> aiohttp.ClientResponse:
        """Send a request and return the answer, its body unread. The caller sets the deadline.

        Raises the error of ``common.kube.errors`` for an unsuccessful answer.
        """
        session = await self._ready()
        response = await self._send_once(session, request)
        if response.status == 401:
            response.release()
            await self._drop(session)
            response = await self._send_once(await self._ready(), request)
        if not response.ok:
            raise await self._failure(response, request.target)
        return response

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._drop(self._session)

    def unreachable(self, target: paths.Target, error: Exception) -> errors.ApiUnavailableError:
        """Return the error for an answer that did not arrive, or not completely."""
        reason = " ".join(str(error).split()) or type(error).__name__
        return errors.ApiUnavailableError(f"cannot {target} at {self.server}: {reason}", hint=REACH)

    async def _send_once(self, session: Any, request: Request) -> aiohttp.ClientResponse:
        try:
            answer = await session.request(
                request.method,
                session.configuration.host + request.path_and_query,
                headers={
                    "Accept": request.accept,
                    "Accept-Encoding": "identity",  # a small compressed answer could expand to megabytes at once
                    "Content-Type": request.content_type,
                    "User-Agent": "kubemend",
                    **await config.credentials(session.configuration),
                },
                body=request.body,
                _request_timeout=self._timeout,
            )
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, aiohttp.ClientConnectorCertificateError):
                await self._drop(session)
            raise self.unreachable(request.target, error) from error
        response: aiohttp.ClientResponse = answer.response
        return response

    async def _failure(self, response: aiohttp.ClientResponse, target: paths.Target) -> errors.KubeError:
        try:
            body = (await read(response, at_most=_LONGEST_FAILURE)).decode(errors="replace")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return self.unreachable(target, error)
        return errors.from_response(
            target,
            server=self.server,
            status=response.status,
            body=body,
            retry_after=response.headers.get("Retry-After"),
        )

    async def _ready(self) -> Any:
        async with self._loading:
            if self._session is None:
                self._session = await config.load(kubeconfig=self._kubeconfig)
            return self._session

    async def _drop(self, stale: Any) -> None:
        """Close a session that is no longer valid; another task may have replaced it already."""
        if self._session is stale:
            self._session = None
            await stale.close()


async def read(response: aiohttp.ClientResponse, *, at_most: int) -> bytes:
    """Return the whole body of an answer. Raises ValueError if it exceeds ``at_most`` bytes."""
    parts: list[bytes] = []
    size = 0
    while chunk := await response.content.readany():
        parts.append(chunk)
        size += len(chunk)
        if size > at_most:
            response.close()
            raise ValueError(f"the answer has more than {at_most} bytes")
    return b"".join(parts)
