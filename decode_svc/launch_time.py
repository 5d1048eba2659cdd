"""When to launch the next step while the device computes one."""

from collections import deque
from dataclasses import dataclass
from typing import Self

from chassis.metrics import Metrics
from engine.batch import DeviceTime
from engine.step_under_way import StepUnderWay

# However long steps are: the thread shows that it lives.
LONGEST_REST = 0.1
# A device that computes one step right after the other pauses for less.
_PAUSE_SECONDS = 0.1e-3
# For a thread that wakes up late.
_MARGIN_SECONDS = 0.3e-3
# Steps, and launches, that are remembered.
_MEMORY = 8
_LEAST_LEAN, _LEAN_GROWTH, _LEAN_DECAY = 0.02, 2.0, 0.998


@dataclass(frozen=True, slots=True)
class StepSize:
    """Sequences of a step, and tokens that they attend to."""

    num_sequences: int
    num_tokens: int

    @classmethod
    def of(cls, step: StepUnderWay) -> Self:
        return cls(len(step.parts), sum(part.end_token for part in step.parts))

    def share_of(self, other: "StepSize") -> float:
        """What a step of this size takes at least, over what one of the other size takes: some of
        that is the same for each, the rest grows with its size."""
        sequences = self.num_sequences / other.num_sequences
        return min(1.0, sequences, self.num_tokens / other.num_tokens)


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step that was launched at ``began``, after a rest where it was ``put_off``."""

    size: StepSize
    began: float
    put_off: bool


class LaunchTime:
    """Late, so that what arrives meanwhile is in the step; so early that the device never waits.

    A request that arrives while a step is computed, and the next one is launched, misses both.
    Launched late, it waits for what is left of one.

    A step is expected to take the least of what the last ones took the device, by its own clock,
    scaled down to this one's size. No wait of the host's is in that, so that no rest makes the
    next one longer, and steps that have become shorter are known after the first. A share of it,
    the lean, is kept back: it doubles when the device ran dry, up to all, and wears off slowly.

    Times are the host's, of one clock.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._device_waits = metrics.counter(
            "baton_device_waits_total", "Steps put off for so long that the device had to wait."
        )
        self._steps: deque[tuple[StepSize, float]] = deque(maxlen=_MEMORY)
        self._launches: deque[float] = deque(maxlen=_MEMORY)
        self._lean = _LEAST_LEAN
        self._last_landed = 0.0
        self._has_rested = False

    def rest(self, computing: TimedStep, now: float) -> float:
        """Seconds to wait before the next step is scheduled, while the device computes this one."""
        # The device begins a step that was launched ahead when it is done with the one before.
        began = max(computing.began, self._last_landed)
        expected = min(
            (seconds * computing.size.share_of(size) for size, seconds in self._steps), default=0.0
        )
        launching = max(self._launches, default=0.0) + _MARGIN_SECONDS
        left = began + (1.0 - self._lean) * expected - launching - now
        self._has_rested |= left > 0.0
        return min(left, LONGEST_REST)

    def launched(
        self, step: StepUnderWay, *, scheduling: float, began: float, now: float
    ) -> TimedStep:
        """A step was just launched: the host has scheduled since ``scheduling`` and launched since
        ``began``."""
        self._launches.append(now - scheduling)
        put_off, self._has_rested = self._has_rested, False
        return TimedStep(StepSize.of(step), began, put_off)

    def landed(self, step: TimedStep, device_time: DeviceTime | None, now: float) -> None:
        """The host has just heard that the step is over."""
        self._last_landed = now
        # There may have been nothing to launch after a rest.
        self._has_rested = False
        if device_time is None:
            self._steps.clear()
            return
        self._steps.append((step.size, device_time.computing))
        if step.put_off and device_time.idle > _PAUSE_SECONDS:
            self._device_waits.inc()
            self._lean = min(1.0, self._lean * _LEAN_GROWTH)
        else:
            self._lean = max(_LEAST_LEAN, self._lean * _LEAN_DECAY)
