"""One try of some choices of a request: both legs, which die together (protocol 1.2, 5.1)."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from google.protobuf.duration_pb2 import Duration

from baton.v1 import decode_pb2, generation_pb2, prefill_pb2
from chassis.durations import to_duration
from chassis.errors import DeadlineExceeded, ServiceError
from chassis.failure import failure_from_pb
from chassis.telemetry import Span
from gateway.attempt_plan import AttemptPlan
from gateway.choice import Choice
from gateway.failures import Preempted, is_echo, is_fault, violation
from gateway.prefill_leg import run_prefill_leg
from gateway.session import Session
from gateway.verdict import Verdict
from gateway.worker import Worker


class AttemptOwner(Protocol):
    """The request that an attempt works for."""

    def committed(self, num_tokens: int) -> None:
        """Tokens became part of the answer."""

    def prefilled(self, response: prefill_pb2.PrefillResponse) -> None:
        """The prefill leg answered."""

    def attempt_over(self, attempt: "Attempt", error: ServiceError | None) -> None:
        """Nothing more comes; ``error`` is None where every choice of the attempt has ended."""


class Attempt:
    """Runs the legs and feeds their tokens to the choices. Every method returns at once."""

    def __init__(
        self,
        plan: AttemptPlan,
        choices: Sequence[Choice],
        owner: AttemptOwner,
        keep: Callable[[asyncio.Task[None]], None],
    ) -> None:
        """``keep`` holds the prefill leg's task, which may outlive the request by a moment."""
        self.plan = plan
        self.choices = tuple(choices)
        self.failed_worker: Worker | None = None
        self.kv_transfer: Duration | None = None
        self._by_index = {choice.index: choice for choice in choices}
        self._owner = owner
        self._keep = keep
        self._prefill: asyncio.Task[None] | None = None
        # Where decode computes the prompt, its first tokens come like all others.
        self._is_prefilled = plan.route.prefill is None
        self._decode: tuple[Session, int] | None = None
        self._decode_span: Span | None = None
        self._decode_outcome: decode_pb2.Outcome.ValueType | None = None
        self._sent_at: dict[Worker, float] = {}
        self._has_worked = False
        self._is_over = False
        self._verdict = Verdict(self._fail)

    def start(self) -> None:
        """Sends both legs at once; a worker lost in this moment ends the attempt like any other."""
        route = self.plan.route
        for worker in route.workers:
            self._sent_at[worker] = worker.sent(len(self.plan.token_ids))
        if route.decode is not None:
            try:
                self._submit(route.decode)
            except ServiceError as error:
                self.decode_failed(error)
                return
        if route.prefill is not None:
            self._prefill = asyncio.create_task(run_prefill_leg(self.plan, route.prefill, self))
            self._keep(self._prefill)

    def close(self) -> None:
        """Cancels whatever still runs; the owner hears nothing more. Legal in every state."""
        self._is_over = True
        self._verdict.close()
        self._stop_decode()
        if self._prefill is not None:
            self._prefill.cancel()

    def decode_token(
        self,
        choice: int,
        index: int,
        token_id: int,
        logprobs: generation_pb2.TokenLogprobs | None,
        finish: generation_pb2.FinishInfo | None,
    ) -> None:
        """See DecodeSink; this is the hot path of the gateway."""
        if not self._has_worked:
            self._note_work()
        self._take(choice, index, token_id, logprobs, finish)

    def _take(
        self,
        choice: int,
        index: int,
        token_id: int,
        logprobs: generation_pb2.TokenLogprobs | None,
        finish: generation_pb2.FinishInfo | None,
    ) -> None:
        receiver = self._by_index.get(choice)
        if receiver is None:
            self._fail(violation("a worker sent a choice it was not asked for"), None)
            return
        num_committed = receiver.receive(index, token_id, logprobs, finish)
        if num_committed:
            self._owner.committed(num_committed)
            if receiver.finish is not None:
                self._conclude()
                self._stop_choice(receiver)

    def decode_finished(self, finished: decode_pb2.Finished) -> None:
        """See DecodeSink."""
        self._decode = None
        if finished.HasField("kv_transfer"):
            self.kv_transfer = finished.kv_transfer
        assert self._decode_span is not None, "a decode leg has a span"
        self._decode_span.set({"baton.preemptions": finished.preemptions})
        if finished.HasField("prompt"):
            prompt = finished.prompt
            self._owner.prefilled(
                prefill_pb2.PrefillResponse(
                    cached_tokens=prompt.cached_tokens, queue=prompt.queue, compute=prompt.compute
                )
            )
        if finished.outcome == decode_pb2.OUTCOME_FAILED:
            self.decode_failed(failure_from_pb(finished.failure))
        elif finished.outcome == decode_pb2.OUTCOME_CANCELLED:
            # Not by us: a cancelled handle has no sink. So the worker's deadline ran out first.
            error = DeadlineExceeded("the deadline passed", reason="DEADLINE_EXCEEDED")
            self.decode_failed(error)
        else:
            self._decode_outcome = finished.outcome
            self._end_decode_span(None)
            self._conclude()

    def decode_failed(self, error: ServiceError) -> None:
        """See DecodeSink."""
        self._decode = None
        self._end_decode_span(error.reason)
        prefill_runs = self._prefill is not None and not self._prefill.done()
        self._verdict.hear(error, self.plan.route.decode, other_runs=prefill_runs)

    def prefill_failed(self, error: ServiceError) -> None:
        """See PrefillSink."""
        self._verdict.hear(error, self.plan.route.prefill, other_runs=self._decode is not None)

    def prefill_ended(self) -> None:
        """See PrefillSink."""
        self._verdict.settle()

    def blamed_for(self, error: ServiceError) -> tuple[Worker, ...]:
        """Whose fault it is that the attempt ended with ``error``; of a hand-off, both sides'."""
        if not is_fault(error):
            return ()
        if self.failed_worker is not None and not is_echo(error):
            return (self.failed_worker,)
        return self.plan.route.workers

    def _note_work(self) -> None:
        """Every worker of the attempt has done its part for the first time."""
        self._has_worked = True
        for worker in self.plan.route.workers:
            worker.circuit.succeeded()

    def _submit(self, worker: Worker) -> None:
        plan, prefill = self.plan, self.plan.route.prefill
        assert worker.session is not None, "routes name ready workers"
        self._decode_span = plan.start_leg("decode leg", worker.identity.address)
        context = self._decode_span.context
        submit = decode_pb2.Submit(
            attempt_id=plan.attempt_id,
            token_ids=plan.token_ids,
            num_prompt_tokens=plan.num_prompt_tokens,
            choices=plan.choices,
            sampling=plan.sampling,
            eos_token_ids=plan.eos_token_ids,
            prefill_address=prefill.identity.address if prefill is not None else "",
            prefill_boot_id=prefill.identity.boot_id if prefill is not None else b"",
            traceparent=context.traceparent,
            tracestate=context.tracestate,
        )
        submit.deadline.CopyFrom(to_duration(plan.seconds_left))
        self._decode = (worker.session, worker.session.submit(submit, self))

    def prefill_answered(self, response: prefill_pb2.PrefillResponse) -> None:
        """See PrefillSink."""
        if self._is_over:
            return
        self._owner.prefilled(response)
        if self.plan.route.decode is None:
            self._note_work()
        index = len(self.plan.token_ids) - self.plan.num_prompt_tokens
        for first in response.first_tokens:
            if self._is_over:
                return
            logprobs = first.logprobs if first.HasField("logprobs") else None
            finish = first.finish if first.HasField("finish") else None
            self._take(first.choice, index, first.token_id, logprobs, finish)
        # Not before all are taken: decode may be done already, and wait for nothing but these.
        self._is_prefilled = True
        self._conclude()

    def _conclude(self) -> None:
        """Ends the attempt if nothing is missing any more."""
        if self._is_over or not self._is_prefilled:
            return
        has_ended = all(choice.finish is not None for choice in self.choices)
        outcome = self._decode_outcome
        if has_ended and (outcome is not None or not self._decode_will_finish()):
            self._over(None)
        elif has_ended:
            return
        elif outcome == decode_pb2.OUTCOME_PREEMPTED:
            self._over(Preempted())
        elif outcome is not None or self.plan.route.decode is None:
            self._fail(violation("the workers are done, and a choice has not ended"), None)

    def _decode_will_finish(self) -> bool:
        """Whether the decode worker, left alone, ends by itself and now; Finished is on its way.

        It does not know of stop strings, and has nothing to do where first tokens ended it all.
        """
        if self._decode is None:
            return False
        if self.plan.route.prefill is None:
            return not any(choice.was_stopped_here for choice in self.choices)
        first_end = len(self.plan.token_ids) - self.plan.num_prompt_tokens + 1
        went_on = any(len(choice.token_ids) > first_end for choice in self.choices)
        return went_on and not any(choice.was_stopped_here for choice in self.choices)

    def _fail(self, error: ServiceError, worker: Worker | None) -> None:
        if self._is_over:
            return
        if all(choice.finish is not None for choice in self.choices):
            self._over(None)
            return
        self.failed_worker = worker
        for blamed in self.blamed_for(error):
            blamed.circuit.failed(self._sent_at[blamed])
        self._over(error)

    def _over(self, error: ServiceError | None) -> None:
        self._is_over = True
        self._verdict.close()
        was_cut_short = self._decode is not None or error is not None
        self._stop_decode()
        # Otherwise the prefill worker ends its call by itself, once the blocks are released.
        if was_cut_short and self._prefill is not None:
            self._prefill.cancel()
        for choice in self.choices:
            choice.forget_early()
        self._owner.attempt_over(self, error)

    def _stop_choice(self, choice: Choice) -> None:
        """Tells the decode worker of an end that it does not know, while other choices go on."""
        if choice.was_stopped_here and self._decode is not None:
            session, handle = self._decode
            session.cancel_choice(handle, choice.index)

    def _stop_decode(self) -> None:
        if self._decode is not None:
            session, handle = self._decode
            self._decode = None
            session.cancel(handle)
            self._end_decode_span(None)

    def _end_decode_span(self, error: str | None) -> None:
        if self._decode_span is not None:
            if error is not None:
                self._decode_span.fail(error, error)
            self._decode_span.end()
