"""Spans to an OTLP collector, and whether it takes them."""

import time
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

# A collector that takes nothing for this long is not waited for at the end.
PATIENCE_SECONDS = 1.0


class CollectorExporter(SpanExporter):
    """Sends batches over gRPC as OTEL_EXPORTER_OTLP_* say. Called by the export thread only."""

    def __init__(self) -> None:
        self._exporter = OTLPSpanExporter()
        # When the first batch was sent of those that were not taken; None: all were.
        self._waiting_since: float | None = None

    @property
    def is_hopeless(self) -> bool:
        """Whether the collector takes nothing; any thread may ask."""
        since = self._waiting_since
        return since is not None and time.monotonic() - since > PATIENCE_SECONDS

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._waiting_since = self._waiting_since or time.monotonic()
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self._waiting_since = None
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()
