"""Traces are exported like OpenTelemetry's if they are enabled, and no round waits for an export."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client import CollectorRegistry

from kubemend.controller.app import traces
from kubemend.controller.app.traces import Traces
from kubemend.controller.coordinator.spans import Span
from kubemend.controller.metrics import Metrics
from tests.unit.controller import builders
from tests.unit.controller.coordinator import test_spans
from tests.unit.controller.coordinator.env import WAIT, CoordinatorEnv
from tests.unit.controller.coordinator.test_coordinator import round_of, until

ABOUT = {"service.name": "kubemend-controller", "k8s.pod.name": "c-1"}
ROUND = Span("round", 1.0, 2.0)


class Failing(SpanExporter):
    """An endpoint that rejects everything."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.FAILURE


class Raising(SpanExporter):
    """A library that raises."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        raise OSError("broken")


class Slow(SpanExporter):
    """An endpoint that does not answer until it is released."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.may_answer = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.asked.set()
        assert self.may_answer.wait(WAIT)
        return SpanExportResult.SUCCESS


class Env:
    """Traces exported for the length of a block, and the counted results."""

    def __init__(self, exporter: SpanExporter) -> None:
        self.metrics = Metrics(CollectorRegistry())
        self.traces = Traces(exporter, metrics=self.metrics, about=ABOUT)

    def count(self, result: str) -> float:
        counter: float = self.metrics.round_traces.labels(result)._value.get()
        return counter

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.traces.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def collected(exporter: InMemorySpanExporter) -> list[ReadableSpan]:
    return list(exporter.get_finished_spans())


async def exported(span: Span) -> list[ReadableSpan]:
    """Return the spans that an exporter gets for one round."""
    exporter = InMemorySpanExporter()
    env = Env(exporter)
    async with env.running():
        env.traces.submit(span)
        await until(lambda: env.count("exported") == 1)
    return collected(exporter)


async def test_round_is_one_trace_with_child_steps() -> None:
    trace = test_spans.trace(test_spans.done())
    found = await exported(trace)
    assert len(found) == len([*trace.walk()])
    (root,) = [each for each in found if each.parent is None]
    assert (root.name, root.start_time, root.end_time) == ("round", round(trace.begin * 1e9), round(trace.end * 1e9))
    assert root.attributes is not None
    assert root.attributes["kubemend.round"] == "team/train-4"
    assert len({each.context.trace_id for each in found if each.context is not None}) == 1
    steps = [each.name for each in found if each.parent is not None and each.parent == root.context]
    assert sorted(steps) == ["decide", "member", "member", "release", "stop"]
    assert root.resource.attributes["service.name"] == "kubemend-controller"
    assert root.resource.attributes["k8s.pod.name"] == "c-1"


async def test_unsuccessful_span_has_status_error() -> None:
    (found,) = await exported(replace(ROUND, error="Stuck: pid 7"))
    assert (found.status.status_code, found.status.description) == (StatusCode.ERROR, "Stuck: pid 7")


async def test_rounds_have_separate_traces() -> None:
    exporter = InMemorySpanExporter()
    env = Env(exporter)
    async with env.running():
        for _ in range(3):
            env.traces.submit(ROUND)
        await until(lambda: env.count("exported") == 3)
    found = collected(exporter)
    assert len({each.context.trace_id for each in found if each.context is not None}) == len(found) == 3


@pytest.mark.parametrize("exporter", [Failing, Raising])
async def test_failed_export_is_counted_and_next_is_tried(exporter: Callable[[], SpanExporter]) -> None:
    env = Env(exporter())
    async with env.running():
        env.traces.submit(ROUND)
        env.traces.submit(ROUND)
        await until(lambda: env.count("failed") == 2)
    assert env.count("exported") == 0


async def test_hanging_endpoint_only_costs_traces() -> None:
    slow = Slow()
    env = Env(slow)
    try:
        async with env.running():
            env.traces.submit(ROUND)
            await asyncio.to_thread(slow.asked.wait, WAIT)
            for _ in range(traces._MOST_WAITING + 5):
                env.traces.submit(ROUND)
            assert env.count("dropped") == 5
    finally:
        slow.may_answer.set()


async def test_leader_traces_each_ended_round() -> None:
    env = CoordinatorEnv(builders.gang(3))
    taken: list[Span] = []
    env.dependencies = replace(env.dependencies, trace=taken.append)
    async with env.leading() as coordinator:
        env.fails(coordinator, 1)
        round_id = await round_of(env, coordinator)
        await until(lambda: bool(taken))
    assert [(each.name, each.attributes["kubemend.round"]) for each in taken] == [("round", round_id)]
    assert sum(each.name == "member" for each in taken[0].children) == 3


async def test_collector_receives_trace_by_otlp_http(monkeypatch: pytest.MonkeyPatch) -> None:
    received: asyncio.Queue[tuple[str, ExportTraceServiceRequest]] = asyncio.Queue()

    async def take(request: web.Request) -> web.Response:
        received.put_nowait((request.path, ExportTraceServiceRequest.FromString(await request.read())))
        return web.Response(content_type="application/x-protobuf")

    application = web.Application()
    application.router.add_post("/{tail:.*}", take)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{host}:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    metrics = Metrics(CollectorRegistry())
    wanted = traces.from_environment(
        {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{host}:{port}"}, metrics=metrics, about=ABOUT
    )
    assert wanted is not None
    running = asyncio.create_task(wanted.run())
    try:
        wanted.submit(test_spans.trace(test_spans.done()))
        async with asyncio.timeout(WAIT):
            path, request = await received.get()
        await until(lambda: metrics.round_traces.labels("exported")._value.get() == 1)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await runner.cleanup()
    assert path == "/v1/traces"
    names = [span.name for one in request.resource_spans for scope in one.scope_spans for span in scope.spans]
    assert {"round", "decide", "stop", "release", "member", "held"} <= set(names)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
    ],
    ids=["unset", "empty", "disabled", "a protocol that is not supported"],
)
def test_traces_are_off_without_endpoint(environment: dict[str, Any]) -> None:
    assert traces.from_environment(environment, metrics=Metrics(CollectorRegistry()), about=ABOUT) is None


def test_endpoint_password_is_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://me:secret@collector:4318"}
    assert traces.from_environment(environment, metrics=Metrics(CollectorRegistry()), about=ABOUT) is not None
    logged = capsys.readouterr().out
    assert "collector:4318" in logged
    assert "secret" not in logged


def test_missing_extra_is_logged_with_hint(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}
    assert traces.from_environment(environment, metrics=Metrics(CollectorRegistry()), about=ABOUT) is None
    assert "pip install '.[traces]'" in capsys.readouterr().out


def test_library_is_not_loaded_without_traces() -> None:
    code = (
        "import sys, controller.app.controller\n"
        "from kubemend.controller.app import traces\n"
        "traces.from_environment({}, metrics=None, about={})\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT * 2, check=True)
    assert loaded.stdout.strip() == "[]"
