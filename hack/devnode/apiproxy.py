"""Proxy a real API server on loopback, and make it fail as a test or a benchmark requests.

Clients get the proxy's kubeconfig. Requests without a fault are passed on unchanged: the caller's credentials, bodies,
statuses, watches with their bookmarks.
"""

import asyncio
import contextlib
import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml
import yarl
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy

from hack.devnode import kubeconfig as kubeconfigs
from hack.devnode import loopback
from hack.devnode.part import Part

Rewrite = Callable[[bytes], bytes]
"""Changes one JSON text of the server's: a whole answer, or one event of a watch."""

_HOP_BY_HOP: Final = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "host", "content-length"}
)
"""Headers that concern one connection and are not passed on (RFC 9110, section 7.6.1)."""

_REASONS: Final = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
_MESSAGES: Final = {403: 'things is forbidden: User "test" cannot do this at the cluster scope'}
"""A 403 without a message of its own has RBAC's text."""


@dataclass
class Rule:
    """Fail the next ``count`` requests of a method ("" is any) whose path and query contain ``path``.

    ``lost`` has the server carry the request out first: only its answer is replaced.
    """

    count: int
    status: int = 503
    method: str = ""
    path: str = ""
    retry_after: int | None = None
    message: str = ""
    lost: bool = False

    def matches(self, *, method: str, path_and_query: str) -> bool:
        """Return whether the rule applies to this request."""
        return self.count > 0 and self.method in ("", method) and self.path in path_and_query

    def answer(self) -> web.Response:
        """Return the answer to the caller."""
        message = self.message or _MESSAGES.get(self.status, "a scripted fault")
        headers = {"Retry-After": str(self.retry_after)} if self.retry_after is not None else None
        return web.json_response(_status(self.status, message), status=self.status, headers=headers)


