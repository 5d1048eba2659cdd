"""What the gateway does when an attempt cannot be finished."""

import asyncio
from functools import partial

import grpc
import grpc.aio
import pytest

from baton.v1 import decode_pb2
from chassis.errors import (
    Aborted,
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
    ServiceError,
)
from gateway.generation import GenerationLimits
from gateway.verdict import Verdict
from tests.gateway.conftest import OpenStage
from tests.gateway.scripted_workers import EOS, FULL, LENGTH, ScriptedDecode, ScriptedPrefill
from tests.gateway.stage import Stage, StageOptions, error_of, read_all, request, token_ids

REVOKED = Aborted("the blocks were needed", reason="LEASE_REVOKED")


async def test_a_preempted_request_continues_from_its_committed_tokens(stage: Stage) -> None:
    call = stage.stub.GenerateStream(request(max_tokens=5))
    prefill, decode = await stage.legs()
    prefill.answer(100, cached=2)
    prefill.release()
    decode.tokens([101], 1)
    decode.finished(decode_pb2.OUTCOME_PREEMPTED, unfinished_choices=[0])
    again, decode_again = await stage.legs()
    assert list(again.request.token_ids) == [10, 11, 12, 100, 101]
    assert list(decode_again.submit.token_ids) == [10, 11, 12, 100, 101]
    assert again.request.num_prompt_tokens == 3
    assert again.request.sampling == prefill.request.sampling
    assert again.request.attempt_id != prefill.request.attempt_id
    assert decode_again.submit.handle != decode.submit.handle
    again.answer(102, cached=5)
    decode_again.tokens([103, 104], 3, LENGTH)
    decode_again.finished(decode_pb2.OUTCOME_COMPLETED)
    again.release()
    messages = await read_all(call)
    assert token_ids(messages) == [100, 101, 102, 103, 104]
    usage = messages[-1].summary.usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (3, 2, 5)


async def test_each_unfinished_choice_continues_alone(stage: Stage) -> None:
    call = stage.stub.Generate(request(max_tokens=3, n=3))
    prefill, decode = await stage.legs()
    prefill.answer(100)
    decode.tokens([101, 102], 1, LENGTH, choice=0)
    decode.tokens([201], 1, choice=1)
    decode.finished(decode_pb2.OUTCOME_PREEMPTED, unfinished_choices=[1, 2])
    # Two calls, in no order.
    calls = [await stage.prefill[0].calls.get() for _ in range(2)]
    alone, again = sorted(calls, key=lambda call: list(call.request.choices))
    decode_again = await stage.decode[0].calls.get()
    assert (list(alone.request.choices), alone.request.hand_off) == ([1], False)
    assert list(alone.request.token_ids) == [10, 11, 12, 100, 201]
    alone.answer(202, LENGTH)
    assert list(again.request.choices) == list(decode_again.submit.choices) == [2]
    assert list(again.request.token_ids) == [10, 11, 12, 100]
    again.answer(301)
    decode_again.tokens([302], 2, LENGTH)
    decode_again.finished(decode_pb2.OUTCOME_COMPLETED)
    answer = await call
    assert [list(choice.token_ids) for choice in answer.choices] == [
        [100, 101, 102],
        [100, 201, 202],
        [100, 301, 302],
    ]


async def test_another_checkpoint_of_the_same_name_does_not_go_on(open_stage: OpenStage) -> None:
    other = {"layout_digest": b"other", "checkpoint_digest": b"other"}
    prefill, decode = ScriptedPrefill(), ScriptedDecode()
    stage = await open_stage(
        StageOptions([prefill, ScriptedPrefill(**other)], [decode, ScriptedDecode(**other)])
    )
    stage.prefill[1].report(pending_tokens=10_000)
    busy = stage.pool.prefill_workers[1]
    async with asyncio.timeout(10):
        await stage.pool.wait_until(lambda: busy.pending_tokens == 10_000)
    call = stage.stub.Generate(request(max_tokens=5))
    first, second = await stage.legs()
    prefill.load.accepting = False
    prefill.report()
    async with asyncio.timeout(10):
        await stage.pool.wait_until(lambda: stage.router.num_ready() == (1, 2))
    first.answer(100)
    second.tokens([101], 1)
    second.finished(decode_pb2.OUTCOME_PREEMPTED, unfinished_choices=[0])
    error = await error_of(call)
    assert error.reason == "NO_COMPATIBLE_WORKERS"
    assert "checkpoint" in error.message
    assert stage.prefill[1].num_calls == 0


