"""The prefill worker on the event loop: between calls, the engine thread and the hand-off."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from chassis.error_table import INTERNAL_MESSAGE
from chassis.errors import (
    Aborted,
    Cancelled,
    Internal,
    ResourceExhausted,
    ServiceError,
    Unavailable,
)
from chassis.telemetry import Span
from engine.block_manager import BlockManager
from engine.loop import EngineLoop
from engine.request import Request, RequestStatus
from kvtransfer.checksums import no_checksums
from kvtransfer.handoff import Completion, FirstSample
from kvtransfer.lease import LeaseEnd
from kvtransfer.producer import HandoffTimeouts, Producer
from prefill_svc.config import PrefillSettings
from prefill_svc.job import FirstToken, PrefillJob
from prefill_svc.prompt import Admission, Progress, Prompt
from prefill_svc.scheduler import PrefillScheduler
from prefill_svc.stepper import PrefillEvents, PrefillStepper
from worker.leg import Leg
from worker.load import Load, LoadBoard
from worker.metrics import EngineMetrics
from worker.parts import Parts
from worker.warm_up import warm_up
from worker.watchdog import LONGEST_STEPS, Watchdog

_LEASE_ERRORS: dict[LeaseEnd, tuple[str, str]] = {
    LeaseEnd.PULL_BROKEN: ("PULL_BROKEN", "the decode worker gave up pulling the KV"),
    LeaseEnd.HANDOFF_TIMEOUT: ("HANDOFF_TIMEOUT", "no decode worker came for the KV in time"),
    LeaseEnd.REVOKED: ("LEASE_REVOKED", "the KV was given up"),
}

log = logging.getLogger(__name__)


class PrefillWorker:
    """Takes prompts, answers their first tokens, and lets go of their blocks exactly once.

    Event loop only, except ``on_failure``, which the engine thread may call. A lease ends here
    (or in the producer, which calls ``lease_ended``) before its blocks are freed by a callable
    posted to the engine thread.
    """

    def __init__(self, settings: PrefillSettings, parts: Parts) -> None:
        self._settings = settings
        self._model = model = parts.model
        metrics = parts.metrics
        self._loop = asyncio.get_running_loop()
        self._jobs: dict[bytes, PrefillJob] = {}
        self._nudge: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        blocks = BlockManager(model.num_blocks)
        self.board = LoadBoard(Load(blocks.counts()))
        self.producer = Producer(
            boot_id=parts.identity.boot_id,
            layout=model.layout,
            transfers=parts.transfers,
            listener=self,
            timeouts=HandoffTimeouts(handoff=settings.handoff_timeout),
        )
        scheduler = PrefillScheduler(
            blocks,
            block_size=model.limits.block_size,
            max_num_batched_tokens=model.step_tokens,
            max_num_seqs=model.step_tokens,
            revoke_after=settings.revoke_after,
            checksum=parts.transfers.checksums if settings.checksums else no_checksums,
        )
        engine_metrics = EngineMetrics(metrics, self.board)
        self._stepper = PrefillStepper(
            scheduler,
            blocks,
            model.runner,
            engine_metrics,
            self._deliver,
            # Checksums are read where steps run, and would wait for the next one.
            goes_ahead=not settings.checksums,
        )
        self._engine = EngineLoop(self._stepper, on_failure=parts.on_failure)
        self._watchdog = Watchdog((self._engine, parts.transfers), parts.on_failure)
        self._prompt_tokens = metrics.counter(
            "baton_prompt_tokens_total", "Tokens of computed prompts, cached ones included."
        )
        self._cached_tokens = metrics.counter(
            "baton_cached_tokens_total", "Prompt tokens whose KV was in the prefix cache."
        )

    async def start(self) -> None:
        """Warms up, then takes work."""
        self._engine.start()
        seconds = await warm_up(self._engine, self._model.runner)
        self.board.step_limit = max(self._settings.engine.stuck_seconds, LONGEST_STEPS * seconds)
        self._watchdog.start(self.board.step_limit)
        self.board.set_accepting(True)

    async def drain(self) -> None:
        """Takes no more prompts; returns when none is left."""
        self.board.set_accepting(False)
        await self._idle.wait()

    def hand_over(self) -> None:
        """Ends every prompt, so that its gateway has it computed on another worker."""
        for job in list(self._jobs.values()):
            # The decode worker passes on what it is told as its own failure: nobody's fault.
            revoked = Aborted("the prefill worker is draining", reason="LEASE_REVOKED")
            if self.producer.revoke(job.attempt_id, revoked):
                text = "this worker is draining"
                self._forget(job, Unavailable(text, reason="WORKER_DRAINING"))

    async def aclose(self) -> None:
        """Ends what is left and stops the engine thread."""
        self.board.set_accepting(False)
        if self._nudge is not None:
            self._nudge.cancel()
        self.hand_over()
        await asyncio.to_thread(self._engine.stop)
        self._watchdog.stop()

    # For calls.

    def submit(self, leg: Leg, *, hand_off: bool, parent: Span | None) -> PrefillJob:
        """Queues a prompt. Raises ServiceError, or DuplicateAttempt for a known attempt."""
        self._check_room(leg)
        self.producer.register(leg.attempt_id, leg.token_ids, hand_off=hand_off)
        request = Request(
            request_id=leg.attempt_id.hex(),
            token_ids=leg.token_ids,
            num_prompt_tokens=leg.num_prompt_tokens,
            params=leg.params,
            choices=leg.choices,
            cache_salt=leg.cache_salt,
            block_hashes=leg.block_hashes,
        )
        prompt = Prompt(leg.attempt_id, request, hand_off)
        job = self._jobs[leg.attempt_id] = PrefillJob(prompt, parent)
        self._idle.clear()
        self._engine.post(lambda: self._stepper.scheduler.add(prompt))
        return job

    def end(self, job: PrefillJob, error: ServiceError | None) -> None:
        """Ends a job whose lease is not over; a no-op after that. None: everything went well."""
        why = error or Cancelled("the request has ended", reason="REQUEST_ENDED")
        if self.producer.revoke(job.attempt_id, why):
            self._forget(job, error)

    # For the producer.

    def started(self, attempt_id: bytes) -> None:
        self._engine.post(lambda: self._stepper.scheduler.start(attempt_id))

    def lease_ended(self, attempt_id: bytes, how: LeaseEnd) -> None:
        job = self._jobs[attempt_id]
        if how.alive:
            self._forget(job, None)
        else:
            reason, message = _LEASE_ERRORS[how]
            self._forget(job, Aborted(message, reason=reason))

    # For the engine thread.

    def _deliver(self, events: PrefillEvents) -> None:
        self._loop.call_soon_threadsafe(self._on_events, events)

    def _on_events(self, events: PrefillEvents) -> None:
        """Jobs that have ended meanwhile are skipped: their blocks are on their way back."""
        for admission in events.admissions:
            self._tell(admission.prompt, partial(self._on_admission, admission))
        for progress in events.progress:
            self._tell(progress.prompt, partial(self._on_progress, progress, events.step))
        for prompt in events.failed:
            self._tell(prompt, self._on_step_failed)
        if events.revoke is not None:
            self._tell(events.revoke, self._on_revoke)
        self.board.post(events.load)
        if events.load.waiting and not events.load.running:
            self._nudge_later()

    def _tell(self, prompt: Prompt, news: Callable[[PrefillJob], None]) -> None:
        """A bug of ours ends the attempt that met it, and no other."""
        if (job := self._jobs.get(prompt.attempt_id)) is None:
            return
        try:
            news(job)
        except Exception:
            attempt_id = prompt.attempt_id.hex()
            log.exception("attempt %s failed", attempt_id, extra=job.log_extra)
            self.end(job, Internal(INTERNAL_MESSAGE, reason="INTERNAL"))

    def _nudge_later(self) -> None:
        """Makes the scheduler look again: time alone can give a starved prompt its room."""
        if self._nudge is None:
            self._nudge = self._loop.call_later(self._settings.revoke_after, self._on_nudge)

    def _on_nudge(self) -> None:
        self._nudge = None
        self._engine.post(lambda: None)
        if self.board.load.waiting:
            self._nudge_later()

    def _on_step_failed(self, job: PrefillJob) -> None:
        self.end(job, Internal("the engine failed to compute a step", reason="STEP_FAILED"))

    def _on_revoke(self, job: PrefillJob) -> None:
        self.end(job, Aborted("an older prompt needs the room", reason="LEASE_REVOKED"))

    def _on_admission(self, admission: Admission, job: PrefillJob) -> None:
        job.begin()
        if job.prompt.hand_off:
            self.producer.computing(job.attempt_id)
        if admission.chunk is not None:
            self.producer.chunk_ready(job.attempt_id, admission.chunk)

    def _on_progress(self, progress: Progress, step: int, job: PrefillJob) -> None:
        job.advance(progress, step)
        if progress.chunk is not None:
            self.producer.chunk_ready(job.attempt_id, progress.chunk)
        if not progress.samples:
            return
        request = job.prompt.request
        self._prompt_tokens.inc(request.num_tokens)
        self._cached_tokens.inc(request.num_cached_tokens)
        first_tokens = tuple(
            FirstToken(sample, self._finish(request, sample.token_id))
            for sample in progress.samples
        )
        job.answer(first_tokens)
        if not job.prompt.hand_off or all(first.status for first in first_tokens):
            self.end(job, None)
        else:
            self.producer.complete(job.attempt_id, _completion(progress, first_tokens))

    def _finish(self, request: Request, token_id: int) -> RequestStatus | None:
        num_output_tokens = request.num_output_tokens + 1
        return request.finish_on(token_id, num_output_tokens)

    def _forget(self, job: PrefillJob, error: ServiceError | None) -> None:
        """After the end of the lease: frees the blocks in the next step, ends the call."""
        del self._jobs[job.attempt_id]
        self._engine.post(lambda: self._stepper.scheduler.remove(job.attempt_id))
        job.end(error)
        if error is not None:
            attempt_id = job.attempt_id.hex()
            log.info("attempt %s: %s: %s", attempt_id, error.reason, error, extra=job.log_extra)
        if not self._jobs:
            self._idle.set()

    def _check_room(self, leg: Leg) -> None:
        if not self.board.accepting:
            raise Unavailable("this worker takes no new prompts", reason="WORKER_DRAINING")
        self._model.check_fits(len(leg.token_ids), 1)
        num_waiting = sum(not job.admitted for job in self._jobs.values())
        # A continuation has been admitted once: refused now, its answer would be lost.
        if num_waiting >= self._settings.engine.max_queue and not leg.continues:
            load = self.board.load
            raise ResourceExhausted(
                f"{num_waiting} prompts are waiting, the most that may",
                reason="QUEUE_FULL",
                retry_after=load.pending_tokens / load.rate if load.rate else 1.0,
            )


def _completion(progress: Progress, first_tokens: tuple[FirstToken, ...]) -> Completion:
    return Completion(
        num_tokens=progress.prompt.request.num_tokens,
        first_samples=tuple(
            FirstSample(first.sample.choice, first.sample.token_id, first.status is not None)
            for first in first_tokens
        ),
        last_chunk=progress.last_chunk,
    )
