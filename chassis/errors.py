"""What a service tells its caller when a call cannot be answered.

ServiceError
├── InvalidArgument      the request is wrong whatever the state of the system
├── OutOfRange           the request asks for something past the end of what exists
├── NotFound             a named thing does not exist
├── AlreadyExists        the caller tried to create what is already there
├── Unauthenticated      the caller did not say, or prove, who it is
├── PermissionDenied     the caller is known and may not do this
├── FailedPrecondition   the system is in a state that must change first; do not just retry
├── ResourceExhausted    a bound was reached; retry later, see ``retry_after``
├── Aborted              the attempt was overtaken; retry as a new attempt
├── Unavailable          the service, or one it needs, is not there now; retry
├── DeadlineExceeded     time ran out
├── Cancelled            the caller gave up
├── Unimplemented        the service does not do this
└── Internal             our own bug
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing wrong with a request: the field's path (``sampling.top_p``) and what it broke."""

    field: str
    description: str


class ServiceError(Exception):
    """Base of every error that crosses a service's border on purpose; never raised itself.

    ``reason`` is a stable UPPER_SNAKE word for programs, ``message`` is for people and may be
    shown to any caller, ``retry_after`` is in seconds, ``metadata`` holds facts for programs.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str,
        violations: Sequence[Violation] = (),
        retry_after: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.violations = tuple(violations)
        self.retry_after = retry_after
        self.metadata = dict(metadata or {})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.message!r}, reason={self.reason!r})"


class InvalidArgument(ServiceError):
    """The request is wrong whatever the state of the system."""


class OutOfRange(ServiceError):
    """The request asks for something past the end of what exists."""


class NotFound(ServiceError):
    """A named thing does not exist."""


class AlreadyExists(ServiceError):
    """The caller tried to create what is already there."""


class Unauthenticated(ServiceError):
    """The caller did not say, or prove, who it is."""


class PermissionDenied(ServiceError):
    """The caller is known and may not do this."""


class FailedPrecondition(ServiceError):
    """The system is in a state that must change first."""


class ResourceExhausted(ServiceError):
    """A bound was reached; ``retry_after`` says when to try again, where that is known."""


class Aborted(ServiceError):
    """The attempt was overtaken by another one, or by a change; a new attempt may succeed."""


class Unavailable(ServiceError):
    """The service, or one it needs, is not there now."""


class DeadlineExceeded(ServiceError):
    """Time ran out."""


class Cancelled(ServiceError):
    """The caller gave up."""


class Unimplemented(ServiceError):
    """The service does not do this."""


class Internal(ServiceError):
    """Our own bug; the message tells the caller nothing about the inside."""
