"""Requests through a whole gateway, with workers that follow the test's script."""

import asyncio

import grpc.aio

from baton.v1 import decode_pb2, generation_pb2
from gateway.tokenizer import Tokenizer
from tests.gateway.scripted_workers import EOS, LENGTH
from tests.gateway.stage import Stage, read_all, request, token_ids


async def test_both_legs_of_an_attempt_are_sent_at_once(stage: Stage) -> None:
    call = stage.stub.GenerateStream(request())
    prefill, decode = await stage.legs()
    assert prefill.request.attempt_id == decode.submit.attempt_id
    assert len(prefill.request.attempt_id) == 16
    assert prefill.request.hand_off
    assert list(prefill.request.token_ids) == list(decode.submit.token_ids) == [10, 11, 12]
    assert decode.submit.prefill_address == stage.prefill[0].address
    assert decode.submit.prefill_boot_id == prefill.request.boot_id
    assert prefill.request.sampling == decode.submit.sampling
    assert set(prefill.request.eos_token_ids) == set(decode.submit.eos_token_ids) == {0, 2}
    call.cancel()


async def test_tokens_of_both_legs_join_in_index_order(stage: Stage) -> None:
    call = stage.stub.GenerateStream(request(max_tokens=3))
    prefill, decode = await stage.legs()
    prefill.answer(100, cached=2)
    first = await call.read()
    assert token_ids([first]) == [100]
    decode.tokens([101, 102], 1, LENGTH)
    decode.finished(decode_pb2.OUTCOME_COMPLETED)
    prefill.release()
    rest = await read_all(call)
    assert token_ids(rest) == [101, 102]
    usage = rest[-1].summary.usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (3, 2, 3)
    assert dict(await call.initial_metadata())["x-request-id"] == rest[-1].summary.request_id


async def test_decode_may_be_faster_than_the_first_token(stage: Stage) -> None:
    call = stage.stub.GenerateStream(request(max_tokens=3))
    prefill, decode = await stage.legs()
    decode.tokens([101, 102], 1, LENGTH)
    decode.finished(decode_pb2.OUTCOME_COMPLETED)
    prefill.answer(100)
    prefill.release()
    messages = await read_all(call)
    assert token_ids(messages) == [100, 101, 102]


async def test_a_single_token_needs_no_decode_worker(stage: Stage) -> None:
    call = stage.stub.Generate(request(max_tokens=1))
    prefill = await stage.prefill[0].calls.get()
    assert not prefill.request.hand_off
    prefill.answer(100, LENGTH)
    prefill.release()
    answer = await call
    assert list(answer.choices[0].token_ids) == [100]
    assert answer.choices[0].finish.reason == generation_pb2.FINISH_REASON_LENGTH
    assert stage.decode[0].num_calls == 0


async def test_a_request_that_ends_on_its_first_token_cancels_decode(stage: Stage) -> None:
    call = stage.stub.Generate(request())
    prefill, decode = await stage.legs()
    prefill.answer(2, EOS)
    answer = await call
    assert answer.choices[0].finish == EOS
    assert answer.choices[0].text == ""
    assert answer.usage.completion_tokens == 1
    await asyncio.wait_for(decode.cancelled.wait(), 10)


async def test_a_stop_string_ends_the_choice_and_both_legs(
    stage: Stage, tokenizer: Tokenizer
) -> None:
    text = tokenizer.encode("one two three", add_special_tokens=False)
    call = stage.stub.Generate(request(max_tokens=50, stop=["two"]))
    prefill, decode = await stage.legs()
    prefill.answer(text[0])
    decode.tokens(text[1:], 1)
    answer = await call
    choice = answer.choices[0]
    assert choice.text == "one "
    assert choice.finish.reason == generation_pb2.FINISH_REASON_STOP_STRING
    assert choice.finish.stop == "two"
    assert answer.usage.completion_tokens == len(choice.token_ids) < len(text)
    await asyncio.wait_for(decode.cancelled.wait(), 10)
    await asyncio.wait_for(prefill.over.wait(), 10)
    assert prefill.was_cancelled


