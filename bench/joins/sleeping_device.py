"""A model runner whose device only sleeps."""

import time
from collections.abc import Callable, Sequence

from engine.batch import DeviceTime, ModelRunnerOutput, Sample, SchedulerOutput

_LAUNCH_SECONDS = 0.3e-3


class SleepingDevice:
    """Takes the same time for every step, one after the other, and draws the same token."""

    def __init__(self, step_seconds: float = 9e-3) -> None:
        self._step_seconds = step_seconds
        self._free_at = time.monotonic()

    def launch(self, output: SchedulerOutput) -> Callable[[], ModelRunnerOutput]:
        time.sleep(_LAUNCH_SECONDS)
        idle = max(0.0, time.monotonic() - self._free_at)
        self._free_at = end = self._free_at + idle + self._step_seconds
        result = ModelRunnerOutput(
            tuple((Sample(part.request.choices[0], 60),) for part in output.scheduled),
            DeviceTime(self._step_seconds, idle),
        )

        def land() -> ModelRunnerOutput:
            time.sleep(max(0.0, end - time.monotonic()))
            return result

        return land

    def runs_ahead(self, output: SchedulerOutput) -> bool:
        return True

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        assert not copies, "every request has one choice"
