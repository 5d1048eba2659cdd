"""The decode engine's step: schedule, run, update, and tell the event loop."""

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from chassis.metrics import Metrics
from decode_svc.attempt import Attempt, DecodePlan, Row
from decode_svc.config import DecodeSettings
from decode_svc.events import DecodeEvents
from decode_svc.launch_time import LaunchTime, TimedStep
from decode_svc.outputs import pack
from decode_svc.scheduler import DecodeScheduler
from engine.batch import ModelRunnerOutput
from engine.block_manager import BlockManager
from engine.errors import DeviceLost
from engine.model_runner import ModelRunner
from engine.step_under_way import StepUnderWay
from kvtransfer.handoff import FirstSample
from worker.idle_check import IdleCheck
from worker.load import Load, LoadBoard
from worker.loaded import LoadedModel
from worker.metrics import EngineMetrics
from worker.smoothed import Smoothed

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Launched:
    """A step that the device may still be computing; ``result`` waits for it. With ``ahead`` the
    next one may be launched before that."""

    plan: DecodePlan
    step: StepUnderWay
    result: Callable[[], ModelRunnerOutput]
    ahead: bool
    timed: TimedStep


class DecodeStepper:
    """Runs on the engine thread; the methods before ``step`` are for callables posted to it.

    Where the device computes on its own, a step is scheduled, launched and left to it while the
    one before is taken in, so that the host's work hides behind the device's. While a prompt may
    arrive that would be in it, ``rest`` puts it off. Rows of an attempt that is not released are
    held back (protocol 3.6). ``deliver`` must be cheap and thread-safe: it is called a few times
    a step, never once a token.
    """

    def __init__(
        self,
        scheduler: DecodeScheduler,
        blocks: BlockManager,
        runner: ModelRunner,
        metrics: EngineMetrics,
        count_tokens: Callable[[float], None],
        deliver: Callable[[DecodeEvents], None],
        launch_time: LaunchTime,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._blocks = blocks
        self._runner = runner
        self._metrics = metrics
        self._count_tokens = count_tokens
        self._deliver = deliver
        self._launch_time = launch_time
        self._clock = clock
        self._idle_check = IdleCheck(blocks)
        self._rate = Smoothed()
        self._steps = 0
        self._held: dict[bytes, list[Row]] = {}
        # Rows and attempts that a release set free since the last step.
        self._rows: list[Row] = []
        self._finished: list[Attempt] = []
        self._last_load: Load | None = None
        self._under_way: _Launched | None = None
        self._last_landed = 0.0

    def add(self, attempt: Attempt) -> None:
        """Its prompt is computing, or will be here: it waits for room from now on."""
        self._scheduler.add(attempt)

    def join(self, attempt: Attempt, first_samples: Sequence[FirstSample]) -> None:
        """Its prompt has arrived: it runs in the very next step."""
        self._held[attempt.attempt_id] = []
        self._copy(attempt, self._scheduler.join(attempt.attempt_id, first_samples))

    def release(self, attempt: Attempt) -> None:
        """What it computed may leave; a no-op for one that is over."""
        rows = self._held.pop(attempt.attempt_id, None)
        if rows is None:
            return
        self._scheduler.release(attempt.attempt_id)
        self._rows += rows
        if attempt.is_finished:
            self._finished.append(attempt)

    def drop(self, attempt: Attempt, choices: Collection[int]) -> None:
        """Computes these choices no further; the attempt ends with its last choice."""
        had_ended = attempt.is_finished
        self._scheduler.drop(attempt, choices)
        if attempt.released and attempt.is_finished and not had_ended:
            self._finished.append(attempt)

    def remove(self, attempt: Attempt, still_written: Sequence[int]) -> None:
        """Forgets it in any state; fences the blocks that a read may still write to."""
        self._held.pop(attempt.attempt_id, None)
        self._scheduler.remove(attempt.attempt_id, still_written)

    def lift_fence(self, block_ids: Sequence[int]) -> None:
        """Nothing writes to these blocks any more."""
        self._scheduler.lift_fence(block_ids)

    def rest(self) -> float:
        """Seconds that the next step may be put off; not above 0: it is to be launched now."""
        if self._under_way is None or not self._scheduler.awaits_joins:
            return 0.0
        return self._launch_time.rest(self._under_way.timed, self._clock())

    def step(self) -> bool:
        """Computes one step; False where there was nothing to compute."""
        scheduling = self._clock()
        plan = self._scheduler.schedule()
        for attempt in plan.preempted:
            self._held.pop(attempt.attempt_id, None)
        last, self._under_way = self._under_way, None
        if not plan.output.scheduled:
            self._tell_news(plan)
            launched = None
            if last is None:
                self._tell_if_changed()
                self._idle_check.run()
                return False
        elif self._runner.runs_ahead(plan.output):
            # The device first: who is told would take the interpreter from who launches.
            launched = self._launch(plan, scheduling)
            self._tell_news(plan)
        else:
            # What was set free since the last step leaves before the next computation.
            self._tell_news(plan)
            launched = self._launch(plan, scheduling)
        if last is not None:
            self._take_in(last)
        if launched is not None and launched.ahead:
            self._under_way = launched
        elif launched is not None:
            self._take_in(launched)
        elif plan.output.scheduled:
            self._fail(plan.attempts)
        return True

    def load(self) -> Load:
        return Load(
            blocks=self._blocks.counts(),
            waiting=self._scheduler.num_waiting,
            handing_off=self._scheduler.num_pulling,
            running=self._scheduler.num_running,
            steps=self._steps,
            rate=self._rate.value,
        )

    def _launch(self, plan: DecodePlan, scheduling: float) -> _Launched | None:
        """None where it could not be; then nothing of it was computed."""
        began = self._clock()
        ends_prompt = any(
            part.samples and part.request is attempt.prompt
            for part, attempt in zip(plan.output.scheduled, plan.attempts, strict=True)
        )
        # Before the step counts as computed, which changes what its parts say.
        ahead = self._runner.runs_ahead(plan.output) and not ends_prompt
        try:
            result = self._runner.launch(plan.output)
        except DeviceLost:
            raise
        except Exception:
            log.exception("step %d could not be launched", self._steps + 1)
            return None
        step = self._scheduler.advance(plan)
        timed = self._launch_time.launched(
            step, scheduling=scheduling, began=began, now=self._clock()
        )
        return _Launched(plan, step, result, ahead, timed)

    def _take_in(self, launched: _Launched) -> None:
        try:
            result = launched.result()
        except DeviceLost:
            raise
        except Exception:
            log.exception("step %d failed", self._steps + 1)
            self._scheduler.abandon()
            self._fail(launched.plan.attempts)
            return
        now = self._clock()
        self._launch_time.landed(launched.timed, result.device_time, now)
        self._steps += 1
        progress = self._scheduler.update(launched.plan, launched.step, result)
        for prompted in progress.prompted:
            self._copy(prompted.attempt, prompted.copies)
        rows = progress.rows
        # The device begins a step that was launched ahead when it is done with the one before.
        began = max(launched.timed.began, self._last_landed)
        seconds = now - began
        self._last_landed = now
        self._metrics.observe_step(seconds)
        self._rate.add(seconds)
        self._count_tokens(len(rows))
        for attempt in dict.fromkeys(row.attempt for row in rows):
            attempt.pace.observe(began, now)
        leaving = [row for row in rows if row.attempt.released]
        for row in rows:
            if not row.attempt.released:
                self._held[row.attempt.attempt_id].append(row)
        ended = dict.fromkeys(row.attempt for row in leaving if row.status.is_finished)
        finished = tuple(attempt for attempt in ended if attempt.is_finished)
        self._tell(
            DecodeEvents(
                self.load(),
                outputs=pack(leaving),
                prompted=tuple(prompted.attempt for prompted in progress.prompted),
                finished=finished,
            )
        )

    def _copy(self, attempt: Attempt, copies: Sequence[tuple[int, int]]) -> None:
        """Gives the choices of a prompt their own partial blocks."""
        try:
            self._runner.copy_blocks(copies)
        except DeviceLost:
            raise
        except Exception:
            log.exception("attempt %s: a block could not be copied", attempt.attempt_id.hex())
            self._fail((attempt,))

    def _fail(self, attempts: Sequence[Attempt]) -> None:
        """Whatever went wrong, only the attempts that it concerns are lost."""
        failed = tuple(dict.fromkeys(attempts))
        for attempt in failed:
            self.remove(attempt, ())
        self._tell(DecodeEvents(self.load(), failed=failed))

    def _tell_news(self, plan: DecodePlan) -> None:
        """Of a step that begins, and of what was set free since the last one."""
        rows, self._rows = self._rows, []
        finished, self._finished = self._finished, []
        if plan.grants or plan.preempted or rows or finished or self._runs_others(plan):
            self._tell(
                DecodeEvents(
                    self.load(), plan.grants, plan.preempted, pack(rows), finished=tuple(finished)
                )
            )

    def _runs_others(self, plan: DecodePlan) -> bool:
        """Whether a step begins whose end would be the first to tell that anything runs: a step
        that never ends must be seen too."""
        told = None if self._last_load is None else self._last_load.running
        return bool(plan.output.scheduled) and self._scheduler.num_running != told

    def _tell(self, events: DecodeEvents) -> None:
        self._last_load = events.load
        self._deliver(events)

    def _tell_if_changed(self) -> None:
        load = self.load()
        if self._last_load is None or replace(load, rate=0.0) != replace(self._last_load, rate=0.0):
            self._tell(DecodeEvents(load))


def create_stepper(
    settings: DecodeSettings,
    model: LoadedModel,
    blocks: BlockManager,
    metrics: Metrics,
    board: LoadBoard,
    deliver: Callable[[DecodeEvents], None],
) -> DecodeStepper:
    """The stepper of a worker, with its scheduler."""
    scheduler = DecodeScheduler(
        blocks,
        block_size=model.limits.block_size,
        max_num_batched_tokens=model.step_tokens,
        max_num_seqs=settings.max_decode_batch,
        max_arriving=settings.max_hand_offs,
    )
    generated = metrics.counter("baton_generated_tokens_total", "Tokens drawn by decode.")
    engine_metrics, launch_time = EngineMetrics(metrics, board), LaunchTime(metrics)
    return DecodeStepper(
        scheduler, blocks, model.runner, engine_metrics, generated.inc, deliver, launch_time
    )
