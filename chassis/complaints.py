"""What is wrong with a request, gathered so that the caller hears everything at once."""

from chassis.errors import InvalidArgument, Violation


class Complaints:
    """Violations found so far; the first one gives the error its reason and message."""

    def __init__(self) -> None:
        self._reasons: list[str] = []
        self._violations: list[Violation] = []

    def add(self, reason: str, field: str, description: str) -> None:
        """``field`` is the path in the request, such as ``sampling.top_p``."""
        self._reasons.append(reason)
        self._violations.append(Violation(field, description))

    def raise_any(self) -> None:
        """Raises InvalidArgument with all violations, if there are any."""
        if self._violations:
            first = self._violations[0]
            more = f" (and {len(self._violations) - 1} more)" if len(self._violations) > 1 else ""
            raise InvalidArgument(
                f"{first.field}: {first.description}{more}",
                reason=self._reasons[0],
                violations=self._violations,
            )


def refuse(reason: str, field: str, description: str) -> InvalidArgument:
    """The error for a single violation."""
    return InvalidArgument(
        f"{field}: {description}", reason=reason, violations=[Violation(field, description)]
    )