async def test_choices_end_one_by_one(stage: Stage) -> None:
    call = stage.stub.Generate(request(max_tokens=3, n=2))
    prefill, decode = await stage.legs()
    assert list(prefill.request.choices) == list(decode.submit.choices) == [0, 1]
    prefill.answer(100)
    decode.tokens([2], 1, EOS, choice=0)
    decode.tokens([101, 102], 1, LENGTH, choice=1)
    decode.finished(decode_pb2.OUTCOME_COMPLETED)
    prefill.release()
    answer = await call
    assert [list(choice.token_ids) for choice in answer.choices] == [[100, 2], [100, 101, 102]]
    assert answer.usage.completion_tokens == 5


async def test_a_client_that_leaves_cancels_both_legs(stage: Stage) -> None:
    call = stage.stub.GenerateStream(request())
    prefill, decode = await stage.legs()
    prefill.answer(100)
    await call.read()
    call.cancel()
    await asyncio.wait_for(prefill.over.wait(), 10)
    await asyncio.wait_for(decode.cancelled.wait(), 10)
    assert prefill.was_cancelled


async def test_the_deadline_reaches_both_legs(stage: Stage) -> None:
    # Both legs must have come before it passes.
    call = stage.stub.Generate(request(), timeout=2.0)
    prefill, decode = await stage.legs()
    assert 0 < decode.submit.deadline.ToMilliseconds() <= 2000
    try:
        await call
    except grpc.aio.AioRpcError as error:
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    else:
        raise AssertionError("the deadline did not end the call")
    await asyncio.wait_for(decode.cancelled.wait(), 10)
    await asyncio.wait_for(prefill.over.wait(), 10)


async def test_the_trace_goes_on_in_both_legs(stage: Stage) -> None:
    call = stage.stub.GenerateStream(request())
    prefill, decode = await stage.legs()
    request_id = dict(await call.initial_metadata())["x-request-id"]
    assert request_id in decode.submit.traceparent
    assert request_id in str(stage.prefill[0].metadata["traceparent"])
    assert stage.prefill[0].metadata["x-request-id"] == request_id
    call.cancel()
    await asyncio.wait_for(prefill.over.wait(), 10)


async def test_a_choice_that_stops_here_stops_on_decode_while_others_go_on(
    stage: Stage, tokenizer: Tokenizer
) -> None:
    words = tokenizer.encode("one two three", add_special_tokens=False)
    call = stage.stub.Generate(request(max_tokens=9, n=2, stop=["two"]))
    prefill, decode = await stage.legs()
    prefill.answer(words[0])
    decode.tokens([words[1]], 1, choice=1)
    assert await asyncio.wait_for(decode.cancelled_choices.get(), 10) == 1
    # What was on its way is nobody's, and the other choice has its own end.
    decode.tokens([words[2], words[2]], 2, choice=1)
    decode.tokens([words[2]], 1, LENGTH, choice=0)
    decode.finished(decode_pb2.OUTCOME_COMPLETED)
    prefill.release()
    answer = await call
    assert [list(choice.token_ids) for choice in answer.choices] == [
        [words[0], words[2]],
        [words[0], words[1]],
    ]
    assert decode.cancelled_choices.empty()


async def test_two_requests_of_one_trace_are_two_attempts(stage: Stage) -> None:
    """Whatever a client sends along, it cannot make two requests look like one (protocol 1.2)."""
    sent = (("traceparent", f"00-{'ab' * 16}-{'cd' * 8}-01"), ("x-request-id", "mine"))
    ask = request(max_tokens=2, seed=7)
    calls = [stage.stub.Generate(ask, metadata=sent) for _ in range(2)]
    legs = [await stage.legs(), await stage.legs()]
    ids = {prefill.request.attempt_id for prefill, _ in legs}
    assert ids == {decode.submit.attempt_id for _, decode in legs}
    assert len(ids) == 2
    for number, (prefill, _) in enumerate(legs):
        decode = next(
            each for _, each in legs if each.submit.attempt_id == prefill.request.attempt_id
        )
        prefill.answer(10 + number)
        decode.tokens([20 + number], 1, LENGTH)
        decode.finished(decode_pb2.OUTCOME_COMPLETED)
        prefill.release()
    answers = [list((await call).choices[0].token_ids) for call in calls]
    assert sorted(answers) == [[10, 20], [11, 21]]
