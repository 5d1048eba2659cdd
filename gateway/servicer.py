"""Serves GenerationService: decodes, calls the orchestrator, encodes."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeAlias

import grpc.aio

from baton.v1 import gateway_pb2, gateway_pb2_grpc, generation_pb2
from chassis.door_interceptor import Door
from chassis.errors import DeadlineExceeded, NotFound, ServiceError, Violation
from chassis.message_size import check_answer
from chassis.reasons import Reason
from chassis.status import status_code
from chassis.telemetry import current_span
from gateway.answer import Answer
from gateway.generation import Generation
from gateway.memory import HeldMemory
from gateway.metrics import GatewayMetrics
from gateway.orchestrator import Orchestrator
from gateway.prompt import check_prompt, check_token_ids, encode_prompt, reading_size
from gateway.request_clock import RequestClock
from gateway.router import Router
from gateway.text_work import TextWork
from gateway.tokenizer import Tokenizer

GENERATING = frozenset(
    f"/baton.v1.GenerationService/{method}" for method in ("Generate", "GenerateStream")
)

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class GenerationServicer(gateway_pb2_grpc.GenerationServiceServicer):
    """The public door. Errors are ServiceErrors, which the server turns into statuses.

    Served behind chassis.server, whose interceptors give each call its span and request id.
    """

    def __init__(
        self,
        model: str,
        tokenizer: Tokenizer,
        text_work: TextWork,
        router: Router,
        orchestrator: Orchestrator,
        memory: HeldMemory,
        metrics: GatewayMetrics,
        max_request_seconds: float,
    ) -> None:
        """``model`` is the only name that requests may use."""
        self._model = model
        self._tokenizer = tokenizer
        self._text_work = text_work
        self._router = router
        self._orchestrator = orchestrator
        self._memory = memory
        self._metrics = metrics
        self._max_request_seconds = max_request_seconds

    @property
    def door(self) -> Door:
        """What turns away generations while the queue is full."""
        return Door(GENERATING, self._check_room)

    async def Generate(
        self, request: generation_pb2.GenerateRequest, context: _Context
    ) -> gateway_pb2.GenerateResponse:
        async with self._generating(request, context) as (generation, clock):
            answer = Answer(len(generation.choices))
            while deltas := await generation.next_deltas():
                answer.add(deltas)
            summary = self._summary(generation, clock)
            response = gateway_pb2.GenerateResponse(
                request_id=summary.request_id,
                model=summary.model,
                choices=answer.choices,
                usage=summary.usage,
                timings=summary.timings,
            )
            check_answer(response)
            return response

    # A writer and not a generator, as the stub has it: the task that is cancelled out of a stuck
    # write must be the one that holds the generation.
    async def GenerateStream(  # type: ignore[override]
        self, request: generation_pb2.GenerateRequest, context: _Context
    ) -> None:
        async with self._generating(request, context) as (generation, clock):
            while deltas := await generation.next_deltas():
                await context.write(gateway_pb2.GenerateStreamResponse(deltas=deltas))
            summary = self._summary(generation, clock)
            await context.write(gateway_pb2.GenerateStreamResponse(summary=summary))

    async def Tokenize(
        self, request: gateway_pb2.TokenizeRequest, context: _Context
    ) -> gateway_pb2.TokenizeResponse:
        self._check_model(request.model)
        limits = self._orchestrator.model_limits
        check_prompt(request.prompt, limits)

        def tokenize() -> gateway_pb2.TokenizeResponse:
            ids = encode_prompt(request.prompt, self._tokenizer, limits)
            texts = [self._tokenizer.token_text(token_id) for token_id in ids]
            response = gateway_pb2.TokenizeResponse(token_ids=ids, tokens=texts)
            check_answer(response)
            return response

        with self._memory.request(request.ByteSize(), limits.max_context_tokens):
            return await self._text_work.run(reading_size(request.prompt), tokenize)

    async def Detokenize(
        self, request: gateway_pb2.DetokenizeRequest, context: _Context
    ) -> gateway_pb2.DetokenizeResponse:
        self._check_model(request.model)
        limits = self._orchestrator.model_limits

        def detokenize() -> gateway_pb2.DetokenizeResponse:
            check_token_ids(request.token_ids, "token_ids", limits)
            text = self._tokenizer.decode(request.token_ids, request.skip_special_tokens)
            response = gateway_pb2.DetokenizeResponse(text=text)
            check_answer(response)
            return response

        with self._memory.request(request.ByteSize(), limits.max_context_tokens):
            return await self._text_work.run(len(request.token_ids), detokenize)

    async def ListModels(
        self, request: gateway_pb2.ListModelsRequest, context: _Context
    ) -> gateway_pb2.ListModelsResponse:
        limits = self._orchestrator.model_limits
        prefill, decode = self._router.num_ready()
        model = gateway_pb2.Model(
            name=self._model,
            max_context_tokens=limits.max_context_tokens,
            vocabulary_size=limits.vocab_size,
            chat=self._tokenizer.chat_template is not None,
            prefill_workers=prefill,
            decode_workers=decode,
        )
        return gateway_pb2.ListModelsResponse(models=[model])

    @asynccontextmanager
    async def _generating(
        self, request: generation_pb2.GenerateRequest, context: _Context
    ) -> AsyncIterator[tuple[Generation, RequestClock]]:
        """The request's generation; whatever way it ends, it is counted and described."""
        span = current_span()
        assert span is not None, "calls are served behind the tracing interceptor"
        seconds = context.time_remaining()
        clock = RequestClock(
            time.monotonic() + (self._max_request_seconds if seconds is None else seconds)
        )
        span.set(_request_attributes(request, self._model))
        with self._counted(clock):
            if clock.has_expired:
                raise DeadlineExceeded("the deadline had passed", reason="DEADLINE_EXCEEDED")
            self._check_model(request.model)
            async with self._orchestrator.generate(request, clock, span) as generation:
                try:
                    yield generation, clock
                finally:
                    self._metrics.generated(generation, clock.arrived_at)
                    span.set(_usage_attributes(generation))

    def _check_room(self) -> None:
        try:
            self._orchestrator.check_room()
        except ServiceError as error:
            self._metrics.refused(status_code(error).name, error.reason)
            raise

    @contextmanager
    def _counted(self, clock: RequestClock) -> Iterator[None]:
        code, reason = "OK", ""
        self._metrics.began()
        try:
            yield
        except ServiceError as error:
            code, reason = status_code(error).name, error.reason
            raise
        except asyncio.CancelledError:
            code = reason = "DEADLINE_EXCEEDED" if clock.has_expired else "CANCELLED"
            raise
        except BaseException:
            code = reason = "INTERNAL"
            raise
        finally:
            self._metrics.ended(code, reason, clock.elapsed)

    def _check_model(self, name: str) -> None:
        if name and name != self._model:
            text = f"no model {name!r}; this gateway serves {self._model!r}"
            raise NotFound(text, reason=Reason.MODEL_UNKNOWN, violations=[Violation("model", text)])

    def _summary(self, generation: Generation, clock: RequestClock) -> gateway_pb2.GenerateSummary:
        return gateway_pb2.GenerateSummary(
            request_id=generation.request_id,
            model=self._model,
            usage=generation_pb2.Usage(
                prompt_tokens=generation.num_prompt_tokens,
                cached_tokens=generation.cached_tokens,
                completion_tokens=generation.num_tokens,
            ),
            timings=clock.to_pb(generation),
        )


