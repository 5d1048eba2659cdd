"""Errors as gRPC statuses, and back.

On the wire an error is a google.rpc.Status in the trailers: ErrorInfo (reason, domain "baton"),
BadRequest (one violation per field) and RetryInfo, as far as the error has them.
"""

from collections.abc import Iterable, Sequence

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from chassis.durations import to_duration, to_seconds
from chassis.errors import (
    Aborted,
    AlreadyExists,
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PermissionDenied,
    ResourceExhausted,
    ServiceError,
    Unauthenticated,
    Unavailable,
    Unimplemented,
    Violation,
)

DOMAIN = "baton"
DETAILS_KEY = "grpc-status-details-bin"
# Trailers share a budget of 8 KiB (grpc's soft metadata limit), so an error must stay small.
MAX_MESSAGE_CHARS = 1024
MAX_VIOLATIONS = 16
MAX_VIOLATION_CHARS = 160

CODES: dict[type[ServiceError], grpc.StatusCode] = {
    InvalidArgument: grpc.StatusCode.INVALID_ARGUMENT,
    OutOfRange: grpc.StatusCode.OUT_OF_RANGE,
    NotFound: grpc.StatusCode.NOT_FOUND,
    AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    FailedPrecondition: grpc.StatusCode.FAILED_PRECONDITION,
    ResourceExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Aborted: grpc.StatusCode.ABORTED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    Cancelled: grpc.StatusCode.CANCELLED,
    Unimplemented: grpc.StatusCode.UNIMPLEMENTED,
    Internal: grpc.StatusCode.INTERNAL,
}
_BY_NUMBER = {code.value[0]: kind for kind, code in CODES.items()}


def status_code(error: ServiceError) -> grpc.StatusCode:
    """The canonical code of an error, also of a subclass made elsewhere."""
    return next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)


def code_number(error: ServiceError) -> int:
    """The code as a google.rpc.Code value, for messages that carry failures."""
    number: int = status_code(error).value[0]
    return number


def error_from_code(
    number: int, message: str, *, reason: str, retry_after: float | None = None
) -> ServiceError:
    """The typed error for a google.rpc.Code value; codes we never send become Internal."""
    kind = _BY_NUMBER.get(number, Internal)
    return kind(message, reason=reason, retry_after=retry_after)


def to_status(error: ServiceError) -> status_pb2.Status:
    """The error as it travels; long texts are cut so that it always fits into the trailers."""
    status = status_pb2.Status(code=code_number(error), message=_cut(error.message))
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    info.metadata.update({key: _cut(value) for key, value in error.metadata.items()})
    status.details.add().Pack(info)
    if error.violations:
        status.details.add().Pack(_bad_request(error.violations))
    if error.retry_after is not None:
        retry = error_details_pb2.RetryInfo(retry_delay=to_duration(error.retry_after))
        status.details.add().Pack(retry)
    return status


def from_rpc_error(error: grpc.aio.AioRpcError) -> ServiceError:
    """The typed error behind a failed call, with its reason, violations and retry delay.

    A status without details (raised by gRPC itself or by a proxy) gets the name of its code
    as reason. CANCELLED without details is Unavailable: who cancels a call is told in another way,
    and a server that stops ends so what arrives in that moment.
    """
    number: int = error.code().value[0]
    message = error.details() or error.code().name
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                return from_status(status_pb2.Status.FromString(value))
            except DecodeError:
                break
    if error.code() is grpc.StatusCode.CANCELLED:
        return Unavailable("the service ended the call without a word", reason="UNAVAILABLE")
    kind = _BY_NUMBER.get(number, Internal)
    reason = "MESSAGE_TOO_LARGE" if "message larger than max" in message else error.code().name
    return kind(message, reason=reason)


def from_status(status: status_pb2.Status) -> ServiceError:
    """The typed error of a google.rpc.Status."""
    kind = _BY_NUMBER.get(status.code, Internal)
    info = error_details_pb2.ErrorInfo()
    bad_request = error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    has_retry = False
    for detail in status.details:
        _ = detail.Unpack(info) or detail.Unpack(bad_request)
        has_retry = detail.Unpack(retry) or has_retry
    return kind(
        status.message,
        reason=info.reason or "UNKNOWN",
        violations=[Violation(v.field, v.description) for v in bad_request.field_violations],
        retry_after=to_seconds(retry.retry_delay) if has_retry else None,
        metadata=dict(info.metadata),
    )


def _bad_request(violations: Sequence[Violation]) -> error_details_pb2.BadRequest:
    shown: Iterable[Violation] = violations[:MAX_VIOLATIONS]
    return error_details_pb2.BadRequest(
        field_violations=[
            error_details_pb2.BadRequest.FieldViolation(
                field=_cut(violation.field, MAX_VIOLATION_CHARS),
                description=_cut(violation.description, MAX_VIOLATION_CHARS),
            )
            for violation in shown
        ]
    )


def _cut(text: str, limit: int = MAX_MESSAGE_CHARS) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
