"""Spans as OpenTelemetry's SDK has them. Imported only where traces are wanted (``controller.app.traces``)."""

from collections.abc import Mapping
from typing import Final

from opentelemetry import context, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from controller.app.spans import Span

_SCOPE: Final = "kubemend"


class Recorder:
    """Turns a round into a trace and exports it, in whatever thread it is called; one call at a time."""

    def __init__(self, exporter: SpanExporter, *, about: Mapping[str, str]) -> None:
        """``about`` are the resource's attributes."""
        self._exporter = exporter
        self._ended = _Ended()
        provider = TracerProvider(resource=Resource.create(dict(about)), shutdown_on_exit=False)
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer(_SCOPE)

    def export(self, span: Span) -> bool:
        """Export a trace; return whether it was taken. The exporter has a deadline of its own."""
        spans: list[ReadableSpan] = []
        self._ended.spans = spans
        self._record(span, context.Context())
        # Nothing was recorded where OTEL_TRACES_SAMPLER leaves this trace out.
        return not spans or self._exporter.export(spans) is SpanExportResult.SUCCESS

    def close(self) -> None:
        """Give up the exporter's connection."""
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
    """Keeps what has ended until the whole trace has."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        """Keep it."""
        self.spans.append(span)


def _nanoseconds(moment: float) -> int:
    return round(moment * 1e9)
