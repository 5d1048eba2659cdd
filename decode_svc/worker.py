"""The decode worker on the event loop: between sessions, hand-offs and the engine thread."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from baton.v1 import decode_pb2
from chassis.error_table import INTERNAL_MESSAGE
from chassis.errors import (
    AlreadyExists,
    Cancelled,
    DeadlineExceeded,
    Internal,
    ServiceError,
    Unavailable,
)
from chassis.telemetry import TraceContext
from decode_svc import outcome
from decode_svc.admission import Admission
from decode_svc.attempt import Attempt, Grant
from decode_svc.config import DecodeSettings
from decode_svc.events import DecodeEvents
from decode_svc.hand_off import HandOff
from decode_svc.job import DecodeJob
from decode_svc.job_table import JobTable
from decode_svc.outbox import Outbox
from decode_svc.pairings import Pairings
from decode_svc.stepper import create_stepper
from engine.block_manager import BlockManager
from engine.loop import EngineLoop
from kvtransfer.consumer import Consumer
from kvtransfer.errors import PullFailed
from kvtransfer.fence import Fence
from kvtransfer.pull import Pull, PullTimeouts
from kvtransfer.tombstones import Tombstones
from worker.leg import Leg
from worker.load import Load, LoadBoard
from worker.parts import Parts
from worker.warm_up import warm_up
from worker.watchdog import LONGEST_STEPS, Watchdog

log = logging.getLogger(__name__)


class DecodeWorker:
    """Takes attempts, pulls their KV, sends their tokens, and gives their blocks back once.

    Event loop only. Every attempt ends in ``_end``, exactly once, whoever wants its end.
    """

    def __init__(
        self,
        settings: DecodeSettings,
        parts: Parts,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._model = model = parts.model
        metrics = parts.metrics
        self._loop = asyncio.get_running_loop()
        self._jobs = JobTable()
        self._outboxes: dict[int, Outbox] = {}
        self._num_sessions = 0
        self._ended = Tombstones(clock=clock)
        self._idle = asyncio.Event()
        self._idle.set()
        self._admission = Admission(settings.engine, model, clock)
        blocks = BlockManager(model.num_blocks)
        self.board = LoadBoard(Load(blocks.counts()))
        timeouts = PullTimeouts(read=settings.read_timeout, released=settings.released_timeout)
        self._consumer = Consumer(
            boot_id=parts.identity.boot_id,
            layout=model.layout,
            transfers=parts.transfers,
            timeouts=timeouts,
        )
        self.pairings = Pairings(self._consumer)
        metrics.observed_counter(
            "baton_kv_transfer_bytes_total",
            "Bytes of KV that arrived from prefill.",
            "transport",
            parts.transfers.bytes_read_by_transport,
        )
        peers = metrics.gauge("baton_prefill_peers", "Prefill workers that can be read from.")
        peers.set_function(lambda: self._consumer.num_peers)
        self._own_prompts = metrics.counter(
            "baton_local_prefills_total", "Prompts computed here, for want of a prefill worker."
        )
        self._stepper = create_stepper(settings, model, blocks, metrics, self.board, self._deliver)
        self._engine = EngineLoop(
            self._stepper, on_failure=parts.on_failure, rest=self._stepper.rest
        )
        self._watchdog = Watchdog((self._engine, parts.transfers), parts.on_failure)
        self._hand_off = HandOff(self._engine, self._stepper, vocab_size=model.limits.vocab_size)

    async def start(self) -> None:
        """Warms up, then takes work."""
        self._engine.start()
        seconds = await warm_up(self._engine, self._model.runner)
        self.board.step_limit = max(self._settings.engine.stuck_seconds, LONGEST_STEPS * seconds)
        self._watchdog.start(self.board.step_limit)
        self.board.set_accepting(True)

    async def drain(self) -> None:
        """Takes no more attempts; returns when none is left."""
        self.board.set_accepting(False)
        await self._idle.wait()

    def hand_over(self) -> None:
        """Ends every attempt, so that its gateway continues it on another worker."""
        for job in self._jobs.all():
            self._fail(job, Unavailable("this worker is draining", reason="WORKER_DRAINING"))

    async def aclose(self) -> None:
        """Ends what is left and stops the engine thread."""
        self.board.set_accepting(False)
        self.hand_over()
        await self.pairings.close()
        await self._consumer.close()
        await asyncio.to_thread(self._engine.stop)
        self._watchdog.stop()

    # For sessions.

    def open_session(self, outbox: Outbox) -> int:
        """A number for a new session; what its attempts have to say goes to ``outbox``."""
        self._num_sessions += 1
        self._outboxes[self._num_sessions] = outbox
        return self._num_sessions

    def close_session(self, session: int) -> None:
        """Cancels every attempt of a session that is over (protocol 2.2)."""
        for job in self._jobs.of_session(session):
            self._cancel(job)
        del self._outboxes[session]

    def submit(self, session: int, submit: decode_pb2.Submit) -> None:
        """Takes an attempt. Raises ServiceError where it does not; never waits."""
        leg = Leg.from_pb(submit, self._model.limits)
        seconds = self._admission.seconds_left(submit)
        if not self.board.accepting:
            raise Unavailable("this worker takes no new attempts", reason="WORKER_DRAINING")
        self._admission.check(leg, self._jobs.num_waiting)
        if leg.attempt_id in self._jobs or leg.attempt_id in self._ended:
            text = f"attempt {leg.attempt_id.hex()} exists already"
            raise AlreadyExists(text, reason="ATTEMPT_EXISTS")
        pull = self._open_pull(submit, leg)
        attempt = Attempt.of(leg, session, submit.handle, computes_prompt=pull is None)
        trace = TraceContext(submit.traceparent, submit.tracestate) if submit.traceparent else None
        job = DecodeJob(attempt, self._outboxes[session], pull, trace)
        self._jobs.add(job)
        self._idle.clear()
        job.deadline = self._loop.call_later(seconds, self._expire, job)
        if pull is not None:
            job.hand_off = self._loop.create_task(self._run_hand_off(job, pull))
            job.hand_off.add_done_callback(lambda task: self._after_hand_off(job, task))
        else:
            self._own_prompts.inc()
            self._engine.post(lambda: self._stepper.add(attempt))
        self._post_load(self.board.load)

    def is_living(self, session: int, handle: int) -> bool:
        """Whether a handle stands for an attempt that is not over."""
        return self._jobs.find_handle(session, handle) is not None

    def cancel(self, session: int, handle: int, choices: Sequence[int]) -> None:
        """Stops ``choices``; without any, answers Finished(cancelled) whatever the handle."""
        job = self._jobs.find_handle(session, handle)
        if choices and job is not None:
            self._engine.post(lambda: self._stepper.drop(job.attempt, choices))
        elif job is not None:
            self._cancel(job)
        elif not choices:
            finished = decode_pb2.Finished(handle=handle, outcome=decode_pb2.OUTCOME_CANCELLED)
            self._outboxes[session].put(decode_pb2.SessionResponse(finished=finished))

    # The hand-off of one attempt.

    def _open_pull(self, submit: decode_pb2.Submit, leg: Leg) -> Pull | None:
        """None where the prompt is to be computed here (protocol 5.5)."""
        if not submit.prefill_address:
            return None
        return self._consumer.open(
            leg.attempt_id, submit.prefill_address, submit.prefill_boot_id, leg.token_ids
        )

    async def _run_hand_off(self, job: DecodeJob, pull: Pull) -> None:
        try:
            await self._hand_off.run(job, pull)
        except PullFailed as failure:
            self._on_pull_failed(job, failure)
        except ServiceError as error:
            self._fail(job, error)

    def _after_hand_off(self, job: DecodeJob, task: "asyncio.Task[None]") -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None and not job.ended:
            self._fail_unforeseen(job, error)

    def _on_pull_failed(self, job: DecodeJob, failure: PullFailed) -> None:
        # Every choice ended on its first token: prefill let go, and there is nothing to do here.
        if failure.reason == "REQUEST_ENDED":
            self._complete(job)
        else:
            self._fail(job, failure.error)

    # For the engine thread.

    def _deliver(self, events: DecodeEvents) -> None:
        self._loop.call_soon_threadsafe(self._on_events, events)

    def _on_events(self, events: DecodeEvents) -> None:
        """Attempts that have ended meanwhile are skipped: their blocks are on their way back."""
        for session, step in events.outputs.items():
            if (outbox := self._outboxes.get(session)) is not None:
                outbox.put_step(step)
        for grant in events.grants:
            self._tell(grant.attempt, partial(self._on_grant, grant))
        for attempt in events.prompted:
            self._tell(attempt, DecodeJob.prompted)
        for attempt in events.finished:
            self._tell(attempt, self._complete)
        for attempt in events.preempted:
            self._tell(attempt, self._on_preempted)
        for attempt in events.failed:
            error = Internal("the engine failed to compute a step", reason="STEP_FAILED")
            self._tell(attempt, partial(self._fail, error=error))
        self._post_load(events.load)

    def _tell(self, attempt: Attempt, news: Callable[[DecodeJob], None]) -> None:
        if (job := self._jobs.find(attempt)) is None:
            return
        try:
            news(job)
        except Exception as error:
            self._fail_unforeseen(job, error)

    def _on_grant(self, grant: Grant, job: DecodeJob) -> None:
        self._jobs.note_room(job)
        job.grant(grant)

    def _on_preempted(self, job: DecodeJob) -> None:
        job.preemptions += 1
        self._end(job, outcome.preempted(job), None)

    # Ends.

    def _complete(self, job: DecodeJob) -> None:
        self._end(job, outcome.completed(job), None)

    def _cancel(self, job: DecodeJob) -> None:
        error = Cancelled("the attempt was given up", reason="CANCELLED")
        self._end(job, outcome.cancelled(job), error)

    def _expire(self, job: DecodeJob) -> None:
        error = DeadlineExceeded("the deadline has passed", reason="DEADLINE_EXCEEDED")
        self._end(job, outcome.cancelled(job), error)

    def _fail(self, job: DecodeJob, error: ServiceError) -> None:
        if not job.ended:
            attempt_id = job.attempt.attempt_id.hex()
            log.info("attempt %s: %s: %s", attempt_id, error.reason, error, extra=job.log_extra)
        self._end(job, outcome.failed(job, error), error)

    def _fail_unforeseen(self, job: DecodeJob, error: BaseException) -> None:
        """A bug of ours ends the attempt that met it, and no other."""
        attempt_id = job.attempt.attempt_id.hex()
        log.error("attempt %s failed", attempt_id, exc_info=error, extra=job.log_extra)
        internal = Internal(INTERNAL_MESSAGE, reason="INTERNAL")
        self._end(job, outcome.failed(job, internal), internal)

    def _end(
        self, job: DecodeJob, finished: decode_pb2.Finished, error: ServiceError | None
    ) -> None:
        """Says the last word, stops the hand-off, and frees the blocks in the next step."""
        if job.ended:
            return
        attempt = job.attempt
        self._jobs.remove(job)
        self._ended.add(attempt.attempt_id)
        fence = job.pull.cancel() if job.pull is not None else Fence.none()
        job.end(error, fence)
        self._engine.post(lambda: self._stepper.remove(attempt, fence.block_ids))
        if fence.block_ids:
            # Posted after the removal, also where the fence lifts at once.
            fence.lifted.add_done_callback(
                lambda _: self._engine.post(lambda: self._stepper.lift_fence(fence.block_ids))
            )
        job.outbox.put(decode_pb2.SessionResponse(finished=finished))
        self._admission.note_end()
        self._post_load(self.board.load)
        if not self._jobs:
            self._idle.set()

    def _post_load(self, load: Load) -> None:
        """The engine knows only those that wait for room; others still wait for prefill."""
        self.board.post(replace(load, waiting=self._jobs.num_waiting))