class ApiProxy(Part):
    """Pass requests on to the API server of a kubeconfig, on a port that it keeps over ``stop``.

    ``hits`` counts the requests that rules have failed, ``counts`` all that arrived, by method and path; ``watched``
    counts those of them that were watches, by path. ``rewrite`` changes the server's answers, to simulate a newer
    server.
    """

    def __init__(self, upstream: Path, *, kubeconfig: Path) -> None:
        """``kubeconfig`` is written for clients, as the upstream's user."""
        self.kubeconfig = kubeconfig
        self._server, self.token, self._tls = _credentials(upstream)
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.ServerRunner | None = None
        self._watches: set[asyncio.Transport] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._delay = 0.0
        self._oldest = 0
        self.port = loopback.free_port()  # an outgoing connection does not take it while it is closed
        self.rules: list[Rule] = []
        self.hits = 0
        self.counts: Counter[tuple[str, str]] = Counter()
        self.watched: Counter[str] = Counter()
        self.rewrite: Rewrite | None = None

    @property
    def url(self) -> str:
        """Return the proxy's own address."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen and pass on."""
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=0)
        self._session = aiohttp.ClientSession(
            connector=connector, auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None), trust_env=False
        )
        runner = web.ServerRunner(web.Server(self._handle, handler_cancellation=True), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port, reuse_address=True).start()
        self._runner = runner
        kubeconfigs.write(self.kubeconfig, server=self.url, token=self.token)

    async def stop(self) -> None:
        """Stop: the port is closed, and open connections break."""
        self.cut_watches()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        if self._session is not None:
            await self._session.close()
            self._session = None

    def fail_next(
        self,
        count: int,
        *,
        status: int = 503,
        method: str = "",
        path: str = "",
        retry_after: int | None = None,
        message: str = "",
        lost: bool = False,
    ) -> Rule:
        """Answer the next ``count`` requests of a method and a part of path and query with ``status``."""
        rule = Rule(count, status, method, path, retry_after, message, lost)
        self.rules.append(rule)
        return rule

    def hang(self) -> None:
        """Accept connections and requests without an answer until ``resume``. Open watches become silent."""
        self._flows.clear()

    def resume(self) -> None:
        """Answer again, also the requests that came in the meantime."""
        self._flows.set()

    def slow(self, seconds: float) -> None:
        """Delay each request before it is passed on."""
        self._delay = seconds

    def cut_watches(self) -> None:
        """Break the connection of every watch, in the middle of its output."""
        for connection in tuple(self._watches):
            connection.abort()

    async def forget_history(self) -> None:
        """Answer each watch that resumes from an earlier version with 410, as after etcd's compaction; open ones
        continue.
        """
        listing = json.loads(await self._ask("/api/v1/namespaces?limit=1"))
        self._oldest = int(listing["metadata"]["resourceVersion"])

    async def _ask(self, path: str) -> bytes:
        assert self._session is not None, "the proxy is not started"
        headers = {"Authorization": f"Bearer {self.token}"}
        async with self._session.get(self._server + path, headers=headers) as response:
            response.raise_for_status()
            return await response.read()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.counts[request.method, request.path] += 1
        self.watched[request.path] += "watch" in request.query
        if (rule := self._rule(request)) is not None:
            if rule.lost:
                async with self._passed_on(request) as carried_out:
                    await carried_out.read()
            return rule.answer()
        await self._flows.wait()
        await asyncio.sleep(self._delay)
        is_watch = request.query.get("watch") in ("1", "true")
        if is_watch and 0 < int(request.query.get("resourceVersion") or 0) < self._oldest:
            return self._expired()
        try:
            async with self._passed_on(request) as answer:
                return await (self._watch(request, answer) if is_watch and answer.ok else self._whole(answer))
        except aiohttp.ClientError as error:
            return web.json_response(_status(503, f"the API server behind the proxy: {error}"), status=503)

    def _rule(self, request: web.BaseRequest) -> Rule | None:
        for rule in self.rules:
            if rule.matches(method=request.method, path_and_query=request.path_qs):
                rule.count -= 1
                self.hits += 1
                if rule.count == 0:
                    self.rules.remove(rule)
                return rule
        return None

    @contextlib.asynccontextmanager
    async def _passed_on(self, request: web.BaseRequest) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._session is not None, "requests arrive only while the proxy is started"
        call = self._session.request(
            request.method,
            yarl.URL(self._server + request.raw_path, encoded=True),
            headers=_end_to_end(request.headers),
            data=await request.content.read() or None,
            allow_redirects=False,
        )
        async with call as answer:
            yield answer

    async def _whole(self, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        body = await answer.read()
        if self.rewrite is not None:
            body = self.rewrite(body)
        return web.Response(body=body, status=answer.status, headers=_end_to_end(answer.headers))

    async def _watch(self, request: web.BaseRequest, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        connection = request.transport
        assert connection is not None
        response = web.StreamResponse(status=answer.status, headers=_end_to_end(answer.headers))
        response.enable_chunked_encoding()
        self._watches.add(connection)
        # An error of the watcher or of the server ends the watch.
        try:
            with contextlib.suppress(ConnectionError, aiohttp.ClientError):
                await response.prepare(request)
                async for text in self._events(answer):
                    await self._flows.wait()
                    await response.write(text)
        finally:
            self._watches.discard(connection)
        return response

    async def _events(self, answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """Yield the events of a watch, one for each line."""
        kept = b""
        async for chunk in answer.content.iter_any():
            *lines, kept = (kept + chunk).split(b"\n")
            for line in lines:
                yield (line if self.rewrite is None else self.rewrite(line)) + b"\n"

    def _expired(self) -> web.Response:
        """Return the server watch cache's answer to a forgotten version: an event, and the end."""
        event = {"type": "ERROR", "object": _status(410, f"too old resource version: before {self._oldest}")}
        return web.Response(text=json.dumps(event) + "\n", content_type="application/json")


def _credentials(kubeconfig: Path) -> tuple[str, str, ssl.SSLContext]:
    """Return server, token and TLS context of a kubeconfig as ``hack.devnode.kubeconfig`` writes it."""
    config = yaml.safe_load(kubeconfig.read_text())
    ((cluster,), (user,)) = (
        [each["cluster"] for each in config["clusters"]],
        [each["user"] for each in config["users"]],
    )
    return cluster["server"], user["token"], ssl.create_default_context(cafile=cluster.get("certificate-authority"))


def _end_to_end(headers: "CIMultiDictProxy[str] | Mapping[str, str]") -> CIMultiDict[str]:
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in _HOP_BY_HOP)


def _status(code: int, message: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": _REASONS.get(code, ""),
        "code": code,
    }
