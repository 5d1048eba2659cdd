"""The decode worker on the event loop: between sessions, hand-offs and the engine thread."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from baton.v1 import decode_pb2
from chassis.errors import AlreadyExists, Internal, ServiceError, Unavailable
from chassis.telemetry import TraceContext
from decode_svc import outcome
from decode_svc.admission import Admission
from decode_svc.attempt import Attempt, Grant
from decode_svc.config import DecodeSettings
from decode_svc.job import DecodeJob
from decode_svc.job_table import JobTable
from decode_svc.outbox import Outbox
from decode_svc.pairings import Pairings
from decode_svc.scheduler import DecodeScheduler
from decode_svc.stepper import DecodeEvents, DecodeStepper
from engine.block_manager import BlockManager
from engine.loop import EngineLoop
from kvtransfer.consumer import Consumer
from kvtransfer.errors import PullFailed
from kvtransfer.handoff import Completion
from kvtransfer.pull import PullTimeouts
from kvtransfer.tombstones import Tombstones
from worker.leg import Leg
from worker.load import Load, LoadBoard
from worker.metrics import EngineMetrics
from worker.parts import Parts
from worker.warm_up import warm_up
from worker.watchdog import WARM_UPS, Watchdog

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
        self._transfers = parts.transfers
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
        scheduler = DecodeScheduler(
            blocks,
            block_size=model.limits.block_size,
            max_num_seqs=settings.max_decode_batch,
            eos_token_ids=model.eos_token_ids,
        )
        generated = metrics.counter("baton_generated_tokens_total", "Tokens drawn by decode.")
        self._transferred = metrics.counter(
            "baton_kv_transfer_bytes_total", "Bytes of KV read from prefill.", ("transport",)
        )
        self._stepper = DecodeStepper(
            scheduler,
            blocks,
            model.runner,
            EngineMetrics(metrics, self.board),
            generated.inc,
            self._deliver,
        )
        self._engine = EngineLoop(self._stepper, on_failure=parts.on_failure)
        self._watchdog = Watchdog((self._engine, parts.transfers), parts.on_failure)

    async def start(self) -> None:
        """Warms up, then takes work."""
        self._engine.start()
        seconds = await warm_up(self._engine, self._model.runner)
        self.board.step_limit = max(self._settings.engine.stuck_seconds, WARM_UPS * seconds)
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
        self.pairings.cancel()
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
        attempt = Attempt(
            attempt_id=leg.attempt_id,
            session=session,
            handle=submit.handle,
            token_ids=leg.token_ids,
            num_prompt_tokens=leg.num_prompt_tokens,
            params=leg.params,
            choices=leg.choices,
            cache_salt=leg.cache_salt,
            block_hashes=leg.block_hashes,
        )
        pull = self._consumer.open(
            leg.attempt_id, submit.prefill_address, submit.prefill_boot_id, leg.token_ids
        )
        parent = TraceContext(submit.traceparent, submit.tracestate)
        job = DecodeJob(
            attempt, self._outboxes[session], pull, parent if submit.traceparent else None
        )
        self._jobs.add(job)
        self._idle.clear()
        job.deadline = self._loop.call_later(seconds, self._cancel, job)
        job.hand_off = self._loop.create_task(self._hand_off(job))
        self._post_load(self.board.load)

    def is_living(self, session: int, handle: int) -> bool:
        """Whether a handle stands for an attempt that is not over."""
        return self._jobs.find_handle(session, handle) is not None

    def cancel(self, session: int, handle: int) -> None:
        """Answers Finished(cancelled), also for an attempt that is unknown or over."""
        if (job := self._jobs.find_handle(session, handle)) is not None:
            self._cancel(job)
        else:
            finished = decode_pb2.Finished(handle=handle, outcome=decode_pb2.OUTCOME_CANCELLED)
            self._outboxes[session].put(decode_pb2.SessionResponse(finished=finished))

    def set_accepting(self, accepting: bool) -> None:
        """Whether new attempts are taken."""
        self.board.set_accepting(accepting)

    @property
    def oldest_fence(self) -> float:
        """Seconds that blocks have been fenced by a read that failed and did not end."""
        return self._transfers.oldest_fence()

    # The hand-off of one attempt.

    async def _hand_off(self, job: DecodeJob) -> None:
        attempt, pull = job.attempt, job.pull
        try:
            await pull.computing()
            self._engine.post(lambda: self._stepper.add(attempt))
            grant = await self._room(job)
            await pull.start(grant.cached_tokens, grant.block_ids)
            completion = await pull.complete()
            self._check_completion(attempt, completion)
            job.begin()
            self._engine.post(lambda: self._stepper.join(attempt, completion.first_samples))
            await pull.released()
        except PullFailed as failure:
            self._on_pull_failed(job, failure)
        except ServiceError as error:
            self._fail(job, error)
        else:
            job.released(pull.records)
            for record in pull.records:
                self._transferred.labels(record.transport).inc(record.num_bytes)
            self._engine.post(lambda: self._stepper.release(attempt))

    async def _room(self, job: DecodeJob) -> Grant:
        """Waits for room. Raises PullFailed as soon as prefill gives the attempt up."""
        given_up = asyncio.ensure_future(job.pull.complete())
        try:
            await asyncio.wait((job.room, given_up), return_when=asyncio.FIRST_COMPLETED)
            if given_up.done():
                given_up.result()
            return await job.room
        finally:
            given_up.cancel()

    def _on_pull_failed(self, job: DecodeJob, failure: PullFailed) -> None:
        # Every choice ended on its first token: prefill let go, and there is nothing to do here.
        if failure.reason == "REQUEST_ENDED":
            self._end(job, outcome.completed(job), None)
        else:
            self._fail(job, failure.error)

    def _check_completion(self, attempt: Attempt, completion: Completion) -> None:
        samples = completion.first_samples
        choices = tuple(sample.choice for sample in samples)
        known = all(sample.token_id < self._model.limits.vocab_size for sample in samples)
        if choices != attempt.choices or completion.num_tokens != attempt.num_tokens or not known:
            raise Internal(f"prefill completed another prompt: {completion}", reason="BAD_COMPLETE")

    # For the engine thread.

    def _deliver(self, events: DecodeEvents) -> None:
        self._loop.call_soon_threadsafe(self._on_events, events)

    def _on_events(self, events: DecodeEvents) -> None:
        """Attempts that have ended meanwhile are skipped: their blocks are on their way back."""
        for session, step in events.outputs.items():
            if (outbox := self._outboxes.get(session)) is not None:
                outbox.put_step(step)
        for grant in events.grants:
            if (job := self._jobs.find(grant.attempt)) is not None:
                self._jobs.note_room(job)
                job.grant(grant)
        for attempt in events.finished:
            if (job := self._jobs.find(attempt)) is not None:
                self._end(job, outcome.completed(job), None)
        for attempt in events.preempted:
            if (job := self._jobs.find(attempt)) is not None:
                job.preemptions += 1
                self._end(job, outcome.preempted(job), None)
        for attempt in events.failed:
            if (job := self._jobs.find(attempt)) is not None:
                text = "the engine failed to compute a step"
                self._fail(job, Internal(text, reason="STEP_FAILED"))
        self._post_load(events.load)

    # Ends.

    def _cancel(self, job: DecodeJob) -> None:
        self._end(job, outcome.cancelled(job), None)

    def _fail(self, job: DecodeJob, error: ServiceError) -> None:
        if not job.ended:
            log.info("attempt %s: %s: %s", job.attempt.attempt_id.hex(), error.reason, error)
        self._end(job, outcome.failed(job, error), error)

    def _end(
        self, job: DecodeJob, finished: decode_pb2.Finished, error: ServiceError | None
    ) -> None:
        """Says the last word, stops the hand-off, and frees the blocks in the next step."""
        if job.ended:
            return
        attempt = job.attempt
        self._jobs.remove(job)
        self._ended.add(attempt.attempt_id)
        job.end(error)
        fence = job.pull.cancel()
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
