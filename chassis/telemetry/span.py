"""Spans of the trace that a request leaves behind."""

import asyncio
import enum
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import TypeAlias

from opentelemetry import context as otel_context
from opentelemetry import trace as otel
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

AttributeValue: TypeAlias = (
    str | bool | int | float | Sequence[str] | Sequence[bool] | Sequence[int] | Sequence[float]
)
Attributes: TypeAlias = Mapping[str, AttributeValue]

_propagator = TraceContextTextMapPropagator()
_ids = RandomIdGenerator()
_current: ContextVar["Span | None"] = ContextVar("baton_current_span", default=None)


class SpanKind(enum.Enum):
    """The side of a call that a span describes."""

    INTERNAL = otel.SpanKind.INTERNAL
    SERVER = otel.SpanKind.SERVER
    CLIENT = otel.SpanKind.CLIENT


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The W3C trace context of a span in another process."""

    traceparent: str
    tracestate: str = ""

    @property
    def trace_id(self) -> str:
        """32 hex digits, "" if the context is malformed."""
        found = _span_context(self)
        return otel.format_trace_id(found.trace_id) if found.is_valid else ""


class Span:
    """A stage of a request. Usable from any thread; cheap no-op where it is not sampled.

    As a context manager it ends on leaving, and is marked failed by an exception.
    """

    __slots__ = ("_span",)

    def __init__(self, span: otel.Span) -> None:
        self._span = span

    @property
    def trace_id(self) -> str:
        """32 hex digits; equal to the request id. Valid also where nothing is recorded."""
        return otel.format_trace_id(self._span.get_span_context().trace_id)

    @property
    def span_id(self) -> str:
        """16 hex digits."""
        return otel.format_span_id(self._span.get_span_context().span_id)

    @property
    def context(self) -> TraceContext:
        """What another process needs to start children of this span."""
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, otel.set_span_in_context(self._span, otel_context.Context()))
        return TraceContext(carrier.get("traceparent", ""), carrier.get("tracestate", ""))

    @property
    def traceparent(self) -> str:
        """The W3C traceparent of this span."""
        return self.context.traceparent

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """gRPC metadata that makes the called service continue this trace."""
        context = self.context
        pairs = (("traceparent", context.traceparent), ("tracestate", context.tracestate))
        return tuple((key, value) for key, value in pairs if value)

    def set(self, attributes: Attributes) -> None:
        """Adds attributes; later values win."""
        self._span.set_attributes(attributes)

    def event(
        self, name: str, attributes: Attributes | None = None, time_ns: int | None = None
    ) -> None:
        """Marks a moment of the span (wall clock, ns since the epoch; default now)."""
        self._span.add_event(name, attributes, time_ns)

    def fail(self, description: str, error_type: str = "") -> None:
        """Marks the span failed; ``error_type`` is a status code or an exception's name."""
        self._span.set_status(otel.Status(otel.StatusCode.ERROR, description))
        if error_type:
            self._span.set_attribute("error.type", error_type)

    def end(self, end_ns: int | None = None) -> None:
        """Ends the span (wall clock, ns since the epoch; default now). A second end is ignored."""
        if self._span.is_recording():
            self._span.end(end_ns)

    def __enter__(self) -> "Span":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, asyncio.CancelledError):
            self.fail("cancelled", "CANCELLED")
        elif error is not None:
            self.fail(str(error), type(error).__name__)
        self.end()


def start_span(
    name: str,
    *,
    parent: Span | TraceContext | str | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
    attributes: Attributes | None = None,
    start_ns: int | None = None,
) -> Span:
    """Starts a span; the caller ends it.

    ``parent`` is a span, another process's context or its traceparent; None means the span of
    the call served now, and outside of one a new trace. A malformed context counts as none.
    ``start_ns`` is wall-clock time in ns since the epoch.
    """
    context = _parent_context(parent)
    tracer = otel_tracer()
    if tracer is not None:
        span = tracer.start_span(name, context, kind.value, attributes, start_time=start_ns)
        if span.get_span_context().is_valid:
            return Span(span)
    return Span(_unrecorded(context))


def current_span() -> Span | None:
    """The SERVER span of the call that this task serves."""
    return _current.get()


def set_current_span(span: Span) -> None:
    """Makes ``span`` the default parent in this task and in what it starts."""
    _current.set(span)


def extract(metadata: Iterable[tuple[str, str | bytes]]) -> TraceContext | None:
    """The caller's trace context from gRPC metadata, None if there is none or it is malformed."""
    found = {key: value for key, value in metadata if isinstance(value, str)}
    context = TraceContext(found.get("traceparent", ""), found.get("tracestate", ""))
    return context if context.trace_id else None


_tracer: otel.Tracer | None = None


def otel_tracer() -> otel.Tracer | None:
    """The process's tracer; None before setup and after shutdown."""
    return _tracer


def use_tracer(tracer: otel.Tracer | None) -> None:
    """Set by ``setup`` and ``shutdown``."""
    global _tracer
    _tracer = tracer


def _parent_context(parent: Span | TraceContext | str | None) -> otel_context.Context:
    if isinstance(parent, str):
        parent = TraceContext(parent)
    if parent is None:
        parent = current_span()
    # An empty context, not the ambient one: this module alone says who the parent is.
    empty = otel_context.Context()
    if isinstance(parent, Span):
        return otel.set_span_in_context(parent._span, empty)
    if isinstance(parent, TraceContext):
        return otel.set_span_in_context(otel.NonRecordingSpan(_span_context(parent)), empty)
    return empty


def _span_context(context: TraceContext) -> otel.SpanContext:
    carrier = {"traceparent": context.traceparent, "tracestate": context.tracestate}
    found = _propagator.extract(carrier, otel_context.Context())
    return otel.get_current_span(found).get_span_context()


def _unrecorded(context: otel_context.Context) -> otel.Span:
    """A span that only carries ids: the parent's, or fresh ones, so that a request has an id."""
    parent = otel.get_current_span(context).get_span_context()
    if parent.is_valid:
        return otel.NonRecordingSpan(parent)
    return otel.NonRecordingSpan(
        otel.SpanContext(_ids.generate_trace_id(), _ids.generate_span_id(), is_remote=False)
    )
