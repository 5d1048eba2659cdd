"""Draining workers, and a gateway that drains: no request is lost while another can take it."""

import asyncio

import grpc

from baton.v1 import decode_pb2
from chassis.errors import Unavailable
from gateway.admission import AdmissionLimits
from gateway.generation import GenerationLimits
from tests.gateway.conftest import OpenStage
from tests.gateway.scripted_workers import LENGTH, ScriptedDecode, ScriptedPrefill
from tests.gateway.stage import Stage, StageOptions, error_of, read_all, request, token_ids

DRAINING = Unavailable("this worker takes no new prompts", reason="WORKER_DRAINING")
DRAINING_PB = decode_pb2.Failure(
    code=grpc.StatusCode.UNAVAILABLE.value[0], reason="WORKER_DRAINING", message="it is draining"
)
ONE_TRY = GenerationLimits(1, 4096)


async def prefer_first(stage: Stage) -> None:
    """Makes the second worker of each role look busy."""
    for worker in (*stage.prefill[1:], *stage.decode[1:]):
        worker.report(running=50, pending_tokens=100_000)
    workers = (*stage.pool.prefill_workers[1:], *stage.pool.decode_workers[1:])
    await stage.pool.wait_until(lambda: all(worker.requests == 50 for worker in workers))


async def test_what_a_draining_prefill_worker_refuses_goes_elsewhere_and_counts_for_nothing(
    open_stage: OpenStage,
) -> None:
    stage = await open_stage(
        StageOptions(prefill=[ScriptedPrefill(), ScriptedPrefill()], limits=ONE_TRY)
    )
    await prefer_first(stage)
    call = stage.stub.Generate(request(max_tokens=2))
    (await stage.prefill[0].calls.get()).fail(DRAINING)
    await stage.decode[0].calls.get()
    prefill = await stage.prefill[1].calls.get()
    decode = await stage.decode[0].calls.get()
    prefill.answer(100)
    decode.tokens([101], 1, LENGTH)
    decode.finished(decode_pb2.OUTCOME_COMPLETED)
    assert list((await call).choices[0].token_ids) == [100, 101]


async def test_what_a_draining_decode_worker_hands_over_is_continued_and_counts_for_nothing(
    open_stage: OpenStage,
) -> None:
    stage = await open_stage(
        StageOptions(decode=[ScriptedDecode(), ScriptedDecode()], limits=ONE_TRY)
    )
    await prefer_first(stage)
    call = stage.stub.GenerateStream(request(max_tokens=4))
    prefill = await stage.prefill[0].calls.get()
    decode = await stage.decode[0].calls.get()
    prefill.answer(100)
    # The legs are two streams: only what has reached the client is sure to be committed.
    first = await call.read()
    prefill.release()
    decode.tokens([101], 1)
    decode.finished(decode_pb2.OUTCOME_FAILED, failure=DRAINING_PB)
    prefill = await stage.prefill[0].calls.get()
    decode = await stage.decode[1].calls.get()
    assert list(decode.submit.token_ids) == [10, 11, 12, 100, 101]
    prefill.answer(102)
    decode.tokens([103], 3, LENGTH)
    decode.finished(decode_pb2.OUTCOME_COMPLETED)
    prefill.release()
    assert token_ids([first, *await read_all(call)]) == [100, 101, 102, 103]


async def test_where_no_other_worker_is_left_the_client_hears_that_it_drained(
    stage: Stage,
) -> None:
    call = stage.stub.Generate(request(max_tokens=4))
    prefill, decode = await stage.legs()
    prefill.answer(100)
    decode.tokens([101], 1)
    # An update merges into the load, and false is no value to merge.
    stage.decode[0].load.accepting = False
    stage.decode[0].report()
    await stage.pool.wait_until(lambda: not stage.router.has_pair())
    decode.finished(decode_pb2.OUTCOME_FAILED, failure=DRAINING_PB)
    error = await error_of(call)
    assert isinstance(error, Unavailable)
    assert error.reason == "WORKER_DRAINING"
    assert "no decode worker is ready" in error.message


async def test_a_worker_that_says_for_ever_that_it_drains_is_not_asked_for_ever(
    open_stage: OpenStage,
) -> None:
    stage = await open_stage(StageOptions(limits=GenerationLimits(2, 4096)))
    call = stage.stub.Generate(request(max_tokens=4))
    for _ in range(3):
        prefill, _decode = await stage.legs()
        prefill.fail(DRAINING)
    assert (await error_of(call)).reason == "ATTEMPTS_EXHAUSTED"


async def test_when_its_grace_is_over_a_gateway_ends_what_runs_and_waits_with_the_reason(
    open_stage: OpenStage,
) -> None:
    stage = await open_stage(StageOptions(admission=AdmissionLimits(1, 8, 30.0)))
    running = stage.stub.GenerateStream(request(max_tokens=8))
    prefill, decode = await stage.legs()
    prefill.answer(100)
    await running.read()
    waiting = stage.stub.Generate(request())
    await stage.until_waiting(1)
    draining = asyncio.create_task(stage.orchestrator.drain())
    stage.orchestrator.hand_over()
    for error in (await error_of(read_all(running)), await error_of(waiting)):
        assert isinstance(error, Unavailable)
        assert error.reason == "DRAINING"
    await asyncio.wait_for(draining, 10)
    await asyncio.wait_for(decode.cancelled.wait(), 10)
    assert stage.prefill[0].num_calls == 1
