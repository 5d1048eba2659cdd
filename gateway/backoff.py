"""Pauses between tries."""

import asyncio
import random


class Backoff:
    """Pauses that double up to a limit, with jitter, so that many do not come back at once."""

    def __init__(self, first_seconds: float = 0.1, last_seconds: float = 2.0) -> None:
        self._first_seconds = first_seconds
        self._last_seconds = last_seconds
        self._seconds = first_seconds

    def reset(self) -> None:
        """The next pause is short again."""
        self._seconds = self._first_seconds

    async def wait(self) -> None:
        """Pauses; the next pause is twice as long, up to the limit."""
        seconds = self._seconds
        self._seconds = min(self._seconds * 2, self._last_seconds)
        await asyncio.sleep(seconds * random.uniform(0.5, 1.0))
