"""The attempts this worker has taken, and for a while those it took."""

import time
from collections import OrderedDict
from collections.abc import Callable

from chassis.errors import AlreadyExists

REMEMBER_SECONDS = 60.0
MAX_REMEMBERED = 65_536


class KnownAttempts:
    """Refuses a second Submit of an attempt (protocol 1.2, 3.2)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._expiries: OrderedDict[bytes, float] = OrderedDict()

    def add(self, attempt_id: bytes, *, living: bool) -> None:
        """Raises AlreadyExists; ``living`` attempts are known however long ago they came."""
        now = self._clock()
        while self._expiries and next(iter(self._expiries.values())) <= now:
            self._expiries.popitem(last=False)
        if living or attempt_id in self._expiries:
            text = f"attempt {attempt_id.hex()} exists already"
            raise AlreadyExists(text, reason="ATTEMPT_EXISTS")
        self._expiries[attempt_id] = now + REMEMBER_SECONDS
        if len(self._expiries) > MAX_REMEMBERED:
            self._expiries.popitem(last=False)
