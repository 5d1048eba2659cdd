"""Turns calls away before anything of them is read."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import grpc.aio

from chassis.error_interceptor import abort
from chassis.errors import ServiceError
from chassis.interceptor import FACTORIES, Call, Context, Handler
from chassis.request_id import METADATA_KEY
from chassis.status import status_code
from chassis.trace_interceptor import end_call_span, start_call_span


@dataclass(frozen=True, slots=True)
class Door:
    """``check`` raises the ServiceError for a call of ``methods`` that would have no chance now."""

    methods: frozenset[str]
    check: Callable[[], None]


class DoorInterceptor(grpc.aio.ServerInterceptor):
    """Outermost interceptor. Whoever is refused costs no reading, and waits for none.

    Such a call is answered with trailers alone: ``x-request-id`` is among them.
    """

    def __init__(self, door: Door) -> None:
        self._door = door

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        details: Any = handler_call_details
        if details.method in self._door.methods:
            try:
                self._door.check()
            except ServiceError as error:
                call = Call(details.method, details.invocation_metadata, request_streaming=True)
                # To gRPC a stream of messages, whatever the method has: those it does not wait for.
                return FACTORIES[True, True](partial(_refuse, call, error), None, None)
        return await continuation(handler_call_details)


async def _refuse(call: Call, error: ServiceError, messages: Any, context: Context) -> None:
    span = start_call_span(call)
    try:
        await abort(context, error, ((METADATA_KEY, span.trace_id),))
    finally:
        end_call_span(span, status_code(error), error.message)
