"""Spans as OTLP JSON lines: what a collector's file receiver reads, and ``baton trace``."""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import format_span_id, format_trace_id

from chassis.telemetry.trace_files import TraceFileWriter

log = logging.getLogger(__name__)


class FileSpanExporter(SpanExporter):
    """Writes one line per batch to the local trace store. Called by the export thread only."""

    # A disk is waited for.
    is_hopeless = False

    def __init__(self, directory: Path, service: str) -> None:
        self._writer = TraceFileWriter(directory, service)
        self._complained = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        line = json.dumps(encode(spans), separators=(",", ":")) + "\n"
        try:
            self._writer.append(line.encode())
        except OSError as error:
            if not self._complained:
                log.warning("cannot write traces: %s", error)
            self._complained = True
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        self._writer.close()


def encode(spans: Sequence[ReadableSpan]) -> dict[str, Any]:
    """An ExportTraceServiceRequest in the OTLP JSON encoding; all spans share one resource."""
    resource: Resource = spans[0].resource
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource.attributes)},
                "scopeSpans": [
                    {"scope": {"name": "baton"}, "spans": [_span(span) for span in spans]}
                ],
            }
        ]
    }


def _span(span: ReadableSpan) -> dict[str, Any]:
    context = span.get_span_context()
    assert context is not None, f"span {span.name} has no context"
    encoded: dict[str, Any] = {
        "traceId": format_trace_id(context.trace_id),
        "spanId": format_span_id(context.span_id),
        "name": span.name,
        # The enumeration of the SDK starts at 0 with INTERNAL, that of OTLP at 1.
        "kind": span.kind.value + 1,
        "startTimeUnixNano": str(span.start_time),
        "endTimeUnixNano": str(span.end_time),
        "attributes": _attributes(span.attributes),
        "events": [_event(event) for event in span.events],
        "status": {"code": span.status.status_code.value},
    }
    if span.parent is not None:
        encoded["parentSpanId"] = format_span_id(span.parent.span_id)
    if span.status.description:
        encoded["status"]["message"] = span.status.description
    return encoded


def _event(event: Event) -> dict[str, Any]:
    return {
        "name": event.name,
        "timeUnixNano": str(event.timestamp),
        "attributes": _attributes(event.attributes),
    }


def _attributes(attributes: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in (attributes or {}).items()]


def _value(value: object) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return {"arrayValue": {"values": [_value(item) for item in value]}}
    return {"stringValue": str(value)}
