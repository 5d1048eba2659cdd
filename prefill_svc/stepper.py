"""The prefill engine's step: schedule, run, update, and tell the event loop."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from engine.block_manager import BlockManager
from engine.errors import DeviceLost
from engine.model_runner import ModelRunner
from prefill_svc.prompt import Admission, PrefillPlan, Progress, Prompt
from prefill_svc.scheduler import PrefillScheduler
from worker.idle_check import IdleCheck
from worker.load import Load
from worker.metrics import EngineMetrics
from worker.smoothed import Smoothed

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PrefillEvents:
    """What the event loop must hear of, in this order.

    ``step`` is the number, from 1, of the step that ``progress`` tells of, or of the next one.
    """

    load: Load
    step: int
    admissions: tuple[Admission, ...] = ()
    revoke: Prompt | None = None
    progress: tuple[Progress, ...] = ()
    failed: tuple[Prompt, ...] = ()


class PrefillStepper:
    """Runs on the engine thread, as do the callables that others post to it.

    ``deliver`` must be cheap and thread-safe: it is called at most twice a step, once before the
    computation where somebody has to be told that it begins, and once after it.
    """

    def __init__(
        self,
        scheduler: PrefillScheduler,
        blocks: BlockManager,
        runner: ModelRunner,
        metrics: EngineMetrics,
        deliver: Callable[[PrefillEvents], None],
    ) -> None:
        self._scheduler = scheduler
        self._blocks = blocks
        self._runner = runner
        self._metrics = metrics
        self._deliver = deliver
        self._idle_check = IdleCheck(blocks)
        self._rate = Smoothed()
        self._steps = 0
        self._last_load: Load | None = None

    @property
    def scheduler(self) -> PrefillScheduler:
        """For callables posted to the engine thread."""
        return self._scheduler

    def step(self) -> bool:
        """Computes one step; False where there was nothing to compute."""
        plan = self._scheduler.schedule()
        if plan.admissions or plan.revoke:
            self._tell(PrefillEvents(self.load(), self._steps + 1, plan.admissions, plan.revoke))
        if not plan.output.scheduled:
            self._tell_if_changed()
            self._idle_check.run()
            return False
        self._compute(plan)
        return True

    def load(self) -> Load:
        return Load(
            blocks=self._blocks.counts(),
            waiting=self._scheduler.num_waiting,
            handing_off=self._scheduler.num_handing_off,
            running=self._scheduler.num_computing,
            steps=self._steps,
            pending_tokens=self._scheduler.num_pending_tokens,
            rate=self._rate.value,
        )

    def _compute(self, plan: PrefillPlan) -> None:
        started = time.monotonic()
        try:
            result = self._runner.run(plan.output)
        except DeviceLost:
            raise
        except Exception:
            # Whatever it was, only the requests of this step are lost.
            log.exception("step %d failed", self._steps + 1)
            self._tell(
                PrefillEvents(self.load(), self._steps, failed=self._scheduler.stop(plan.output))
            )
            return
        self._steps += 1
        progress = self._scheduler.update(plan.output, result)
        seconds = time.monotonic() - started
        self._metrics.observe_step(seconds)
        self._rate.add(plan.output.num_tokens / seconds)
        self._tell(PrefillEvents(self.load(), self._steps, progress=progress))

    def _tell(self, events: PrefillEvents) -> None:
        self._last_load = events.load
        self._deliver(events)

    def _tell_if_changed(self) -> None:
        load = self.load()
        if self._last_load is None or replace(load, rate=0.0) != replace(self._last_load, rate=0.0):
            self._tell(PrefillEvents(load, self._steps))
