"""Refuses request messages that are too large or cannot be decoded, by the field's name."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from chassis.errors import InvalidArgument, ResourceExhausted, ServiceError, Violation
from chassis.interceptor import FACTORIES, Context, Handler
from chassis.wire_format import invalid_text_field, largest_field

# Looks at the bytes of a request message; the error refuses it.
Guard = Callable[[Descriptor, bytes], ServiceError | None]


@dataclass(frozen=True, slots=True)
class _Refused:
    """Stands in for a request message that was not decoded."""

    error: ServiceError


class RequestInterceptor(grpc.aio.ServerInterceptor):
    """Innermost interceptor, for calls with one request message.

    gRPC itself would answer such a message without details, or with UNKNOWN where it cannot be
    decoded. The handler never sees it. ``guard`` may refuse more, before a message is decoded.
    """

    def __init__(self, limit: int, guard: Guard | None = None) -> None:
        self._limit = limit
        self._guard = guard

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming or handler.request_deserializer is None:
            return handler
        respond = handler.unary_stream or handler.unary_unary

        def guarded(request: Any, context: Context) -> Any:
            if isinstance(request, _Refused):
                raise request.error
            return respond(request, context)

        return FACTORIES[False, handler.response_streaming](
            guarded, self._decoder(handler.request_deserializer), handler.response_serializer
        )

    def _decoder(self, decode: Any) -> Callable[[bytes], Any]:
        descriptor: Descriptor = decode.__self__.DESCRIPTOR

        def decode_or_refuse(data: bytes) -> Any:
            if len(data) > self._limit:
                return _Refused(_too_large(descriptor, data, self._limit))
            if self._guard is not None and (error := self._guard(descriptor, data)) is not None:
                return _Refused(error)
            try:
                return decode(data)
            except DecodeError:
                return _Refused(_malformed(descriptor, data))

        return decode_or_refuse


def _too_large(descriptor: Descriptor, data: bytes, limit: int) -> ServiceError:
    field = largest_field(descriptor, data)
    text = f"the request has {len(data)} bytes; the limit is {limit} bytes"
    return ResourceExhausted(
        text,
        reason="MESSAGE_TOO_LARGE",
        violations=[Violation(field, "holds most of the bytes")] if field else (),
        metadata={"limit_bytes": str(limit), "request_bytes": str(len(data))},
    )


def _malformed(descriptor: Descriptor, data: bytes) -> ServiceError:
    field = invalid_text_field(descriptor, data)
    if field:
        return InvalidArgument(
            f"{field} is not valid UTF-8",
            reason="INVALID_UTF8",
            violations=[Violation(field, "is not valid UTF-8")],
        )
    return InvalidArgument(f"not a valid {descriptor.full_name}", reason="REQUEST_MALFORMED")
