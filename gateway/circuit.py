"""When a worker that keeps failing is used, and how many retries its failures may cause."""

import time
from collections.abc import Callable

_FAILURES_TO_OPEN = 5
_FIRST_WAIT_SECONDS = 1.0
_LONGEST_WAIT_SECONDS = 30.0

_RETRIES_PER_ATTEMPT = 0.2
# What the loss of one worker with full batches and queues may cause at once.
_MOST_RETRIES = 512.0


class Circuit:
    """Takes a worker out of use after failures in a row, and lets single attempts probe it.

    Closed at first. ``_FAILURES_TO_OPEN`` failures without a success between them open it; after a
    wait one attempt may go through: its success closes the circuit, its failure doubles the wait.
    Attempts that failed together count once: they were sent before anybody could know.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._num_failures = 0
        self._last_failure = -float("inf")
        self._wait = 0.0
        self._probe_at = 0.0

    @property
    def is_open(self) -> bool:
        """Whether the worker counts as failing."""
        return self._num_failures >= _FAILURES_TO_OPEN

    @property
    def allows(self) -> bool:
        """Whether an attempt may be sent now."""
        return not self.is_open or self._clock() >= self._probe_at

    @property
    def seconds_to_probe(self) -> float:
        """Until ``allows`` can become true again; 0 where it is."""
        return max(self._probe_at - self._clock(), 0.0) if self.is_open else 0.0

    def sent(self) -> float:
        """An attempt goes to the worker. Returns when, for ``failed``."""
        now = self._clock()
        if self.is_open:
            # This one probes. The next may, should this one end with no verdict.
            self._probe_at = now + self._wait
        return now

    def succeeded(self) -> None:
        """The worker did its part of an attempt."""
        self._num_failures = 0
        self._wait = 0.0

    def failed(self, sent_at: float) -> None:
        """An attempt that was sent at ``sent_at`` failed by the worker's fault."""
        if sent_at <= self._last_failure:
            return
        self._last_failure = now = self._clock()
        self._num_failures += 1
        if self.is_open:
            self._wait = min(max(self._wait * 2, _FIRST_WAIT_SECONDS), _LONGEST_WAIT_SECONDS)
            self._probe_at = now + self._wait


class RetryBudget:
    """Retries that the failures of the workers at one address may cause (protocol 5.4).

    A share of the attempts it is given, saved up to a limit, so that the loss of a full worker is
    made good and a storm of retries dies down.
    """

    def __init__(self) -> None:
        self._left = _MOST_RETRIES

    def earn(self) -> None:
        """The address was given an attempt."""
        self._left = min(self._left + _RETRIES_PER_ATTEMPT, _MOST_RETRIES)

    def take(self) -> bool:
        """Whether one more failure there may be retried."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