async def test_a_revoked_lease_cancels_decode_and_starts_over(stage: Stage) -> None:
    call = stage.stub.Generate(request(max_tokens=2))
    prefill, decode = await stage.legs()
    prefill.fail(REVOKED)
    await asyncio.wait_for(decode.cancelled.wait(), 10)
    again, decode_again = await stage.legs()
    again.answer(100)
    decode_again.tokens([101], 1, LENGTH)
    decode_again.finished(decode_pb2.OUTCOME_COMPLETED)
    assert list((await call).choices[0].token_ids) == [100, 101]


async def test_a_failed_pull_cancels_prefill_and_continues(stage: Stage) -> None:
    call = stage.stub.GenerateStream(request(max_tokens=3))
    prefill, decode = await stage.legs()
    prefill.answer(100)
    # The legs are two streams: only what has reached the client is sure to be committed.
    first = await call.read()
    # A token that never became the next one belongs to the failed attempt: it is not used.
    decode.tokens([999], 2)
    failure = decode_pb2.Failure(code=grpc.StatusCode.ABORTED.value[0], reason="HANDOFF_TIMEOUT")
    decode.finished(decode_pb2.OUTCOME_FAILED, failure=failure)
    await asyncio.wait_for(prefill.over.wait(), 10)
    assert prefill.was_cancelled
    again, decode_again = await stage.legs()
    assert list(again.request.token_ids) == [10, 11, 12, 100]
    again.answer(101)
    decode_again.tokens([102], 2, LENGTH)
    decode_again.finished(decode_pb2.OUTCOME_COMPLETED)
    assert token_ids([first, *await read_all(call)]) == [100, 101, 102]


async def test_what_prefill_refuses_reaches_the_client_with_its_reason(stage: Stage) -> None:
    call = stage.stub.Generate(request())
    prefill, decode = await stage.legs()
    prefill.fail(FailedPrecondition("not here", reason="LAYOUT_MISMATCH"))
    error = await error_of(call)
    assert isinstance(error, FailedPrecondition)
    assert error.reason == "LAYOUT_MISMATCH"
    await asyncio.wait_for(decode.cancelled.wait(), 10)
    assert stage.metric(
        "baton_requests_total", code="FAILED_PRECONDITION", reason="LAYOUT_MISMATCH"
    )


UNKNOWN = decode_pb2.Failure(
    code=grpc.StatusCode.NOT_FOUND.value[0], reason="ATTEMPT_UNKNOWN", message="not here"
)


async def until_heard(stage: Stage) -> None:
    """Returns when the gateway has read all that its decode worker has sent so far."""
    call = stage.stub.GenerateStream(request(token_ids=(20, 21)))
    prefill, decode = await stage.legs()
    prefill.answer(100)
    decode.tokens([101], 1)
    seen: list[int] = []
    while 101 not in seen:
        seen += token_ids([await call.read()])
    call.cancel()


@pytest.fixture
def patient_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for the other leg's word for as long as a slow machine takes to say it."""
    monkeypatch.setattr("gateway.attempt.Verdict", partial(Verdict, echo_seconds=60.0))


@pytest.mark.usefixtures("patient_verdict")
@pytest.mark.parametrize(
    "why",
    [
        InvalidArgument("bad", reason="TOKEN_ID_UNKNOWN"),
        ResourceExhausted("full", reason="QUEUE_FULL", retry_after=2.0),
    ],
    ids=lambda why: why.reason,
)
async def test_prefills_own_word_counts_where_decode_only_saw_it_end(
    stage: Stage, why: ServiceError
) -> None:
    call = stage.stub.Generate(request())
    prefill, decode = await stage.legs()
    decode.finished(decode_pb2.OUTCOME_FAILED, failure=UNKNOWN)
    await until_heard(stage)
    prefill.fail(why)
    error = await error_of(call)
    assert (type(error), error.reason) == (type(why), why.reason)


