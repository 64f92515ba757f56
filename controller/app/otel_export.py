"""Convert spans to those of OpenTelemetry's SDK. Imported only if traces are enabled (``controller.app.traces``)."""

from collections.abc import Mapping
from typing import Final

from opentelemetry import context, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from kubemend.controller.coordinator.spans import Span

_SCOPE: Final = "kubemend"


class OtelExporter:
    """Convert a round into a trace and export it, in the calling thread; one call at a time."""

    def __init__(self, exporter: SpanExporter, *, about: Mapping[str, str]) -> None:
        """``about`` are the resource's attributes."""
        self._exporter = exporter
        self._ended = _Ended()
        provider = TracerProvider(resource=Resource.create(dict(about)), shutdown_on_exit=False)
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer(_SCOPE)

    def export(self, span: Span) -> bool:
        """Export a trace; return whether the exporter accepted it. The exporter has its own timeout."""
        spans: list[ReadableSpan] = []
        self._ended.spans = spans
        self._record(span, context.Context())
        # Nothing was recorded if OTEL_TRACES_SAMPLER excludes this trace.
        return not spans or self._exporter.export(spans) is SpanExportResult.SUCCESS

    def close(self) -> None:
        """Close the exporter's connection."""
        self._exporter.shutdown()

    def _record(self, span: Span, within: context.Context) -> None:
        made = self._tracer.start_span(
            span.name, context=within, start_time=_nanoseconds(span.begin), attributes=dict(span.attributes)
        )
        if span.error:
            made.set_status(trace.Status(trace.StatusCode.ERROR, span.error))
        below = trace.set_span_in_context(made, within)
        for child in span.children:
            self._record(child, below)
        made.end(_nanoseconds(span.end))


class _Ended(SpanProcessor):
    """Collect ended spans until the whole trace has ended."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        """Collect one span."""
        self.spans.append(span)


def _nanoseconds(moment: float) -> int:
    return round(moment * 1e9)
