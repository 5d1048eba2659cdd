"""Attempts that are over, remembered for a while."""

import time
from collections import OrderedDict
from collections.abc import Callable

TOMBSTONE_SECONDS = 60.0
MAX_TOMBSTONES = 65_536


class Tombstones:
    """Ids of attempts for ``seconds`` after their end, the youngest ``most`` (protocol 3.2)."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        seconds: float = TOMBSTONE_SECONDS,
        most: int = MAX_TOMBSTONES,
    ) -> None:
        self._clock = clock
        self._seconds = seconds
        self._most = most
        self._expiries: OrderedDict[bytes, float] = OrderedDict()

    def __contains__(self, attempt_id: bytes) -> bool:
        self._expire()
        return attempt_id in self._expiries

    def add(self, attempt_id: bytes) -> None:
        """The attempt has ended; of several ends the first counts."""
        self._expire()
        self._expiries.setdefault(attempt_id, self._clock() + self._seconds)
        if len(self._expiries) > self._most:
            self._expiries.popitem(last=False)

    def _expire(self) -> None:
        now = self._clock()
        while self._expiries and next(iter(self._expiries.values())) <= now:
            self._expiries.popitem(last=False)
