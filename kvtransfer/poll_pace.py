"""How often to poll."""

import ctypes
import time
from collections.abc import Callable

HOT_SECONDS = 0.02
SHORTEST_PAUSE = 20e-6
LONGEST_PAUSE = 1e-3
_PR_SET_TIMERSLACK = 29


class PollPace:
    """Pauses between polls, in seconds: the shortest for a moment after something happened, then
    doubling up to the longest."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_event = 0.0
        self._pause = SHORTEST_PAUSE

    def note_event(self) -> None:
        """Something happened just now."""
        self._last_event = self._clock()

    def next_pause(self) -> float:
        """0 right after something happened."""
        quiet = self._clock() - self._last_event
        if quiet < HOT_SECONDS:
            self._pause = SHORTEST_PAUSE
            return 0.0 if quiet < SHORTEST_PAUSE else SHORTEST_PAUSE
        self._pause = min(LONGEST_PAUSE, self._pause * 2)
        return self._pause


def pause_precisely() -> None:
    """Ends this thread's pauses when they should; the kernel takes 50 us more by default, for fewer
    wake-ups, which is half of what a read of 64 MiB between GPUs takes."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(1))
