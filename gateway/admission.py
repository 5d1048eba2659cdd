"""How much the gateway works on at once, and who waits for a turn."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from chassis.errors import ResourceExhausted, ServiceError

# Weight of the newest gap between two turns in the smoothed gap.
_SMOOTHING = 0.2
# Taken for the gap until one was seen.
_FIRST_GUESS_SECONDS = 0.5
_MIN_RETRY_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """How many requests run, how many more wait, and for how long each of them.

    ``max_tokens``: of those that run together, asked whenever it matters; None for no limit.
    """

    max_in_flight: int
    max_waiting: int
    max_wait_seconds: float
    max_tokens: Callable[[], int | None] = lambda: None


class _Turn(NamedTuple):
    num_tokens: int
    came: "asyncio.Future[None]"


class Admission:
    """First come, first served; used from one event loop only.

    Nobody overtakes: a large request at the head waits for those in flight and for nobody else,
    and small ones behind it wait no longer than that. What has more tokens than may be in flight
    runs alone. ``on_change`` hears how many requests wait, and how many tokens are and may be in
    flight.
    """

    def __init__(
        self,
        limits: AdmissionLimits,
        on_change: Callable[[int, int, int | None], None] = lambda waiting, tokens, limit: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._on_change = on_change
        self._clock = clock
        self._queue: deque[_Turn] = deque()
        self._in_flight = 0
        self._tokens = 0
        self._gap_seconds = _FIRST_GUESS_SECONDS
        self._last_turn = 0.0

    @property
    def in_flight(self) -> int:
        """Requests that hold a place now."""
        return self._in_flight

    @property
    def tokens_in_flight(self) -> int:
        """Of these together."""
        return self._tokens

    @property
    def waiting(self) -> int:
        """Requests that wait for a place."""
        return len(self._queue)

    def retry_after(self) -> float:
        """Seconds in which today's queue should be over, by the pace of the last turns."""
        estimate = (len(self._queue) + 1) * self._gap_seconds
        return min(max(estimate, _MIN_RETRY_SECONDS), self._limits.max_wait_seconds)

    def check_room(self, num_tokens: int = 0) -> None:
        """Raises ResourceExhausted (QUEUE_FULL) where ``enter`` would raise it now."""
        if len(self._queue) < self._limits.max_waiting or self._may_enter(num_tokens):
            return
        raise ResourceExhausted(
            f"{len(self._queue)} requests are waiting already",
            reason="QUEUE_FULL",
            retry_after=self.retry_after(),
        )

    async def enter(self, num_tokens: int = 0) -> None:
        """Takes a place, after waiting for one if need be; the caller must ``leave`` it.

        Raises ResourceExhausted, with the time after which a retry may fare better: QUEUE_FULL at
        once when too many wait, QUEUE_TIMEOUT when no place came free in time.
        """
        if self._may_enter(num_tokens):
            self._take(num_tokens)
            self._tell()
            return
        self.check_room(num_tokens)
        turn = _Turn(num_tokens, asyncio.get_running_loop().create_future())
        self._queue.append(turn)
        self._tell()
        try:
            async with asyncio.timeout(self._limits.max_wait_seconds):
                await turn.came
        except BaseException as error:
            self._give_up(turn)
            if isinstance(error, TimeoutError):
                raise ResourceExhausted(
                    f"no place came free within {self._limits.max_wait_seconds:g} s",
                    reason="QUEUE_TIMEOUT",
                    retry_after=self.retry_after(),
                ) from None
            raise

    def leave(self, num_tokens: int = 0) -> None:
        """Gives a place back, to those at the head of the line that fit."""
        self._in_flight -= 1
        self._tokens -= num_tokens
        if not self._queue:
            self._last_turn = 0.0
        self.admit_waiting()

    def admit_waiting(self) -> None:
        """Gives turns to those at the head that fit; call it where ``max_tokens`` has grown."""
        while self._queue and self._fits(self._queue[0].num_tokens):
            turn = self._queue.popleft()
            # One that was cancelled in this moment has no use for the place.
            if not turn.came.done():
                self._take(turn.num_tokens)
                turn.came.set_result(None)
                self._measure_gap()
        self._tell()

    def refuse_waiting(self, error: ServiceError) -> None:
        """Nobody's turn will come any more: all who wait are told so."""
        for turn in self._queue:
            if not turn.came.done():
                turn.came.set_exception(error)

    def _may_enter(self, num_tokens: int) -> bool:
        return not self._queue and self._fits(num_tokens)

    def _fits(self, num_tokens: int) -> bool:
        if not self._in_flight:
            return True
        max_tokens = self._limits.max_tokens()
        return self._in_flight < self._limits.max_in_flight and (
            max_tokens is None or self._tokens + num_tokens <= max_tokens
        )

    def _take(self, num_tokens: int) -> None:
        self._in_flight += 1
        self._tokens += num_tokens

    def _give_up(self, turn: _Turn) -> None:
        if turn in self._queue:
            self._queue.remove(turn)
            # What stood behind it may fit.
            self.admit_waiting()
        elif not turn.came.cancelled() and turn.came.exception() is None:
            # The turn came in the same moment: it belongs to the next in line.
            self.leave(turn.num_tokens)

    def _tell(self) -> None:
        self._on_change(len(self._queue), self._tokens, self._limits.max_tokens())

    def _measure_gap(self) -> None:
        now = self._clock()
        if self._last_turn:
            self._gap_seconds += _SMOOTHING * (now - self._last_turn - self._gap_seconds)
        self._last_turn = now
