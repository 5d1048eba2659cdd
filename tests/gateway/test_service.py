"""The public door: refusals, limits, drain, the small calls."""

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from baton.v1 import decode_pb2, gateway_pb2, generation_pb2
from chassis.errors import (
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    ServiceError,
    Unavailable,
)
from gateway.admission import AdmissionLimits
from gateway.generation import GenerationLimits
from gateway.tokenizer import Tokenizer
from tests.gateway.conftest import OpenStage
from tests.gateway.scripted_workers import (
    LENGTH,
    MODEL,
    OTHER_DTYPE,
    PrefillCall,
    ScriptedDecode,
    SubmitCall,
)
from tests.gateway.stage import Stage, StageOptions, error_of, request, token_ids

text_request = generation_pb2.GenerateRequest(prompt=generation_pb2.Prompt(text="hello"))


def finish(prefill: PrefillCall, decode: SubmitCall) -> None:
    """Answers an attempt with two tokens."""
    prefill.answer(100)
    decode.tokens([101], 1, LENGTH)
    decode.finished(decode_pb2.OUTCOME_COMPLETED)
    prefill.release()


@pytest.mark.parametrize(
    ("bad", "kind", "reason", "field"),
    [
        pytest.param(
            generation_pb2.GenerateRequest(model="gpt"),
            NotFound,
            "MODEL_UNKNOWN",
            "model",
            id="model",
        ),
        pytest.param(
            generation_pb2.GenerateRequest(),
            InvalidArgument,
            "PROMPT_MISSING",
            "prompt",
            id="prompt",
        ),
        pytest.param(
            request(temperature=float("nan")),
            InvalidArgument,
            "VALUE_NOT_FINITE",
            "sampling.temperature",
            id="nan",
        ),
        pytest.param(
            request(max_tokens=9000),
            InvalidArgument,
            "CONTEXT_EXCEEDED",
            "sampling.max_tokens",
            id="context",
        ),
    ],
)
async def test_a_bad_request_costs_no_worker_time(
    stage: Stage,
    bad: generation_pb2.GenerateRequest,
    kind: type[ServiceError],
    reason: str,
    field: str,
) -> None:
    error = await error_of(stage.stub.Generate(bad))
    assert isinstance(error, kind)
    assert error.reason == reason
    assert [violation.field for violation in error.violations] == [field]
    assert stage.prefill[0].num_calls == stage.decode[0].num_calls == 0


async def test_without_workers_a_request_is_refused_at_once(stage: Stage) -> None:
    assert stage.decode[0].server is not None
    stage.decode[0].server.set_ready(False)
    await stage.pool.wait_until(lambda: not stage.router.has_pair())
    error = await error_of(stage.stub.Generate(request()))
    assert isinstance(error, Unavailable)
    assert error.reason == "NO_DECODE_WORKER"


async def test_workers_of_two_dtypes_are_no_pair_and_both_are_named(open_stage: OpenStage) -> None:
    stage = await open_stage(StageOptions(decode=[ScriptedDecode(name="d", **OTHER_DTYPE)]))
    error = await error_of(stage.stub.Generate(request(max_tokens=2)))
    assert isinstance(error, Unavailable)
    assert error.reason == "NO_COMPATIBLE_WORKERS"
    assert "PrefillService has dtype float32, d has dtype bfloat16" in error.message


async def test_a_full_queue_answers_with_a_retry_delay(open_stage: OpenStage) -> None:
    stage = await open_stage(StageOptions(admission=AdmissionLimits(1, 1, 30.0)))
    running = stage.stub.Generate(request(max_tokens=2))
    legs = await stage.legs()
    queued = stage.stub.Generate(request(max_tokens=2))
    await stage.until_waiting(1)
    error = await error_of(stage.stub.Generate(request()))
    assert isinstance(error, ResourceExhausted)
    assert (error.reason, error.retry_after is not None) == ("QUEUE_FULL", True)
    counted = {"code": "RESOURCE_EXHAUSTED", "reason": "QUEUE_FULL"}
    assert stage.metric("baton_requests_total", **counted) == 1
    # The other methods need no place.
    assert (await stage.stub.ListModels(gateway_pb2.ListModelsRequest())).models
    finish(*legs)
    await running
    finish(*await stage.legs())
    answer = await queued
    assert answer.timings.admission.ToMicroseconds() > 0


async def test_a_client_that_leaves_the_queue_frees_its_place(open_stage: OpenStage) -> None:
    stage = await open_stage(StageOptions(admission=AdmissionLimits(1, 4, 30.0)))
    running = stage.stub.Generate(request(max_tokens=2))
    legs = await stage.legs()
    leaving = stage.stub.Generate(request(max_tokens=2))
    await stage.until_waiting(1)
    leaving.cancel()
    await stage.until_waiting(0)
    finish(*legs)
    await running
    assert stage.prefill[0].num_calls == 1


