"""Gives every call its id, and its SERVER span in the caller's trace."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc

from chassis.interceptor import Call, CallInterceptor, Context
from chassis.request_id import METADATA_KEY, set_request_id
from chassis.telemetry import Span, SpanKind, extract, start_span
from chassis.telemetry.span import set_current_span

# Codes that mean "the server failed", by the conventions for gRPC server spans.
SERVER_FAULTS = frozenset(
    {
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)


class TraceInterceptor(CallInterceptor):
    """Starts the span, sends ``x-request-id`` as initial metadata, ends the span with the status.

    Only calls with one request message: a bidirectional stream carries many requests, and their
    messages carry a trace context each. ``untraced`` names further methods, by prefix
    (``/package.Service/``), that serve the system and not a request; health is one of them.
    """

    def __init__(self, untraced: Sequence[str] = ()) -> None:
        self._untraced = ("/grpc.", *untraced)

    def applies(self, call: Call) -> bool:
        return not call.request_streaming and not call.method.startswith(self._untraced)

    @asynccontextmanager
    async def around(self, call: Call, context: Context) -> AsyncIterator[None]:
        span = start_call_span(call)
        set_current_span(span)
        set_request_id(span.trace_id)
        code = grpc.StatusCode.UNKNOWN
        try:
            await context.send_initial_metadata(((METADATA_KEY, span.trace_id),))
            yield
            code = context.code() or grpc.StatusCode.OK
        except asyncio.CancelledError:
            expired = context.time_remaining() == 0
            code = grpc.StatusCode.DEADLINE_EXCEEDED if expired else grpc.StatusCode.CANCELLED
            raise
        except BaseException:
            code = context.code() or grpc.StatusCode.UNKNOWN
            raise
        finally:
            end_call_span(span, code, context.details())


def start_call_span(call: Call) -> Span:
    """The SERVER span of a call, in the caller's trace."""
    return start_span(
        call.name,
        parent=extract(call.metadata),
        kind=SpanKind.SERVER,
        attributes={"rpc.system.name": "grpc", "rpc.method": call.method.removeprefix("/")},
    )


def end_call_span(span: Span, code: grpc.StatusCode, details: str | bytes | None) -> None:
    """Ends the span of a call with its status."""
    span.set({"rpc.response.status_code": code.name})
    if code in SERVER_FAULTS:
        text = details.decode(errors="replace") if isinstance(details, bytes) else details
        span.fail(text or code.name, code.name)
    span.end()
