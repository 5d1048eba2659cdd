"""Reads the local trace files of all processes."""

import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from batonctl.errors import CommandError, InputError
from batonctl.trace_model import FAILED, AttributeValue, Trace, TraceEvent, TraceSpan
from chassis.telemetry import trace_directory

ROOT_NAMES = ("GenerateStream", "Generate")
POLL_SECONDS = 0.05
NAMED_IDS = 3


def load_trace(
    request_id: str | None = None, *, directory: Path | None = None, wait: float = 0.0
) -> Trace:
    """The trace of a request, by its id or an unambiguous start of it; None means the latest.

    Waits up to ``wait`` seconds for parts that are not written yet, and then takes what there
    is. Raises InputError if there is no such trace, or more than one.
    """
    if request_id is not None and not request_id.strip():
        raise InputError("the request id is empty", hint="Without one the latest request is shown.")
    folder = directory or trace_directory()
    give_up = time.monotonic() + wait
    while True:
        trace = _load(request_id, folder)
        if (trace is not None and trace.is_complete) or time.monotonic() >= give_up:
            break
        time.sleep(POLL_SECONDS)
    if trace is None:
        raise _not_found(request_id, folder)
    return trace


def _load(request_id: str | None, folder: Path) -> Trace | None:
    trace_id = latest_trace_id(folder) if request_id is None else request_id.lower()
    if trace_id is None:
        return None
    found: dict[str, list[TraceSpan]] = {}
    for span in read_spans(folder, containing=trace_id):
        if span.trace_id.startswith(trace_id):
            found.setdefault(span.trace_id, []).append(span)
    if len(found) > 1:
        ids = sorted(found)
        shown = ", ".join(ids[:NAMED_IDS]) + ", ..." * (len(ids) > NAMED_IDS)
        raise InputError(f"{len(ids)} requests start with {trace_id}: {shown}")
    return next((Trace(key, tuple(spans)) for key, spans in found.items()), None)


def latest_trace_id(folder: Path) -> str | None:
    """The request that ended last, of those that entered through the gateway."""
    latest: TraceSpan | None = None
    for path in sorted(_files(folder), key=_changed, reverse=True):
        if latest is not None and _changed(path) < latest.end_ns:
            break
        for span in _spans_of(_lines(path, "GenerationService/Generate")):
            if span.name in ROOT_NAMES and (latest is None or span.end_ns > latest.end_ns):
                latest = span
    return latest.trace_id if latest is not None else None


def read_spans(folder: Path, containing: str) -> Iterator[TraceSpan]:
    """The spans of every line of every file that has the text ``containing``."""
    for path in _files(folder):
        yield from _spans_of(_lines(path, containing))


def _files(folder: Path) -> list[Path]:
    return list(folder.glob("*.jsonl"))


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _lines(path: Path, containing: str) -> Iterator[str]:
    # A line is searched before it is parsed: only few are of the request in question.
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from (line for line in file if containing in line)
    except OSError:
        # Rotated away by its writer meanwhile, or not for this user to read.
        return


def _spans_of(lines: Iterable[str]) -> Iterator[TraceSpan]:
    for line in lines:
        try:
            batch = json.loads(line)
            yield from [
                _span(span, _attributes(resource["resource"]["attributes"]))
                for resource in batch["resourceSpans"]
                for scope in resource["scopeSpans"]
                for span in scope["spans"]
            ]
        except (ValueError, KeyError, TypeError, AttributeError):
            # The last line of a process that was killed may be cut off.
            continue


def _span(span: dict[str, Any], resource: dict[str, AttributeValue]) -> TraceSpan:
    status = span.get("status", {})
    failed = status.get("code") == 2
    return TraceSpan(
        trace_id=span["traceId"],
        span_id=span["spanId"],
        parent_id=span.get("parentSpanId", ""),
        name=span["name"],
        kind=span["kind"],
        service=str(resource.get("service.name", "")),
        start_ns=int(span["startTimeUnixNano"]),
        end_ns=int(span["endTimeUnixNano"]),
        attributes=_attributes(span["attributes"]),
        events=tuple(
            TraceEvent(event["name"], int(event["timeUnixNano"]), _attributes(event["attributes"]))
            for event in span["events"]
        ),
        error=status.get("message") or FAILED if failed else None,
    )


def _attributes(pairs: list[dict[str, Any]]) -> dict[str, AttributeValue]:
    return {pair["key"]: _value(pair["value"]) for pair in pairs}


def _value(value: dict[str, Any]) -> AttributeValue:
    ((kind, content),) = value.items()
    if kind == "intValue":
        return int(content)
    if kind == "arrayValue":
        return [_value(item) for item in content["values"]]
    plain: AttributeValue = content
    return plain


def _not_found(request_id: str | None, folder: Path) -> CommandError:
    hint = (
        f"Traces are read from {folder}; with an OTLP collector configured they go there instead."
    )
    if request_id is None:
        return InputError("there is no trace yet", hint=hint)
    return InputError(f"no trace of request {request_id}", hint=hint)
