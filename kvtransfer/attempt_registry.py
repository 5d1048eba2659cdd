"""The attempts a prefill worker knows, and for a while those it knew."""

import threading
import time
from collections.abc import Callable

from kvtransfer.errors import DuplicateAttempt
from kvtransfer.lease import Lease
from kvtransfer.tombstones import Tombstones


class AttemptRegistry:
    """Leases by attempt id; ended attempts leave tombstones (protocol 3.2). Thread-safe."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._leases: dict[bytes, Lease] = {}
        self._ended = Tombstones(clock=clock)

    def add(self, lease: Lease) -> None:
        """Raises DuplicateAttempt for an id that is or was known."""
        with self._lock:
            if lease.attempt_id in self._leases or lease.attempt_id in self._ended:
                raise DuplicateAttempt(f"attempt {lease.attempt_id.hex()} exists already")
            self._leases[lease.attempt_id] = lease

    def find(self, attempt_id: bytes) -> Lease | None:
        """The living lease, or None."""
        return self._leases.get(attempt_id)

    def is_buried(self, attempt_id: bytes) -> bool:
        """Whether the attempt has ended, or was given up before it began."""
        with self._lock:
            return attempt_id in self._ended

    def bury(self, attempt_id: bytes) -> None:
        """Forgets the lease, if there is one, and leaves a tombstone. Idempotent."""
        with self._lock:
            self._leases.pop(attempt_id, None)
            self._ended.add(attempt_id)