def _request_attributes(
    request: generation_pb2.GenerateRequest, model: str
) -> dict[str, str | int | float]:
    attributes: dict[str, str | int | float] = {
        "gen_ai.operation.name": "chat" if request.prompt.HasField("chat") else "text_completion",
        "gen_ai.provider.name": "baton",
        "gen_ai.request.model": request.model or model,
    }
    sampling = request.sampling
    for name in ("temperature", "top_p", "top_k", "max_tokens", "seed"):
        if sampling.HasField(name):
            attributes[f"gen_ai.request.{name}"] = getattr(sampling, name)
    if sampling.HasField("n"):
        attributes["gen_ai.request.choice.count"] = sampling.n
    return attributes


def _usage_attributes(generation: Generation) -> dict[str, str | int | list[str]]:
    reasons = [
        generation_pb2.FinishReason.Name(choice.finish.reason).removeprefix("FINISH_REASON_")
        for choice in generation.choices
        if choice.finish is not None
    ]
    return {
        "baton.request.id": generation.request_id,
        "gen_ai.usage.input_tokens": generation.num_prompt_tokens,
        "gen_ai.usage.output_tokens": generation.num_tokens,
        "gen_ai.usage.cache_read.input_tokens": generation.cached_tokens,
        "gen_ai.response.finish_reasons": reasons,
    }