@pytest.mark.usefixtures("patient_verdict")
async def test_an_answer_that_prefill_ends_alone_needs_no_decode(stage: Stage) -> None:
    call = stage.stub.Generate(request())
    prefill, decode = await stage.legs()
    decode.finished(decode_pb2.OUTCOME_FAILED, failure=UNKNOWN)
    await until_heard(stage)
    prefill.answer(2, EOS)
    assert list((await call).choices[0].token_ids) == [2]


async def test_a_hand_off_that_fails_between_living_workers_is_tried_again(stage: Stage) -> None:
    call = stage.stub.Generate(request(max_tokens=2))
    prefill, decode = await stage.legs()
    decode.finished(decode_pb2.OUTCOME_FAILED, failure=UNKNOWN)
    await asyncio.wait_for(prefill.over.wait(), 10)
    assert prefill.was_cancelled
    again, decode_again = await stage.legs()
    again.answer(100)
    decode_again.tokens([101], 1, LENGTH)
    decode_again.finished(decode_pb2.OUTCOME_COMPLETED)
    assert list((await call).choices[0].token_ids) == [100, 101]


async def test_a_full_worker_is_reported_with_its_retry_delay(stage: Stage) -> None:
    call = stage.stub.Generate(request())
    prefill, decode = await stage.legs()
    decode.reject(FULL)
    error = await error_of(call)
    assert isinstance(error, ResourceExhausted)
    assert (error.reason, error.retry_after) == ("QUEUE_FULL", 2.0)
    await asyncio.wait_for(prefill.over.wait(), 10)


async def test_where_one_worker_is_full_the_other_one_is_asked(open_stage: OpenStage) -> None:
    stage = await open_stage(StageOptions(decode=[ScriptedDecode(), ScriptedDecode()]))
    stage.decode[1].report(running=50)
    await stage.pool.wait_until(lambda: stage.pool.decode_workers[1].requests == 50)
    call = stage.stub.Generate(request(max_tokens=2))
    await stage.prefill[0].calls.get()
    (await stage.decode[0].calls.get()).reject(FULL)
    decode = await stage.decode[1].calls.get()
    prefill = await stage.prefill[0].calls.get()
    prefill.answer(100)
    decode.tokens([101], 1, LENGTH)
    decode.finished(decode_pb2.OUTCOME_COMPLETED)
    assert list((await call).choices[0].token_ids) == [100, 101]


async def test_tokens_for_a_choice_that_was_not_asked_for_end_the_request(stage: Stage) -> None:
    call = stage.stub.Generate(request())
    _prefill, decode = await stage.legs()
    decode.tokens([5], 1, choice=7)
    error = await error_of(call)
    assert error.reason == "PROTOCOL_VIOLATION"


async def test_a_malformed_step_breaks_the_session_and_it_opens_again(
    open_stage: OpenStage,
) -> None:
    stage = await open_stage(StageOptions(limits=GenerationLimits(1, 4096)))
    call = stage.stub.Generate(request())
    _prefill, decode = await stage.legs()
    decode.send(decode_pb2.SessionResponse(step=decode_pb2.StepOutputs(handles=[1], choices=[])))
    assert (await error_of(call)).reason == "ATTEMPTS_EXHAUSTED"
    async with asyncio.timeout(10):
        await stage.pool.wait_until(stage.router.has_pair)
    assert stage.decode[0].num_sessions == 2


async def test_a_bug_in_a_later_attempt_ends_the_request(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = stage.stub.Generate(request())
    prefill, _decode = await stage.legs()

    def choose(demand: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(stage.router, "choose", choose)
    prefill.fail(REVOKED)
    assert (await error_of(call)).reason == "INTERNAL"
