"""Where the time of one request went, as the gateway saw it."""

import time
from dataclasses import dataclass, field

from baton.v1 import generation_pb2
from chassis.durations import to_duration
from gateway.generation import Generation


@dataclass(slots=True)
class RequestClock:
    """Moments of a request on the monotonic clock. ``deadline`` is when it must be over."""

    deadline: float
    arrived_at: float = field(default_factory=time.monotonic)
    tokenize_seconds: float = 0.0
    admitted_at: float | None = None

    @property
    def elapsed(self) -> float:
        """Seconds since arrival."""
        return time.monotonic() - self.arrived_at

    @property
    def has_expired(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self.deadline

    def to_pb(self, generation: Generation) -> generation_pb2.Timings:
        """The timings of a request that has just ended; unset where a stage did not happen."""
        timings = generation_pb2.Timings(
            tokenize=to_duration(self.tokenize_seconds),
            kv_transfer=generation.kv_transfer,
            total=to_duration(self.elapsed),
        )
        if self.admitted_at is not None:
            timings.admission.CopyFrom(to_duration(self.admitted_at - self.arrived_at))
        if generation.prefill is not None:
            timings.prefill_queue.CopyFrom(generation.prefill.queue)
            timings.prefill_compute.CopyFrom(generation.prefill.compute)
        first, last = generation.first_token_at, generation.last_token_at
        if first is not None and last is not None:
            timings.time_to_first_token.CopyFrom(to_duration(first - self.arrived_at))
            timings.decode.CopyFrom(to_duration(last - first))
        return timings
