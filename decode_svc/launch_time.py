"""When to launch the next step while the device computes one."""

from worker.smoothed import Smoothed

# For a thread that wakes up late, and steps that are shorter than those before.
MARGIN_SECONDS = 0.5e-3


class LaunchTime:
    """Late, so that what arrives meanwhile is in the step; so early that the device never waits.

    A request that arrives while a step is computed, and the next one is launched, misses both: a
    step and a half in the mean. Launched late it misses half a step.
    """

    def __init__(self) -> None:
        self._step = Smoothed()
        self._host = Smoothed()

    def note_step(self, seconds: float) -> None:
        """A step took the device so long."""
        self._step.add(seconds)

    def note_launch(self, seconds: float) -> None:
        """To schedule and launch a step took the host so long."""
        self._host.add(seconds)

    def rest(self, computing: float) -> float:
        """Seconds until the next step is to be launched, of one that the device has been
        ``computing`` so long; not above 0: now."""
        return self._step.value - computing - 2 * self._host.value - MARGIN_SECONDS
