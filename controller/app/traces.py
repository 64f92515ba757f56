"""Export traces of rounds by OTLP. Off unless OpenTelemetry's own variables set an endpoint.

The library is an extra (``kubemend[traces]``) and loaded only if traces are enabled. A trace is made when its round has
ended. A trace that cannot be exported is counted and logged; no round waits for an export.
"""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import structlog

from kubemend.common.blocking import DedicatedThread
from kubemend.controller.coordinator.spans import Span
from kubemend.controller.metrics import Metrics

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

log = structlog.get_logger(__name__)

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
"""OpenTelemetry's variables; the exporter reads the others itself (headers, timeout, certificates)."""

_HTTP: Final = "http/protobuf"
_MOST_WAITING: Final = 256
_EXPORT_SECONDS: Final = 60.0  # the exporter's own timeout, ten seconds by default, ends first


class Traces:
    """Export one round's trace after another. ``submit`` only queues; ``run`` exports."""

    def __init__(self, exporter: "SpanExporter", *, metrics: Metrics, about: Mapping[str, str]) -> None:
        """``about`` are the resource's attributes; OTEL_RESOURCE_ATTRIBUTES adds to them."""
        from kubemend.controller.app import otel_export

        self._recorder = otel_export.OtelExporter(exporter, about=about)
        self._metrics = metrics
        self._waiting: asyncio.Queue[Span] = asyncio.Queue(_MOST_WAITING)

    def submit(self, span: Span) -> None:
        """Queue a round's trace for export, unless too many are queued already."""
        try:
            self._waiting.put_nowait(span)
        except asyncio.QueueFull:
            self._lost(span, result="dropped", reason=f"{_MOST_WAITING} traces are queued already")

    async def run(self) -> None:
        """Export traces indefinitely."""
        thread = DedicatedThread("traces")
        try:
            while True:
                await self._export(await self._waiting.get(), thread)
        finally:
            thread.close(last=self._recorder.close)

    async def _export(self, span: Span, thread: DedicatedThread) -> None:
        try:
            exported = await thread.call(lambda: self._recorder.export(span), timeout=_EXPORT_SECONDS)
        except Exception as error:  # noqa: BLE001 - a library's error costs one trace, not the leader
            self._lost(span, result="failed", reason=repr(error))
            return
        if exported:
            self._metrics.round_traces.labels("exported").inc()
        else:
            self._lost(span, result="failed", reason="the endpoint rejected the trace")

    def _lost(self, span: Span, *, result: str, reason: str) -> None:
        self._metrics.round_traces.labels(result).inc()
        log.warning("traces.lost", round=span.attributes.get("kubemend.round", ""), result=result, reason=reason)


def from_environment(environment: Mapping[str, str], *, metrics: Metrics, about: Mapping[str, str]) -> Traces | None:
    """Return the trace exporter; None if no endpoint is set or traces cannot be exported (which is logged)."""
    endpoint = next((environment[name] for name in ENDPOINTS if environment.get(name)), "")
    if not endpoint or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    protocol = next((environment[name] for name in PROTOCOLS if environment.get(name)), _HTTP)
    if protocol != _HTTP:
        log.error("traces.unavailable", error=f"{protocol} is not supported", hint=f"Set {PROTOCOLS[0]}={_HTTP}.")
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        log.error(
            "traces.unavailable",
            error=repr(error),
            hint="kubemend's image has it. In a checkout run pip install '.[traces]'.",
        )
        return None
    log.info("traces.enabled", endpoint=endpoint.rpartition("@")[2])  # the part before "@" may hold a password
    return Traces(OTLPSpanExporter(), metrics=metrics, about=about)
