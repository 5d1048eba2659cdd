"""Tracing: the only door to OpenTelemetry.

``setup`` once per process, ``start_span`` anywhere and from any thread, ``shutdown`` at the end.
Ending a span appends it to a bounded queue; a thread of its own exports, to an OTLP collector or
to local files. Nothing here ever waits for an exporter, and where the queue is full spans are
dropped, not callers.
"""

from chassis.telemetry.provider import setup, shutdown
from chassis.telemetry.span import (
    Attributes,
    Span,
    SpanKind,
    TraceContext,
    current_span,
    extract,
    start_span,
)
from chassis.telemetry.trace_files import trace_directory

__all__ = [
    "Attributes",
    "Span",
    "SpanKind",
    "TraceContext",
    "current_span",
    "extract",
    "setup",
    "shutdown",
    "start_span",
    "trace_directory",
]
