"""Failed calls in the words of the command line."""

import grpc

from batonctl.errors import CommandError, InputError, UnreachableError
from chassis.errors import (
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    OutOfRange,
    ResourceExhausted,
    ServiceError,
    Unavailable,
)
from chassis.status import from_rpc_error


def command_error(failure: grpc.aio.AioRpcError, address: str) -> CommandError:
    """What to tell the person whose call to `address` failed."""
    error = from_rpc_error(failure)
    # Without ErrorInfo the reason is the code's name: gRPC itself could not get through.
    if isinstance(error, Unavailable) and error.reason == "UNAVAILABLE":
        return UnreachableError(
            f"nothing answers at {address}",
            hint="start a stack with `baton up`, or say where it is with --address",
        )
    return service_failure(error)


def service_failure(error: ServiceError) -> CommandError:
    """What to tell of an error that a service answered with."""
    text = f"{error.message} ({error.reason})"
    match error:
        case InvalidArgument() | NotFound() | OutOfRange():
            fields = "; ".join(f"{v.field}: {v.description}" for v in error.violations)
            return InputError(text, hint=fields)
        case ResourceExhausted() | Unavailable():
            return UnreachableError(text, hint=_when(error))
        case DeadlineExceeded():
            return UnreachableError(text, hint="allow more time with --timeout")
        case _:
            return CommandError(text, hint="`baton doctor` checks the stack")


def _when(error: ServiceError) -> str:
    if error.retry_after is None:
        return "try again later; `baton doctor` shows what the stack lacks"
    return f"try again in {error.retry_after:.1f} s"
