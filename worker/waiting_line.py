"""Who waits for room on a worker, and in what order."""

from typing import Generic, TypeVar

T = TypeVar("T")


class WaitingLine(Generic[T]):
    """Attempts by id: those that continue an answer first, each kind in order of arrival.

    A continuation has had its turn once and lost its room to others (protocol 5.4); behind all
    who came since, it could lose it again and again. There are never more of them than requests
    that were under way, so that they hold up new ones for a bounded time.
    """

    def __init__(self) -> None:
        self._continuing: dict[bytes, T] = {}
        self._new: dict[bytes, T] = {}

    def __len__(self) -> int:
        return len(self._continuing) + len(self._new)

    def __contains__(self, attempt_id: bytes) -> bool:
        return attempt_id in self._continuing or attempt_id in self._new

    def add(self, attempt_id: bytes, attempt: T, *, continues: bool) -> None:
        """Behind all others of its kind."""
        (self._continuing if continues else self._new)[attempt_id] = attempt

    @property
    def head(self) -> T:
        """Whose turn it is; somebody must be waiting."""
        return next(iter((self._continuing or self._new).values()))

    def pop(self, attempt_id: bytes) -> T | None:
        """Takes an attempt out, wherever it stands; None for one that does not wait."""
        found = self._continuing.pop(attempt_id, None)
        return self._new.pop(attempt_id, None) if found is None else found

    def values(self) -> tuple[T, ...]:
        """All of them, in order."""
        return (*self._continuing.values(), *self._new.values())
