"""Service errors inside messages, for streams that carry many requests."""

from baton.v1 import decode_pb2
from chassis.durations import to_duration, to_seconds
from chassis.errors import ServiceError
from chassis.status import code_number, error_from_code


def failure_to_pb(error: ServiceError) -> decode_pb2.Failure:
    """The message form of an error."""
    failure = decode_pb2.Failure(
        code=code_number(error), reason=error.reason, message=error.message
    )
    if error.retry_after is not None:
        failure.retry_delay.CopyFrom(to_duration(error.retry_after))
    return failure


def failure_from_pb(failure: decode_pb2.Failure) -> ServiceError:
    """The error that a message carries."""
    has_delay = failure.HasField("retry_delay")
    return error_from_code(
        failure.code,
        failure.message,
        reason=failure.reason or "UNKNOWN",
        retry_after=to_seconds(failure.retry_delay) if has_delay else None,
    )
