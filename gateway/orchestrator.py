"""Brings a request from its arrival to its workers."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from baton.v1 import generation_pb2
from chassis.errors import Unavailable
from chassis.telemetry import Span, start_span
from gateway.admission import Admission
from gateway.choice import Choice
from gateway.choice_text import ChoiceText
from gateway.generation import Generation, GenerationLimits, GenerationTask
from gateway.memory import HeldMemory
from gateway.model_limits import ModelLimits
from gateway.prompt import reading_size
from gateway.request_clock import RequestClock
from gateway.router import Demand, Router
from gateway.text_work import TextWork
from gateway.tokenizer import Tokenizer
from gateway.validation import ValidatedRequest, check_request, finish_request


class Orchestrator:
    """Checks, tokenizes and admits requests, then runs their generations. Event loop only."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        text_work: TextWork,
        router: Router,
        admission: Admission,
        memory: HeldMemory,
        limits: GenerationLimits,
        on_retry: Callable[[str], None],
    ) -> None:
        """``on_retry`` hears of what each attempt failed that is tried again."""
        self._tokenizer = tokenizer
        self._text_work = text_work
        self._router = router
        self._admission = admission
        self._memory = memory
        self._limits = limits
        self._on_retry = on_retry
        # Prefill legs end by themselves when the KV is released, a moment after the answer.
        self._legs: set[asyncio.Task[None]] = set()
        self._generations: set[Generation] = set()
        self._num_open = 0
        self._is_draining = False
        self._emptied = asyncio.Event()

    @property
    def model_limits(self) -> ModelLimits:
        """What a request may ask of the model and of the workers that are ready now."""
        return ModelLimits.of(self._tokenizer, self._router.max_context_tokens())

    def check_room(self) -> None:
        """Raises ResourceExhausted (QUEUE_FULL) where no request that comes now finds room."""
        # One that drains has more to say than that.
        if not self._is_draining:
            self._admission.check_room()

    @asynccontextmanager
    async def generate(
        self, request: generation_pb2.GenerateRequest, clock: RequestClock, span: Span
    ) -> AsyncIterator[Generation]:
        """A generation that runs while entered, and is cancelled on leaving.

        Must be entered by the task that reads it. Raises InvalidArgument, Unavailable (no pair of
        workers, draining) or ResourceExhausted (queue, memory); its readers' errors pass through.
        """
        limits = self.model_limits
        with self._open(), self._memory.request(request.ByteSize(), limits.max_context_tokens):
            check_request(request, limits)
            # Where there is no room now, none is made by reading the prompt first.
            self._admission.check_room()
            validated = await self._validate(request, clock)
            if not self._router.decode_may_return:
                self._router.choose(_demand(validated))
            num_tokens = _most_tokens(validated)
            with start_span("admission.wait", parent=span):
                await self._admission.enter(num_tokens)
            clock.admitted_at = time.monotonic()
            try:
                async with self._running(validated, clock, span) as generation:
                    yield generation
            finally:
                self._admission.leave(num_tokens)

    def workers_changed(self) -> None:
        """There may be room for more tokens in flight."""
        self._admission.admit_waiting()

    async def drain(self) -> None:
        """Refuses new requests and returns when none is left."""
        self._is_draining = True
        while self._num_open:
            self._emptied.clear()
            await self._emptied.wait()
        await asyncio.gather(*self._legs, return_exceptions=True)

    def hand_over(self) -> None:
        """Ends what still runs or waits: UNAVAILABLE tells clients to ask another gateway."""
        self._admission.refuse_waiting(_draining())
        for generation in tuple(self._generations):
            generation.interrupt(_draining())

    async def _validate(
        self, request: generation_pb2.GenerateRequest, clock: RequestClock
    ) -> ValidatedRequest:
        limits = self.model_limits
        began = time.monotonic()
        with start_span("tokenize") as span:
            validated = await self._text_work.run(
                reading_size(request.prompt),
                lambda: finish_request(request, self._tokenizer, limits),
            )
            span.set({"gen_ai.usage.input_tokens": len(validated.prompt_token_ids)})
        clock.tokenize_seconds = time.monotonic() - began
        return validated

    @asynccontextmanager
    async def _running(
        self, validated: ValidatedRequest, clock: RequestClock, span: Span
    ) -> AsyncIterator[Generation]:
        task = GenerationTask(
            validated.prompt_token_ids,
            validated.sampling,
            self._tokenizer.eos_token_ids,
            clock.deadline,
            span,
        )
        choices = [self._choice(i, validated.sampling) for i in range(validated.sampling.n)]
        generation = Generation(
            task, choices, self._router, self._limits, self._keep, self._memory, self._on_retry
        )
        self._generations.add(generation)
        try:
            generation.start()
            yield generation
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if generation.failure is None or not generation.was_interrupted or current is None:
                raise
            # We cancelled ourselves out of a write to a client that does not read.
            current.uncancel()
            raise generation.failure from None
        finally:
            self._generations.discard(generation)
            generation.close()

    def _choice(self, index: int, sampling: generation_pb2.SamplingParams) -> Choice:
        text = ChoiceText(self._tokenizer, sampling.stop, sampling.min_tokens)
        return Choice(index, text, self._tokenizer.token_text)

    def _keep(self, leg: asyncio.Task[None]) -> None:
        self._legs.add(leg)
        leg.add_done_callback(self._legs.discard)

    @contextmanager
    def _open(self) -> Iterator[None]:
        if self._is_draining:
            raise _draining()
        self._num_open += 1
        try:
            yield
        finally:
            self._num_open -= 1
            if not self._num_open:
                self._emptied.set()


def _draining() -> Unavailable:
    return Unavailable("this gateway is shutting down", reason="DRAINING")


def _most_tokens(validated: ValidatedRequest) -> int:
    """Of prompt and answers together, if none of them ends early."""
    sampling = validated.sampling
    return len(validated.prompt_token_ids) + sampling.n * sampling.max_tokens


def _demand(validated: ValidatedRequest) -> Demand:
    num_tokens = len(validated.prompt_token_ids)
    max_tokens = validated.sampling.max_tokens
    return Demand(num_tokens, num_tokens + max_tokens, hand_off=max_tokens > 1)
