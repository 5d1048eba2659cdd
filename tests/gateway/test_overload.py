"""The limits of what a gateway takes, met through the public door."""

import asyncio

import pytest

from baton.v1 import gateway_pb2, generation_pb2
from chassis.errors import ResourceExhausted
from gateway.admission import AdmissionLimits
from gateway.generation import GenerationLimits
from gateway.memory import TOKEN_BYTES
from tests.gateway.conftest import OpenStage
from tests.gateway.stage import StageOptions, error_of, read_all, request
from tests.gateway.test_service import finish

WORDS = generation_pb2.Prompt(text="word " * 200)


async def test_tokens_in_flight_are_bounded_and_shown(open_stage: OpenStage) -> None:
    stage = await open_stage(
        StageOptions(admission=AdmissionLimits(256, 1, 30.0, max_tokens=lambda: 100))
    )
    running = stage.stub.Generate(request(max_tokens=60))
    legs = await stage.legs()
    assert stage.metric("baton_tokens_in_flight") == 63
    assert stage.metric("baton_tokens_in_flight_limit") == 100
    waiting = stage.stub.Generate(request(max_tokens=10, n=4))
    await stage.until_waiting(1)
    assert stage.metric("baton_queue_waiting", queue="admission") == 1
    # It would fit, and is not to overtake.
    error = await error_of(stage.stub.Generate(request(max_tokens=1)))
    assert (type(error), error.reason) == (ResourceExhausted, "QUEUE_FULL")
    assert error.retry_after is not None and error.retry_after > 0
    finish(*legs)
    await running
    await stage.legs()
    assert stage.metric("baton_tokens_in_flight") == 43
    waiting.cancel()


async def test_a_request_of_more_tokens_than_may_be_in_flight_runs_alone(
    open_stage: OpenStage,
) -> None:
    stage = await open_stage(
        StageOptions(admission=AdmissionLimits(256, 0, 30.0, max_tokens=lambda: 10))
    )
    running = stage.stub.Generate(request(max_tokens=50))
    legs = await stage.legs()
    assert (await error_of(stage.stub.Generate(request(max_tokens=1)))).reason == "QUEUE_FULL"
    finish(*legs)
    await running


@pytest.mark.parametrize("method", ["Generate", "Tokenize"])
async def test_requests_are_bounded_by_the_memory_that_they_take(
    open_stage: OpenStage, method: str
) -> None:
    stage = await open_stage(StageOptions(max_held_bytes=70_000))
    running = stage.stub.Generate(
        generation_pb2.GenerateRequest(
            prompt=WORDS, sampling=generation_pb2.SamplingParams(max_tokens=2)
        )
    )
    legs = await stage.legs()
    held = stage.metric("baton_held_bytes")
    # The text, and the tokens that it may come to.
    assert 41 * 1000 < held < 42 * 1100
    asked: generation_pb2.GenerateRequest | gateway_pb2.TokenizeRequest
    asked = gateway_pb2.TokenizeRequest(prompt=WORDS)
    if method == "Generate":
        asked = generation_pb2.GenerateRequest(prompt=WORDS)
    error = await error_of(getattr(stage.stub, method)(asked))
    assert (type(error), error.reason) == (ResourceExhausted, "MEMORY_FULL")
    assert error.retry_after is not None and error.retry_after > 0
    assert stage.prefill[0].num_calls == 1
    finish(*legs)
    await running
    assert stage.metric("baton_held_bytes") == 0


async def test_output_that_waits_for_its_client_takes_memory(open_stage: OpenStage) -> None:
    stage = await open_stage(StageOptions(limits=GenerationLimits(1, 1_000_000)))
    call = stage.stub.GenerateStream(request(max_tokens=8000))
    prefill, decode = await stage.legs()
    prefill.answer(100)
    before = stage.metric("baton_held_bytes")
    # Together more than gRPC itself buffers for a reader that does not come.
    tops = [generation_pb2.Logprob(token_id=i) for i in range(20_000)]
    large = generation_pb2.TokenLogprobs(chosen=tops[0], top=tops)
    for index in range(1, 41):
        decode.tokens([100], index, logprobs=large)
    index = 41
    while stage.metric("baton_held_bytes") < before + 5_000 * TOKEN_BYTES:
        decode.tokens([100] * 1_000, index)
        index += 1_000
        await asyncio.sleep(0.01)
    call.cancel()
    await asyncio.wait_for(decode.cancelled.wait(), 10)
    await asyncio.wait_for(stage.orchestrator.drain(), 10)
    assert stage.metric("baton_held_bytes") == 0


async def test_log_probabilities_count_as_tokens_that_a_client_leaves_unread(
    open_stage: OpenStage,
) -> None:
    stage = await open_stage(StageOptions(limits=GenerationLimits(1, 16)))
    call = stage.stub.GenerateStream(request(max_tokens=100, logprobs=20))
    prefill, _decode = await stage.legs()
    prefill.answer(100)
    error = await error_of(read_all(call))
    assert (type(error), error.reason) == (ResourceExhausted, "CLIENT_TOO_SLOW")
