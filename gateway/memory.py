"""How many bytes clients make the gateway hold."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from chassis.errors import ResourceExhausted

# A token id in a list and in the text beside it, and what a log probability comes to.
TOKEN_BYTES = 40
LOGPROB_BYTES = 100
# Output comes and goes token by token: not every change of so little is told.
_GRAIN_BYTES = 1 << 16


class HeldMemory:
    """Adds up requests and unread output, and refuses requests beyond a bound. Event loop only.

    Output is never refused, because each client's is bounded: but while clients leave much unread,
    fewer requests fit. ``retry_after`` estimates when there may be room, ``on_change`` hears about
    the bytes held.
    """

    def __init__(
        self,
        max_bytes: int,
        retry_after: Callable[[], float],
        on_change: Callable[[int], None] = lambda held: None,
    ) -> None:
        self._max_bytes = max_bytes
        self._retry_after = retry_after
        self._on_change = on_change
        self._held = self._told = 0

    @contextmanager
    def request(self, num_bytes: int, max_tokens: int) -> Iterator[None]:
        """Holds a request of so many bytes while entered, and the prompt's tokens as well: there
        are as many as bytes at most, and no more than ``max_tokens``.

        Raises ResourceExhausted (MEMORY_FULL).
        """
        size = num_bytes + TOKEN_BYTES * min(num_bytes, max_tokens)
        if self._held + size > self._max_bytes:
            raise ResourceExhausted(
                f"this gateway holds {self._held} bytes of requests and answers, and may hold "
                f"{self._max_bytes}",
                reason="MEMORY_FULL",
                retry_after=self._retry_after(),
            )
        self._held += size
        self._tell()
        try:
            yield
        finally:
            self._held -= size
            self._tell()

    def add(self, num_bytes: int) -> None:
        """Output came that waits for its client, or (below 0) left."""
        self._held += num_bytes
        if abs(self._held - self._told) >= _GRAIN_BYTES:
            self._tell()

    def _tell(self) -> None:
        self._told = self._held
        self._on_change(self._held)
