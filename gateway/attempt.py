"""One try of some choices of a request: both legs, which die together (protocol 1.2, 5.1)."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import grpc
from google.protobuf.duration_pb2 import Duration

from baton.v1 import decode_pb2, generation_pb2, prefill_pb2, prefill_pb2_grpc
from chassis.durations import to_duration
from chassis.error_table import INTERNAL_MESSAGE
from chassis.errors import DeadlineExceeded, Internal, ServiceError
from chassis.failure import failure_from_pb
from chassis.request_id import METADATA_KEY
from chassis.telemetry import Span, SpanKind, start_span
from gateway.choice import Choice
from gateway.failures import Preempted, prefill_error, prefill_lost
from gateway.router import Route
from gateway.session import Session

log = logging.getLogger(__name__)

_PrefillCall = grpc.aio.UnaryStreamCall[prefill_pb2.PrefillRequest, prefill_pb2.PrefillResponse]


@dataclass(frozen=True, slots=True)
class AttemptPlan:
    """What both legs are told. ``attempt_id`` is random, ``deadline`` on the monotonic clock.

    ``token_ids`` is the prompt followed by what is committed of the choices; its first
    ``num_prompt_tokens`` are the prompt.
    """

    attempt_id: bytes
    route: Route
    token_ids: Sequence[int]
    num_prompt_tokens: int
    sampling: generation_pb2.SamplingParams
    eos_token_ids: Collection[int]
    deadline: float
    parent: Span

    @property
    def num_known_output_tokens(self) -> int:
        """Tokens after the prompt that are committed already."""
        return len(self.token_ids) - self.num_prompt_tokens


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
        self.failed_worker: bytes | None = None
        self.kv_transfer: Duration | None = None
        self._by_index = {choice.index: choice for choice in choices}
        self._owner = owner
        self._keep = keep
        self._prefill: asyncio.Task[None] | None = None
        self._is_prefilled = False
        self._decode: tuple[Session, int] | None = None
        self._decode_span: Span | None = None
        self._decode_outcome: decode_pb2.Outcome.ValueType | None = None
        self._is_over = False

    def start(self) -> None:
        """Sends both legs at once; a worker lost in this moment ends the attempt like any other."""
        num_tokens = len(self.plan.token_ids)
        self.plan.route.prefill.sent(num_tokens)
        if self.plan.route.decode is not None:
            self.plan.route.decode.sent(num_tokens)
            try:
                self._submit()
            except ServiceError as error:
                self.decode_failed(error)
                return
        self._prefill = asyncio.create_task(self._run_prefill())
        self._keep(self._prefill)

    def close(self) -> None:
        """Cancels whatever still runs; the owner hears nothing more. Legal in every state."""
        self._is_over = True
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
        receiver = self._by_index.get(choice)
        if receiver is None:
            self._fail(_violation("the decode worker sent a choice it was not asked for"), None)
            return
        num_committed = receiver.receive(index, token_id, logprobs, finish)
        if num_committed:
            self._owner.committed(num_committed)
            if receiver.finish is not None:
                self._conclude()

    def decode_finished(self, finished: decode_pb2.Finished) -> None:
        """See DecodeSink."""
        self._decode = None
        self._decode_outcome = finished.outcome
        if finished.HasField("kv_transfer"):
            self.kv_transfer = finished.kv_transfer
        assert self._decode_span is not None, "a decode leg has a span"
        self._decode_span.set({"baton.preemptions": finished.preemptions})
        if finished.outcome == decode_pb2.OUTCOME_FAILED:
            self.decode_failed(failure_from_pb(finished.failure))
        elif finished.outcome == decode_pb2.OUTCOME_CANCELLED:
            # Not by us: a cancelled handle has no sink. So the worker's deadline ran out first.
            error = DeadlineExceeded("the deadline passed", reason="DEADLINE_EXCEEDED")
            self.decode_failed(error)
        else:
            self._end_decode_span(None)
            self._conclude()

    def decode_failed(self, error: ServiceError) -> None:
        """See DecodeSink."""
        self._decode = None
        self._end_decode_span(error.reason)
        worker = self.plan.route.decode
        self._fail(error, worker.identity.boot_id if worker is not None else None)

    def _submit(self) -> None:
        plan, worker = self.plan, self.plan.route.decode
        assert worker is not None and worker.session is not None, "routes name ready workers"
        self._decode_span = self._start_leg("decode leg", worker.identity.address)
        context = self._decode_span.context
        submit = decode_pb2.Submit(
            attempt_id=plan.attempt_id,
            token_ids=plan.token_ids,
            num_prompt_tokens=plan.num_prompt_tokens,
            choices=list(self._by_index),
            sampling=plan.sampling,
            eos_token_ids=plan.eos_token_ids,
            prefill_address=plan.route.prefill.identity.address,
            prefill_boot_id=plan.route.prefill.identity.boot_id,
            traceparent=context.traceparent,
            tracestate=context.tracestate,
        )
        submit.deadline.CopyFrom(to_duration(self._seconds_left()))
        self._decode = (worker.session, worker.session.submit(submit, self))

    async def _run_prefill(self) -> None:
        identity = self.plan.route.prefill.identity
        span = self._start_leg("prefill leg", identity.address)
        try:
            await self._follow_prefill(span)
        except grpc.aio.AioRpcError as error:
            failure = prefill_error(error, identity.name)
            span.fail(failure.message, failure.reason)
            self._fail(failure, identity.boot_id)
        except asyncio.CancelledError:
            # Not by us, if the attempt goes on: the connection was closed under the call.
            self._fail(prefill_lost(identity.name, "the connection was closed"), identity.boot_id)
            raise
        except Exception:
            log.exception("attempt %s", self.plan.attempt_id.hex())
            self._fail(Internal(INTERNAL_MESSAGE, reason="INTERNAL"), None)
        finally:
            span.end()

    async def _follow_prefill(self, span: Span) -> None:
        plan = self.plan
        request = prefill_pb2.PrefillRequest(
            attempt_id=plan.attempt_id,
            boot_id=plan.route.prefill.identity.boot_id,
            token_ids=plan.token_ids,
            num_prompt_tokens=plan.num_prompt_tokens,
            choices=list(self._by_index),
            sampling=plan.sampling,
            eos_token_ids=plan.eos_token_ids,
            hand_off=plan.route.decode is not None,
        )
        stub = prefill_pb2_grpc.PrefillServiceStub(plan.route.prefill.channel)
        metadata = (*span.metadata(), (METADATA_KEY, plan.parent.trace_id))
        call = stub.Prefill(request, timeout=self._seconds_left(), metadata=metadata)
        try:
            await self._hear_prefill(call, span)
        finally:
            # A task that is cancelled while the request is being sent does not end the call.
            call.cancel()

    async def _hear_prefill(self, call: _PrefillCall, span: Span) -> None:
        response = await call.read()
        if not isinstance(response, prefill_pb2.PrefillResponse):
            self._fail(_violation("the prefill worker sent no first token"), None)
            return
        span.event("first token")
        self._take_first_tokens(response)
        # Ends when the worker has released the blocks; the client does not wait for it.
        if await call.read() is not grpc.aio.EOF:
            self._fail(_violation("the prefill worker answered twice"), None)

    def _take_first_tokens(self, response: prefill_pb2.PrefillResponse) -> None:
        if self._is_over:
            return
        self._owner.prefilled(response)
        index = len(self.plan.token_ids) - self.plan.num_prompt_tokens
        for first in response.first_tokens:
            if self._is_over:
                return
            logprobs = first.logprobs if first.HasField("logprobs") else None
            finish = first.finish if first.HasField("finish") else None
            self.decode_token(first.choice, index, first.token_id, logprobs, finish)
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
            self._fail(_violation("the workers are done, and a choice has not ended"), None)

    def _decode_will_finish(self) -> bool:
        """Whether the decode worker, left alone, ends by itself and now; Finished is on its way.

        It does not know of stop strings, and has nothing to do where first tokens ended it all.
        """
        if self.plan.route.decode is None:
            return False
        first_end = len(self.plan.token_ids) - self.plan.num_prompt_tokens + 1
        went_on = any(len(choice.token_ids) > first_end for choice in self.choices)
        return went_on and not any(choice.was_stopped_here for choice in self.choices)

    def _fail(self, error: ServiceError, worker: bytes | None) -> None:
        if self._is_over:
            return
        if all(choice.finish is not None for choice in self.choices):
            self._over(None)
            return
        self.failed_worker = worker
        self._over(error)

    def _over(self, error: ServiceError | None) -> None:
        self._is_over = True
        was_cut_short = self._decode is not None or error is not None
        self._stop_decode()
        # Otherwise the prefill worker ends its call by itself, once the blocks are released.
        if was_cut_short and self._prefill is not None:
            self._prefill.cancel()
        for choice in self.choices:
            choice.forget_early()
        self._owner.attempt_over(self, error)

    def _stop_decode(self) -> None:
        if self._decode is not None:
            session, handle = self._decode
            self._decode = None
            session.cancel(handle)
            self._end_decode_span(None)

    def _start_leg(self, name: str, address: str) -> Span:
        attributes = {"server.address": address, "baton.attempt.id": self.plan.attempt_id.hex()}
        return start_span(
            name, parent=self.plan.parent, kind=SpanKind.CLIENT, attributes=attributes
        )

    def _end_decode_span(self, error: str | None) -> None:
        if self._decode_span is not None:
            if error is not None:
                self._decode_span.fail(error, error)
            self._decode_span.end()

    def _seconds_left(self) -> float:
        return max(self.plan.deadline - time.monotonic(), 0.001)


def _violation(message: str) -> Internal:
    return Internal(message, reason="PROTOCOL_VIOLATION")
