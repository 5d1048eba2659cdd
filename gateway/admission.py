"""How many requests the gateway works on at once, and who waits for a turn."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from chassis.errors import ResourceExhausted, ServiceError

# Weight of the newest gap between two turns in the smoothed gap.
_SMOOTHING = 0.2
# Taken for the gap until one was seen.
_FIRST_GUESS_SECONDS = 0.5
_MIN_RETRY_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """How many requests run, how many more wait, and for how long each of them."""

    max_in_flight: int
    max_waiting: int
    max_wait_seconds: float


class Admission:
    """First come, first served; used from one event loop only.

    ``on_change`` hears the number of waiting requests whenever it changes.
    """

    def __init__(
        self,
        limits: AdmissionLimits,
        on_change: Callable[[int], None] = lambda waiting: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._on_change = on_change
        self._clock = clock
        self._queue: deque[asyncio.Future[None]] = deque()
        self._in_flight = 0
        self._gap_seconds = _FIRST_GUESS_SECONDS
        self._last_turn = 0.0

    @property
    def in_flight(self) -> int:
        """Requests that hold a place now."""
        return self._in_flight

    @property
    def waiting(self) -> int:
        """Requests that wait for a place."""
        return len(self._queue)

    def retry_after(self) -> float:
        """Seconds in which today's queue should be over, by the pace of the last turns."""
        estimate = (len(self._queue) + 1) * self._gap_seconds
        return min(max(estimate, _MIN_RETRY_SECONDS), self._limits.max_wait_seconds)

    def check_room(self) -> None:
        """Raises ResourceExhausted (QUEUE_FULL) where ``enter`` would raise it now."""
        if len(self._queue) < self._limits.max_waiting or not self._is_full:
            return
        raise ResourceExhausted(
            f"{len(self._queue)} requests are waiting already",
            reason="QUEUE_FULL",
            retry_after=self.retry_after(),
        )

    async def enter(self) -> None:
        """Takes a place, after waiting for one if need be; the caller must ``leave`` it.

        Raises ResourceExhausted, with the time after which a retry may fare better: QUEUE_FULL at
        once when too many wait, QUEUE_TIMEOUT when no place came free in time.
        """
        if not self._is_full:
            self._in_flight += 1
            return
        self.check_room()
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        self._on_change(len(self._queue))
        try:
            async with asyncio.timeout(self._limits.max_wait_seconds):
                await turn
        except BaseException as error:
            self._give_up(turn)
            if isinstance(error, TimeoutError):
                raise ResourceExhausted(
                    f"no place came free within {self._limits.max_wait_seconds:g} s",
                    reason="QUEUE_TIMEOUT",
                    retry_after=self.retry_after(),
                ) from None
            raise

    def leave(self) -> None:
        """Gives a place back, to the next in line if there is one."""
        while self._queue:
            turn = self._queue.popleft()
            # One that was cancelled in this moment has no use for the place.
            if not turn.done():
                turn.set_result(None)
                self._measure_gap()
                self._on_change(len(self._queue))
                return
        self._in_flight -= 1
        self._last_turn = 0.0
        self._on_change(0)

    @property
    def _is_full(self) -> bool:
        return self._in_flight >= self._limits.max_in_flight

    def refuse_waiting(self, error: ServiceError) -> None:
        """Nobody's turn will come any more: all who wait are told so."""
        for turn in self._queue:
            if not turn.done():
                turn.set_exception(error)

    def _give_up(self, turn: asyncio.Future[None]) -> None:
        if turn in self._queue:
            self._queue.remove(turn)
            self._on_change(len(self._queue))
        elif not turn.cancelled():
            # The turn came in the same moment: it belongs to the next in line.
            self.leave()

    def _measure_gap(self) -> None:
        now = self._clock()
        if self._last_turn:
            self._gap_seconds += _SMOOTHING * (now - self._last_turn - self._gap_seconds)
        self._last_turn = now
