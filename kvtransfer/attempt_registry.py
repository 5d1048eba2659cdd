"""The attempts a prefill worker knows, and for a while those it knew."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from kvtransfer.errors import DuplicateAttempt
from kvtransfer.lease import Lease

TOMBSTONE_SECONDS = 60.0
MAX_TOMBSTONES = 65_536


class AttemptRegistry:
    """Leases by attempt id; ended attempts leave tombstones (protocol 3.2). Thread-safe."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        tombstone_seconds: float = TOMBSTONE_SECONDS,
        max_tombstones: int = MAX_TOMBSTONES,
    ) -> None:
        self._clock = clock
        self._tombstone_seconds = tombstone_seconds
        self._max_tombstones = max_tombstones
        self._lock = threading.Lock()
        self._leases: dict[bytes, Lease] = {}
        self._expiries: OrderedDict[bytes, float] = OrderedDict()

    def add(self, lease: Lease) -> None:
        """Raises DuplicateAttempt for an id that is or was known."""
        with self._lock:
            self._expire()
            if lease.attempt_id in self._leases or lease.attempt_id in self._expiries:
                raise DuplicateAttempt(f"attempt {lease.attempt_id.hex()} exists already")
            self._leases[lease.attempt_id] = lease

    def find(self, attempt_id: bytes) -> Lease | None:
        """The living lease, or None."""
        return self._leases.get(attempt_id)

    def is_buried(self, attempt_id: bytes) -> bool:
        """Whether the attempt has ended, or was given up before it began."""
        with self._lock:
            self._expire()
            return attempt_id in self._expiries

    def bury(self, attempt_id: bytes) -> None:
        """Forgets the lease, if there is one, and leaves a tombstone. Idempotent."""
        with self._lock:
            self._leases.pop(attempt_id, None)
            self._expire()
            if attempt_id not in self._expiries:
                self._expiries[attempt_id] = self._clock() + self._tombstone_seconds
            while len(self._expiries) > self._max_tombstones:
                self._expiries.popitem(last=False)

    def _expire(self) -> None:
        now = self._clock()
        while self._expiries and next(iter(self._expiries.values())) <= now:
            self._expiries.popitem(last=False)
