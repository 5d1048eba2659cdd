"""Pauses between tries."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)


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


async def keep_trying(what: str, work: Callable[[], Awaitable[None]]) -> None:
    """Runs ``work`` until it returns: a bug of ours in it is logged, and after a pause it begins
    anew. For tasks whose end nobody would notice.

    Only a cancel of the calling task ends it earlier; one that comes from within, as gRPC raises
    it where a connection is closed, does not.
    """
    backoff = Backoff()
    while True:
        try:
            await work()
            return
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            log.exception("%s was cancelled from within", what)
        except Exception:
            log.exception("%s failed", what)
        await backoff.wait()
