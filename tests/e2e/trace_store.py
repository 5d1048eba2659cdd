"""Reads spans that services left in files, in the OTLP JSON encoding."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Spans are flushed by a thread of the service; a test waits for them, not for a time.
POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Event:
    """A moment of a span."""

    time_ns: int
    attributes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoredSpan:
    """A span as it was exported; ``parent_id`` is "" where it has no parent."""

    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    events: tuple[tuple[str, Event], ...]


class TraceStore:
    """The files of one directory, read anew at every question."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def span(self, trace_id: str, name: str) -> StoredSpan:
        """The span of that name; waits until it has been exported."""
        while (found := self.find(trace_id, name)) is None:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
        return found

    async def events(self, trace_id: str, span: str, name: str) -> list[Event]:
        """The events of that name of a span, in order."""
        found = await self.span(trace_id, span)
        return [event for event_name, event in found.events if event_name == name]

    def find(self, trace_id: str, name: str) -> StoredSpan | None:
        """The span of that name, if it has been exported already."""
        for path in self._directory.rglob("*"):
            for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
                for span in _spans(json.loads(line)):
                    if span["traceId"] == trace_id and span["name"] == name:
                        return _decode(span)
        return None


def _spans(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        span
        for resource in document["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def _decode(span: dict[str, Any]) -> StoredSpan:
    events = tuple(
        (event["name"], Event(int(event["timeUnixNano"]), _attributes(event["attributes"])))
        for event in span["events"]
    )
    parent_id = span.get("parentSpanId", "")
    return StoredSpan(span["spanId"], parent_id, _attributes(span["attributes"]), events)


def _attributes(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    return {pair["key"]: _value(pair["value"]) for pair in pairs}


def _value(encoded: dict[str, Any]) -> Any:
    ((kind, value),) = encoded.items()
    if kind == "arrayValue":
        return [_value(item) for item in value["values"]]
    decode = {"intValue": int, "doubleValue": float, "stringValue": str, "boolValue": bool}
    return decode[kind](value)
