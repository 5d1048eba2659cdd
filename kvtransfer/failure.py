"""Service errors inside messages."""

from baton.v1 import decode_pb2
from chassis.errors import ServiceError
from chassis.status import code_number, error_from_code


def failure_to_pb(error: ServiceError) -> decode_pb2.Failure:
    """The message form of an error."""
    failure = decode_pb2.Failure(
        code=code_number(error), reason=error.reason, message=error.message
    )
    if error.retry_after is not None:
        failure.retry_delay.FromNanoseconds(round(error.retry_after * 1e9))
    return failure


def failure_from_pb(failure: decode_pb2.Failure) -> ServiceError:
    """The error that a message carries."""
    has_delay = failure.HasField("retry_delay")
    return error_from_code(
        failure.code,
        failure.message,
        reason=failure.reason,
        retry_after=failure.retry_delay.ToNanoseconds() / 1e9 if has_delay else None,
    )
