"""How long to wait before starting a dead service again."""

FIRST_DELAY = 0.5
MAX_DELAY = 30.0
# A service that was up this long did not die of what killed it before.
FORGET_AFTER = 60.0


class Backoff:
    """Doubles from FIRST_DELAY to MAX_DELAY seconds while a service keeps dying young."""

    def __init__(self) -> None:
        self._next = FIRST_DELAY

    def after_death(self, uptime: float) -> float:
        """Seconds to wait now, for a service that was ready for `uptime` seconds."""
        if uptime >= FORGET_AFTER:
            self._next = FIRST_DELAY
        delay = self._next
        self._next = min(2 * delay, MAX_DELAY)
        return delay
