"""What services answer, and what the chassis raises, in the words of the command line."""

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


def command_error(error: ServiceError, address: str = "") -> CommandError:
    """What to tell the person; `address` is who was asked, if that was a service."""
    # Without ErrorInfo the reason is the code's name: gRPC itself could not get through.
    if isinstance(error, Unavailable) and error.reason == "UNAVAILABLE" and address:
        return UnreachableError(
            f"nothing answers at {address}",
            hint="start a stack with `baton up`, or say where it is with --address",
        )
    text = f"{error.message} ({error.reason})"
    match error:
        case InvalidArgument() | NotFound() | OutOfRange():
            # One wrong field is usually the whole message: do not say it twice.
            complaints = [f"{v.field}: {v.description}" for v in error.violations]
            fields = "; ".join(c for c in complaints if len(complaints) > 1 or c != error.message)
            return InputError(text, hint=fields)
        case ResourceExhausted() | Unavailable():
            return UnreachableError(text, hint=_when(error))
        case DeadlineExceeded():
            return UnreachableError(text, hint="allow more time with --timeout")
        case _:
            return CommandError(text, hint="`baton doctor` checks machine and stack")


def _when(error: ServiceError) -> str:
    if error.retry_after is None:
        return "try again later; `baton doctor` shows what is missing"
    return f"try again in {error.retry_after:.1f} s"
