"""Which error of a package below becomes which error of the service above."""

from collections.abc import Sequence
from dataclasses import dataclass

from chassis.errors import Internal, ServiceError

INTERNAL_MESSAGE = "internal error; the service's log has the details under the request id"


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """One row: exceptions of type ``exception`` become ``error`` with ``reason``.

    The exception's own text is passed on, so a row is for exceptions whose text is meant for
    callers; ``message`` replaces it where it is not.
    """

    exception: type[Exception]
    error: type[ServiceError]
    reason: str
    message: str | None = None
    retry_after: float | None = None


class ErrorTable:
    """Translates exceptions at a service's border, most specific row first.

    Raises ValueError at construction if a row can never be reached because an earlier row
    names one of its base classes.
    """

    def __init__(self, rows: Sequence[ErrorRow] = ()) -> None:
        for index, row in enumerate(rows):
            for earlier in rows[:index]:
                if issubclass(row.exception, earlier.exception):
                    raise ValueError(
                        f"row {row.exception.__name__} is hidden by {earlier.exception.__name__}"
                    )
        self._rows = tuple(rows)

    def translate(self, exception: Exception) -> ServiceError:
        """The service's error for an exception; anything without a row is our own bug."""
        if isinstance(exception, ServiceError):
            return exception
        row = self._row(type(exception))
        if row is None:
            return Internal(INTERNAL_MESSAGE, reason="INTERNAL")
        message = str(exception) if row.message is None else row.message
        return row.error(message, reason=row.reason, retry_after=row.retry_after)

    def knows(self, exception: Exception) -> bool:
        """Whether the exception is expected, that is, not our own bug."""
        return isinstance(exception, ServiceError) or self._row(type(exception)) is not None

    def missing(self, root: type[Exception]) -> list[type[Exception]]:
        """The classes below ``root`` that no row translates; a total table returns none.

        A row for ``root`` itself does not count: it would hide every class added later.
        """
        return [
            kind
            for kind in _descendants(root)
            if not any(
                issubclass(kind, row.exception) for row in self._rows if row.exception is not root
            )
        ]

    def _row(self, kind: type[Exception]) -> ErrorRow | None:
        return next((row for row in self._rows if issubclass(kind, row.exception)), None)


def _descendants(root: type[Exception]) -> list[type[Exception]]:
    found: list[type[Exception]] = []
    for kind in root.__subclasses__():
        found += [kind, *_descendants(kind)]
    return found