async def test_a_request_without_a_deadline_gets_one(open_stage: OpenStage) -> None:
    # Both legs must have come before it passes.
    stage = await open_stage(StageOptions(max_request_seconds=2.0))
    call = stage.stub.Generate(request())
    _prefill, decode = await stage.legs()
    assert decode.submit.deadline.ToMilliseconds() <= 2000
    error = await error_of(call)
    assert isinstance(error, DeadlineExceeded)
    await asyncio.wait_for(decode.cancelled.wait(), 10)


async def test_a_client_that_does_not_read_is_cancelled(open_stage: OpenStage) -> None:
    stage = await open_stage(StageOptions(limits=GenerationLimits(1, 64)))
    call = stage.stub.GenerateStream(request(max_tokens=8000))
    prefill, decode = await stage.legs()
    prefill.answer(100)
    # Large enough to fill, soon, what gRPC itself buffers for a reader that does not come.
    tops = [generation_pb2.Logprob(token_id=i) for i in range(20_000)]
    large = generation_pb2.TokenLogprobs(chosen=tops[0], top=tops)
    index = 1
    while not decode.cancelled.is_set():
        decode.tokens([100], index, logprobs=large)
        index += 1
        await asyncio.sleep(0)
    # The gateway is done with the request although nobody has read a word yet.
    await asyncio.wait_for(stage.orchestrator.drain(), 10)
    error = await error_of(drain(call))
    assert isinstance(error, ResourceExhausted)
    assert error.reason == "CLIENT_TOO_SLOW"


async def drain(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_a_drain_finishes_what_runs_and_refuses_the_rest(stage: Stage) -> None:
    running = stage.stub.Generate(request(max_tokens=2))
    legs = await stage.legs()
    draining = asyncio.create_task(stage.orchestrator.drain())
    error = await error_of(stage.stub.Generate(request()))
    assert isinstance(error, Unavailable)
    assert error.reason == "DRAINING"
    assert not draining.done()
    finish(*legs)
    assert list((await running).choices[0].token_ids) == [100, 101]
    await asyncio.wait_for(draining, 10)


async def test_tokenize_and_detokenize_are_each_others_inverse(
    stage: Stage, tokenizer: Tokenizer
) -> None:
    prompt = generation_pb2.Prompt(text="Grüße, 42 km!")
    tokens = await stage.stub.Tokenize(gateway_pb2.TokenizeRequest(prompt=prompt))
    assert list(tokens.token_ids) == tokenizer.encode("Grüße, 42 km!")
    assert len(tokens.tokens) == len(tokens.token_ids)
    back = await stage.stub.Detokenize(
        gateway_pb2.DetokenizeRequest(token_ids=tokens.token_ids, skip_special_tokens=True)
    )
    assert back.text == "Grüße, 42 km!"


async def test_the_model_is_listed_with_its_workers(stage: Stage, tokenizer: Tokenizer) -> None:
    models = (await stage.stub.ListModels(gateway_pb2.ListModelsRequest())).models
    assert [
        (
            m.name,
            m.max_context_tokens,
            m.vocabulary_size,
            m.chat,
            m.prefill_workers,
            m.decode_workers,
        )
        for m in models
    ] == [(MODEL.name, 8192, tokenizer.vocab_size, True, 1, 1)]


async def test_times_and_outcomes_are_measured(stage: Stage) -> None:
    call = stage.stub.GenerateStream(request(max_tokens=2))
    finish(*await stage.legs())
    messages = [message async for message in call]
    assert token_ids(messages) == [100, 101]
    timings = messages[-1].summary.timings
    assert 0 < timings.time_to_first_token.ToNanoseconds() <= timings.total.ToNanoseconds()
    model = {"gen_ai_request_model": MODEL.name}
    for name in ("time_to_first_token", "time_per_output_token", "request_duration"):
        assert stage.metric(f"gen_ai_server_{name}_seconds_count", **model) == 1
    assert stage.metric("baton_requests_total", code="OK", reason="") == 1
    assert stage.metric("baton_requests_running") == 0


async def test_an_answer_too_large_to_be_sent_names_the_limit(
    stage: Stage, tokenizer: Tokenizer
) -> None:
    # Only what is no text alone keeps the name that the worker gave it.
    ids = tokenizer.encode("🦜", add_special_tokens=False)
    half = next(token_id for token_id in ids if "\ufffd" in tokenizer.token_text(token_id))
    logprob = generation_pb2.Logprob(token_id=half, text="x" * 9_000_000)
    call = stage.stub.Generate(request(max_tokens=3))
    prefill, decode = await stage.legs()
    prefill.answer(100)
    for index, finish in ((1, None), (2, LENGTH)):
        large = generation_pb2.TokenLogprobs(chosen=logprob)
        decode.tokens([101], index, finish, logprobs=large)
    decode.finished(decode_pb2.OUTCOME_COMPLETED)
    prefill.release()
    error = await error_of(call)
    assert (type(error), error.reason) == (ResourceExhausted, "MESSAGE_TOO_LARGE")
    assert error.metadata["limit_bytes"] in error.message
    assert stage.metric(
        "baton_requests_total", code="RESOURCE_EXHAUSTED", reason="MESSAGE_TOO_LARGE"
    )
