"""/metrics, /healthz and /readyz answer, despite any other connections and requests."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kubemend.common import web
from kubemend.common.components import ComponentRegistry, ComponentState, ComponentStatus
from kubemend.common.web import ListenError, Timeouts, WebServer

SECONDS = 60.0
_ANYWHERE = ("127.0.0.1", 0)


class Env:
    """A server, its components and its metrics. Its timeouts are unlimited unless a test sets them."""

    def __init__(self, *, timeouts: Timeouts | None = None, probes_only: bool = False) -> None:
        self.parts = ComponentRegistry(show=lambda *_: None)
        self.registry = CollectorRegistry()
        self.server = WebServer(
            address=_ANYWHERE,
            parts=self.parts,
            registry=None if probes_only else self.registry,
            timeouts=timeouts or Timeouts(request=1e6, answer=1e6),
        )

    async def get(self, path: str) -> tuple[int, str]:
        """Ask as kubelet and Prometheus do."""
        timeout = aiohttp.ClientTimeout(total=SECONDS)
        async with (
            aiohttp.ClientSession(trust_env=False, timeout=timeout) as session,
            session.get(f"http://127.0.0.1:{self.server.port}{path}") as answer,
        ):
            return answer.status, await answer.text()

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def said(self, request: bytes) -> bytes:
        """Send bytes, and return what comes back until the server closes."""
        async with self.connected() as (reader, writer):
            writer.write(request)
            return await rest(reader)


async def rest(reader: asyncio.StreamReader) -> bytes:
    """Return all data until the end."""
    read = b""
    async with asyncio.timeout(SECONDS):
        with contextlib.suppress(OSError):
            while data := await reader.read(4096):
                read += data
    return read


@pytest.fixture
async def env() -> AsyncIterator[Env]:
    env = Env()
    async with env.server:
        yield env


async def test_pages_have_their_content(env: Env) -> None:
    Counter("things", "Things.", registry=env.registry).inc(3)
    report = env.parts.reporter("hub")
    assert await env.get("/healthz") == (200, "ok\n")
    assert (await env.get("/readyz"))[0] == 503
    report(ComponentStatus(ComponentState.READY))
    status, body = await env.get("/readyz?verbose")
    assert (status, json.loads(body)["ready"]) == (200, True)
    assert "things_total 3.0" in (await env.get("/metrics"))[1]
    assert (await env.get("/elsewhere"))[0] == 404


async def test_half_requests_do_not_block_others(env: Env) -> None:
    async with contextlib.AsyncExitStack() as opened:
        readers = []
        for _ in range(100):
            reader, writer = await opened.enter_async_context(env.connected())
            writer.write(b"GET /healthz HTTP/1.1\r\nX: ")
            readers.append(reader)
        assert await env.get("/healthz") == (200, "ok\n")
        assert len(env.server._open) <= web._MOST
        assert await rest(readers[0]) == b"", "the oldest were closed"


async def test_a_request_must_come_in_time() -> None:
    env = Env(timeouts=Timeouts(request=0.05, answer=60))
    async with env.server, env.connected() as (reader, writer):
        writer.write(b"GET /healthz HTTP/1.1\r\nX: ")
        assert (await rest(reader)).startswith(b"HTTP/1.1 408 ")


async def test_client_that_does_not_read_is_closed() -> None:
    env = Env(timeouts=Timeouts(request=60, answer=0.05))
    for number in range(1000):
        Gauge(f"long_{number}", "x" * 20_000, registry=env.registry)
    async with env.server, env.connected() as (reader, writer):
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(SECONDS):
            await reader.readline()
            while env.server._open:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 100_000, b"431"),
        (b"POST /healthz HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /healthz\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x00\xff\r\n\r\n", b"400"),
        (b"HEAD /healthz HTTP/1.0\r\n\r\n", b"200"),
    ],
    ids=["head too long", "method", "no version", "tls", "head"],
)
async def test_any_request_gets_an_answer_and_its_end(env: Env, request_bytes: bytes, status: bytes) -> None:
    answer = await env.said(request_bytes)
    assert answer == b"" or answer.split(b" ")[1] == status, "a connection with unread data may be reset"
    assert await env.get("/healthz") == (200, "ok\n")


async def test_a_page_that_fails_is_an_error_of_its_own(env: Env) -> None:
    Gauge("broken", "Broken.", registry=env.registry).set_function(lambda: 1 / 0)
    assert (await env.get("/metrics"))[0] == 500
    assert await env.get("/healthz") == (200, "ok\n")


async def test_probes_have_no_metrics() -> None:
    env = Env(probes_only=True)
    async with env.server:
        assert await env.get("/healthz") == (200, "ok\n")
        assert (await env.get("/metrics"))[0] == 404


async def test_probes_are_served_in_addition_to_all_pages(unused_tcp_port: int) -> None:
    parts, registry = ComponentRegistry(show=lambda *_: None), CollectorRegistry()
    async with web.serving(metrics=_ANYWHERE, probes=("127.0.0.1", unused_tcp_port), parts=parts, registry=registry):
        _, writer = await asyncio.open_connection("127.0.0.1", unused_tcp_port)
        writer.close()
        await writer.wait_closed()


async def test_port_in_use_is_named_with_its_setting(env: Env) -> None:
    taken = ("127.0.0.1", env.server.port)
    with pytest.raises(ListenError, match=r"cannot listen on 127\.0\.0\.1:.*choose another --probes-address"):
        async with web.serving(metrics=_ANYWHERE, probes=taken, parts=env.parts, registry=env.registry):
            pass


def test_metrics_are_cached_according_to_their_cost() -> None:
    slow = _Slow()
    page = web.MetricsPage(slow.registry, clock=lambda: slow.now)
    assert b"looks 1.0" in page().body
    slow.now += 19.9
    assert b"looks 1.0" in page().body
    slow.now += 0.1
    assert b"looks 2.0" in page().body


class _Slow(Collector):
    """A metric that takes two seconds of the test's clock for each read."""

    def __init__(self) -> None:
        self.now = 100.0
        self.registry = CollectorRegistry()
        self._looks = 0
        self.registry.register(self)

    def describe(self) -> list[Metric]:
        """Not by a read."""
        return []

    def collect(self) -> list[Metric]:
        self.now += 2.0
        self._looks += 1
        return [GaugeMetricFamily("looks", "Looks.", value=self._looks)]
