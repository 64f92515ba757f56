"""Traces of rounds, by OTLP. Off unless an endpoint is set by OpenTelemetry's own variables.

The library is an extra (``kubemend[traces]``) and loaded only where traces are wanted. A trace is made when its round
is over; what cannot be exported is counted and logged, and no round ever waits for it.
"""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import structlog

from common.own_thread import OwnThread
from controller.app.metrics import Metrics
from controller.app.spans import Span

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

log = structlog.get_logger(__name__)

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
"""OpenTelemetry's variables; the exporter reads all others itself (headers, timeout, certificates)."""

_HTTP: Final = "http/protobuf"
_MOST_WAITING: Final = 256
_EXPORT_SECONDS: Final = 60.0  # the exporter's own deadline, ten seconds by default, comes first


class Traces:
    """Exports one round's trace after another. ``take`` is plain and quick, ``run`` does the work."""

    def __init__(self, exporter: "SpanExporter", *, metrics: Metrics, about: Mapping[str, str]) -> None:
        """``about`` are the resource's attributes; OTEL_RESOURCE_ATTRIBUTES adds to them."""
        from controller.app import recording

        self._recorder = recording.Recorder(exporter, about=about)
        self._metrics = metrics
        self._waiting: asyncio.Queue[Span] = asyncio.Queue(_MOST_WAITING)

    def take(self, span: Span) -> None:
        """Have a round's trace exported, unless too many wait already."""
        try:
            self._waiting.put_nowait(span)
        except asyncio.QueueFull:
            self._lost(span, result="dropped", why=f"{_MOST_WAITING} others wait")

    async def run(self) -> None:
        """Export for ever."""
        thread = OwnThread("traces")
        try:
            while True:
                await self._export(await self._waiting.get(), thread)
        finally:
            thread.close(last=self._recorder.close)

    async def _export(self, span: Span, thread: OwnThread) -> None:
        try:
            exported = await thread.call(lambda: self._recorder.export(span), timeout=_EXPORT_SECONDS)
        except Exception as error:  # noqa: BLE001 - of a library: whatever it raises costs one trace, not the leader
            self._lost(span, result="failed", why=repr(error))
            return
        if exported:
            self._metrics.round_traces.labels("exported").inc()
        else:
            self._lost(span, result="failed", why="the endpoint did not take it")

    def _lost(self, span: Span, *, result: str, why: str) -> None:
        self._metrics.round_traces.labels(result).inc()
        log.warning("traces.lost", round=span.attributes.get("kubemend.round", ""), result=result, why=why)


def wanted(environment: Mapping[str, str], *, metrics: Metrics, about: Mapping[str, str]) -> Traces | None:
    """Return what exports traces; None where no endpoint is set, or where they cannot be exported (which is logged)."""
    endpoint = next((environment[name] for name in ENDPOINTS if environment.get(name)), "")
    if not endpoint or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    protocol = next((environment[name] for name in PROTOCOLS if environment.get(name)), _HTTP)
    if protocol != _HTTP:
        log.error("traces.unavailable", error=f"{protocol} is not spoken", mend=f"set {PROTOCOLS[0]}={_HTTP}")
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        log.error("traces.unavailable", error=repr(error), mend="pip install 'kubemend[traces]'")
        return None
    log.info("traces.wanted", endpoint=endpoint.rpartition("@")[2])  # a password may stand before it
    return Traces(OTLPSpanExporter(), metrics=metrics, about=about)
