"""A request outlives the workers it runs on (protocol 5.3 to 5.5)."""

import asyncio

from baton.v1 import decode_pb2
from chassis.errors import Internal, Unavailable
from gateway.circuit import Circuit
from tests.gateway.conftest import OpenStage
from tests.gateway.scripted_workers import LENGTH, ScriptedDecode, ScriptedPrefill, SubmitCall
from tests.gateway.stage import Stage, StageOptions, error_of, read_all, request, token_ids
from tests.gateway.test_draining import prefer_first

STEP_FAILED = Internal("the engine failed to compute a step", reason="STEP_FAILED")


def finish(decode: SubmitCall, tokens: list[int], first_index: int) -> None:
    decode.tokens(tokens, first_index, LENGTH)
    decode.finished(decode_pb2.OUTCOME_COMPLETED)


async def test_a_stream_goes_on_when_its_decode_worker_is_lost(open_stage: OpenStage) -> None:
    stage = await open_stage(StageOptions(decode=[ScriptedDecode(), ScriptedDecode()]))
    await prefer_first(stage)
    call = stage.stub.GenerateStream(request(max_tokens=5))
    prefill = await stage.prefill[0].calls.get()
    decode = await stage.decode[0].calls.get()
    prefill.answer(100, cached=2)
    prefill.release()
    decode.tokens([101], 1)
    messages = [await call.read()]
    while len(token_ids(messages)) < 2:
        messages.append(await call.read())
    stage.decode[0].hang_up.set()
    again = await stage.prefill[0].calls.get()
    decode = await stage.decode[1].calls.get()
    assert list(again.request.token_ids) == [10, 11, 12, 100, 101]
    assert again.request.num_prompt_tokens == 3
    assert again.request.sampling.seed == prefill.request.sampling.seed
    again.answer(102)
    finish(decode, [103, 104], 3)
    again.release()
    messages += await read_all(call)
    assert token_ids(messages) == [100, 101, 102, 103, 104]
    usage = messages[-1].summary.usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (3, 2, 5)
    assert stage.metric("baton_retries_total", reason="DECODE_WORKER_LOST") == 1


async def test_a_lost_prefill_worker_costs_a_new_attempt_elsewhere(open_stage: OpenStage) -> None:
    stage = await open_stage(StageOptions(prefill=[ScriptedPrefill(), ScriptedPrefill()]))
    await prefer_first(stage)
    call = stage.stub.Generate(request(max_tokens=2))
    first = await stage.prefill[0].calls.get()
    decode = await stage.decode[0].calls.get()
    assert stage.prefill[0].server is not None
    await stage.prefill[0].server.stop()
    await asyncio.wait_for(decode.cancelled.wait(), 10)
    prefill = await stage.prefill[1].calls.get()
    decode = await stage.decode[0].calls.get()
    assert prefill.request.attempt_id != first.request.attempt_id
    prefill.answer(100)
    finish(decode, [101], 1)
    assert list((await call).choices[0].token_ids) == [100, 101]


async def test_the_last_decode_worker_to_be_lost_ends_the_request_at_once_with_the_reason(
    stage: Stage,
) -> None:
    call = stage.stub.Generate(request())
    prefill, _decode = await stage.legs()
    assert stage.decode[0].server is not None
    await stage.decode[0].server.stop()
    error = await error_of(call)
    assert isinstance(error, Unavailable)
    assert error.reason == "NO_DECODE_WORKER"
    await asyncio.wait_for(prefill.over.wait(), 10)


async def test_where_no_prefill_worker_is_left_decode_computes_the_prompt(stage: Stage) -> None:
    call = stage.stub.Generate(request(max_tokens=2))
    await stage.legs()
    assert stage.prefill[0].server is not None
    await stage.prefill[0].server.stop()
    decode = await stage.decode[0].calls.get()
    # The call may break before the gateway has heard, on another stream, that the worker is gone.
    while decode.submit.prefill_address:
        decode = await stage.decode[0].calls.get()
    assert decode.submit.prefill_boot_id == b""
    decode.tokens([100], 0)
    decode.tokens([101], 1, LENGTH)
    decode.finished(decode_pb2.OUTCOME_COMPLETED, prompt=decode_pb2.OwnPrompt(cached_tokens=1))
    answer = await call
    assert list(answer.choices[0].token_ids) == [100, 101]
    assert answer.usage.cached_tokens == 1


async def test_a_step_that_failed_is_tried_again_but_not_for_ever(stage: Stage) -> None:
    call = stage.stub.Generate(request())
    for _ in range(4):
        prefill, _decode = await stage.legs()
        prefill.fail(STEP_FAILED)
    assert (await error_of(call)).reason == "ATTEMPTS_EXHAUSTED"


async def test_a_worker_that_keeps_failing_is_left_alone_until_a_probe_goes_well(
    open_stage: OpenStage,
) -> None:
    stage = await open_stage(StageOptions(prefill=[ScriptedPrefill(), ScriptedPrefill()]))
    await prefer_first(stage)
    now = 0.0
    failing = stage.pool.prefill_workers[0]
    failing.circuit = Circuit(lambda: now)
    for _ in range(5):
        now += 0.1
        call = stage.stub.Generate(request(max_tokens=1))
        (await stage.prefill[0].calls.get()).fail(STEP_FAILED)
        (await stage.prefill[1].calls.get()).answer(100, LENGTH)
        await call
    call = stage.stub.Generate(request(max_tokens=1))
    (await stage.prefill[1].calls.get()).answer(100, LENGTH)
    await call
    assert "keeps failing" in str(failing.problem)
    now += failing.circuit.seconds_to_probe
    async with asyncio.timeout(10):
        await stage.pool.wait_until(lambda: stage.router.num_ready() == (2, 1))
    probe = stage.stub.Generate(request(max_tokens=1))
    (await stage.prefill[0].calls.get()).answer(100, LENGTH)
    await probe
    assert failing.problem is None


async def test_what_an_address_that_fails_may_cause_is_bounded(stage: Stage) -> None:
    budget = stage.pool.prefill_workers[0].retry_budget
    while budget.take():
        pass
    call = stage.stub.Generate(request())
    prefill, _decode = await stage.legs()
    prefill.fail(STEP_FAILED)
    error = await error_of(call)
    assert isinstance(error, Unavailable)
    assert error.reason == "RETRY_BUDGET_EXHAUSTED"
