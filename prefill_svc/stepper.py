"""The prefill engine's step: schedule, run, update, and tell the event loop."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from engine.batch import ModelRunnerOutput, SchedulerOutput
from engine.block_manager import BlockManager
from engine.errors import DeviceLost
from engine.model_runner import ModelRunner
from engine.request import Request
from engine.step_under_way import StepUnderWay
from prefill_svc.prompt import Admission, Progress, Prompt
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


@dataclass(frozen=True, slots=True)
class _Launched:
    """A step that the device may still be computing; ``result`` waits for it. Where it runs
    ``apart``, the host may go on meanwhile."""

    step: StepUnderWay
    num_tokens: int
    result: Callable[[], ModelRunnerOutput]
    apart: bool
    began: float


class PrefillStepper:
    """Runs on the engine thread, as do the callables that others post to it.

    Where the device computes on its own, the next step is launched before the one under way is
    over, so that the host's work hides behind the device's: only one that prompts under way fill,
    in which no other would have had room. ``deliver`` must be cheap and thread-safe: it is called
    at most twice a step, once before the computation where somebody has to be told that it begins,
    and once after it.
    """

    def __init__(
        self,
        scheduler: PrefillScheduler,
        blocks: BlockManager,
        runner: ModelRunner,
        metrics: EngineMetrics,
        deliver: Callable[[PrefillEvents], None],
        *,
        goes_ahead: bool = True,
    ) -> None:
        """``goes_ahead``: whether a step may be launched before the last one is over."""
        self._scheduler = scheduler
        self._blocks = blocks
        self._runner = runner
        self._metrics = metrics
        self._deliver = deliver
        self._goes_ahead = goes_ahead
        self._idle_check = IdleCheck(blocks)
        self._rate = Smoothed()
        self._steps = 0
        self._last_load: Load | None = None
        self._under_way: _Launched | None = None
        self._num_tokens_launched = 0
        self._last_taken_in = 0.0

    @property
    def scheduler(self) -> PrefillScheduler:
        """For callables posted to the engine thread."""
        return self._scheduler

    def step(self) -> bool:
        """Launches a step or takes one in; False where there was neither."""
        if self._under_way is not None:
            self._follow_up(self._under_way)
            return True
        plan = self._scheduler.schedule()
        if plan.admissions or plan.revoke:
            self._tell(PrefillEvents(self.load(), self._steps + 1, plan.admissions, plan.revoke))
        if not plan.output.scheduled:
            self._tell_if_changed()
            self._idle_check.run()
            return False
        self._under_way = self._launch(plan.output)
        if self._under_way is not None and not self._under_way.apart:
            self._take_in(self._under_way)
        return True

    def _follow_up(self, last: _Launched) -> None:
        """Launches what follows, if it fills a step, and takes in the step under way."""
        launched = None
        if self._scheduler.fills_a_step and self._goes_ahead:
            output = self._scheduler.schedule(admits=False).output
            # Others keep the host until they are computed.
            if self._runner.runs_apart(output):
                launched = self._launch(output)
        self._take_in(last)
        self._under_way = launched

    def load(self) -> Load:
        return Load(
            blocks=self._blocks.counts(),
            waiting=self._scheduler.num_waiting,
            handing_off=self._scheduler.num_handing_off,
            running=self._scheduler.num_computing,
            steps=self._steps,
            pending_tokens=self._scheduler.num_pending_tokens + self._num_tokens_launched,
            rate=self._rate.value,
        )

    def _launch(self, output: SchedulerOutput) -> _Launched | None:
        """None where it could not be; then its prompts are stopped."""
        began, apart = time.monotonic(), self._runner.runs_apart(output)
        try:
            result = self._runner.launch(output)
        except DeviceLost:
            raise
        except Exception:
            self._fail([part.request for part in output.scheduled])
            return None
        self._num_tokens_launched += output.num_tokens
        step = self._scheduler.advance(output)
        return _Launched(step, output.num_tokens, result, apart, began)

    def _take_in(self, launched: _Launched) -> None:
        self._under_way = None
        self._num_tokens_launched -= launched.num_tokens
        try:
            result = launched.result()
        except DeviceLost:
            raise
        except Exception:
            self._fail([part.request for part in launched.step.parts])
            return
        self._steps += 1
        progress = self._scheduler.update(launched.step, result)
        now = time.monotonic()
        # The device begins a step that was launched ahead when it is done with the one before.
        seconds = now - max(launched.began, self._last_taken_in)
        self._last_taken_in = now
        self._metrics.observe_step(seconds)
        self._rate.add(launched.num_tokens / seconds)
        self._tell(PrefillEvents(self.load(), self._steps, progress=progress))

    def _fail(self, requests: Sequence[Request]) -> None:
        """Whatever it was, only the requests of this step are lost."""
        log.exception("step %d failed", self._steps + 1)
        failed = self._scheduler.stop(requests)
        self._tell(PrefillEvents(self.load(), self._steps, failed=failed))

    def _tell(self, events: PrefillEvents) -> None:
        self._last_load = events.load
        self._deliver(events)

    def _tell_if_changed(self) -> None:
        load = self.load()
        if self._last_load is None or replace(load, rate=0.0) != replace(self._last_load, rate=0.0):
            self._tell(PrefillEvents(load, self._steps))
