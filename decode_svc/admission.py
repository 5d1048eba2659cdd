"""Which attempts a decode worker takes."""

from collections.abc import Callable

from baton.v1 import decode_pb2
from chassis.durations import to_seconds
from chassis.errors import DeadlineExceeded, ResourceExhausted
from worker.leg import Leg
from worker.loaded import LoadedModel
from worker.settings import EngineSettings
from worker.smoothed import Smoothed

# Where nothing has ended yet, or much at once: no reason to come back sooner.
MIN_RETRY_SECONDS = 0.1


class Admission:
    """Bounds the queue and the time of attempts. Event loop only."""

    def __init__(
        self,
        settings: EngineSettings,
        model: LoadedModel,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._model = model
        self._clock = clock
        self._seconds_between_ends = Smoothed()
        self._last_end = clock()

    def check(self, leg: Leg, num_waiting: int) -> None:
        """Raises FailedPrecondition for what can never fit, ResourceExhausted for a full queue."""
        self._model.check_fits(leg.num_prompt_tokens + leg.params.max_tokens, 1)
        self._model.check_fits(len(leg.token_ids), len(leg.choices))
        # A continuation has been admitted once: refused now, its answer would be lost.
        if num_waiting >= self._settings.max_queue and not leg.continues:
            raise ResourceExhausted(
                f"{num_waiting} attempts are waiting, the most that may",
                reason="QUEUE_FULL",
                retry_after=max(MIN_RETRY_SECONDS, self._seconds_between_ends.value),
            )

    def seconds_left(self, submit: decode_pb2.Submit) -> float:
        """How long the attempt may take. Raises DeadlineExceeded."""
        if not submit.HasField("deadline"):
            return self._settings.max_request_seconds
        seconds = to_seconds(submit.deadline)
        if seconds <= 0:
            raise DeadlineExceeded("the deadline has passed", reason="DEADLINE_EXCEEDED")
        return seconds

    def note_end(self) -> None:
        """An attempt ended: the next one in the queue may have its room."""
        now = self._clock()
        self._seconds_between_ends.add(now - self._last_end)
        self._last_end = now
