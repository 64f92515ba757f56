"""An operator's view of a round: documented metrics, a log in which one grep finds the round, a trace."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from hack import monitoring, monitoring_logs, monitoring_metrics
from hack.devnode.cluster import Cluster
from hack.devnode.gangs import Gang
from hack.devnode.rounds import Rounds
from kubemend.common.kube import client as kube
from tests.scenarios import training
from tests.scenarios.gang import sentences
from tests.scenarios.gang.product import Product

pytestmark = pytest.mark.devnode

Reported = asyncio.Queue[ExportTraceServiceRequest]


@pytest.fixture
async def collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Reported]:
    """A collector of traces; controllers that are started from now on use it."""
    reported: Reported = asyncio.Queue()

    async def take(request: web.Request) -> web.Response:
        reported.put_nowait(ExportTraceServiceRequest.FromString(await request.read()))
        return web.Response(content_type="application/x-protobuf")

    application = web.Application()
    application.router.add_post("/v1/traces", take)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{runner.addresses[0][1]}")
    yield reported
    await runner.cleanup()


async def scraped(address: str) -> dict[str, set[str]]:
    """Return the series of a process, and the labels that each has."""
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}/metrics") as answer:
        text = await answer.text()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


def lines(log: Path) -> list[dict[str, Any]]:
    """Return a process's log events, without one that is being written."""
    return [json.loads(line) for line in log.read_text().rpartition("\n")[0].splitlines()]


async def test_round_leaves_metrics_log_and_trace(
    cluster: Cluster, product: Product, api: kube.KubeClient, collector: Reported
) -> None:
    await product.start(nodes=2)
    async with Gang.on(cluster.nodes, "watched") as gang:
        fault = await gang.end(1, exit_code=1)
        restart = await Rounds(api, gang.template.key).finished(1)
        assert sentences.is_done(restart, members=gang.size)
        await gang.all_running(since=fault)
        round_id = f"{restart['metadata']['namespace']}/{restart['metadata']['name']}"

        async with asyncio.timeout(training.DEADLINE):
            reported = await collector.get()
        spans = [span for one in reported.resource_spans for scope in one.scope_spans for span in scope.spans]
        assert sum(span.name == "member" for span in spans) == gang.size
        (root,) = [span for span in spans if not span.parent_span_id]
        assert round_id in {attribute.value.string_value for attribute in root.attributes}

        known = [each.series() for each in monitoring_metrics.exported()]
        names = {name: labels for series in known for name, labels in series.items()}
        running = [(each.metrics_address, each.log) for each in product.agents.values()]
        running += [(each.metrics_address, each.log) for each in product.controllers.values()]
        for address, _ in running:
            found = await scraped(address)
            assert len(found) > 20
            for name, labels in found.items():
                assert labels <= names[name], name

        events = {each.name for each in monitoring_logs.events(monitoring.ROOT)}
        for _, log in running:
            logged = lines(log)
            assert {line["event"] for line in logged if "logger" not in line} <= events
            about = [line["event"] for line in logged if round_id in map(str, line.values())]
            assert about
