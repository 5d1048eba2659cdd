"""Long texts: off the event loop, in turn, within bounds."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest

from baton.v1 import gateway_pb2, generation_pb2
from chassis.errors import InvalidArgument, ResourceExhausted
from gateway.admission import AdmissionLimits
from gateway.text_work import MAX_SIZE_AT_ONCE, TextWork
from tests.gateway.conftest import OpenStage
from tests.gateway.stage import StageOptions, error_of, request

LONG = MAX_SIZE_AT_ONCE + 1


@asynccontextmanager
async def occupied(work: TextWork) -> AsyncIterator[None]:
    """The only thread is busy for as long as this is entered."""
    begun, may_end = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def occupy() -> None:
        loop.call_soon_threadsafe(begun.set)
        may_end.wait()

    occupier = asyncio.create_task(work.run(LONG, occupy))
    await begun.wait()
    try:
        yield
    finally:
        may_end.set()
        await occupier


def one_thread(
    max_waiting: int = 8, on_change: Callable[[int], None] = lambda waiting: None
) -> TextWork:
    return TextWork(max_waiting, 30.0, num_threads=1, on_change=on_change)


async def test_short_work_never_waits() -> None:
    work = one_thread()
    async with occupied(work):
        assert await work.run(MAX_SIZE_AT_ONCE, lambda: "done") == "done"


async def test_long_work_runs_in_another_thread_and_in_turn() -> None:
    work = one_thread()
    order: list[int] = []

    def read(number: int) -> int:
        order.append(number)
        return threading.get_ident()

    async with occupied(work):
        waiting = [asyncio.create_task(work.run(LONG, partial(read, i))) for i in range(3)]
        await asyncio.sleep(0)
        assert order == []
    assert threading.get_ident() not in await asyncio.gather(*waiting)
    assert order == [0, 1, 2]


async def test_what_goes_wrong_in_a_thread_reaches_the_caller() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await one_thread().run(LONG, fail)


async def test_more_than_may_wait_is_refused_with_a_retry_delay() -> None:
    work = one_thread(max_waiting=1)
    async with occupied(work):
        waiting = asyncio.create_task(work.run(LONG, lambda: "read"))
        await asyncio.sleep(0)
        with pytest.raises(ResourceExhausted) as caught:
            await work.run(LONG, lambda: "refused")
    assert (caught.value.reason, caught.value.retry_after is not None) == ("QUEUE_FULL", True)
    assert await waiting == "read"


async def test_texts_that_wait_are_counted() -> None:
    told: list[int] = []
    work = one_thread(on_change=told.append)
    async with occupied(work):
        waiting = asyncio.create_task(work.run(LONG, lambda: "read"))
        await asyncio.sleep(0)
        assert told[-1] == 1
    assert await waiting == "read"
    assert told[-1] == 0


async def test_a_caller_that_leaves_gives_its_turn_back_when_its_thread_is_done() -> None:
    work = one_thread()
    began, may_end = threading.Event(), threading.Event()

    def read() -> None:
        began.set()
        may_end.wait()

    leaving = asyncio.create_task(work.run(LONG, read))
    await asyncio.to_thread(began.wait)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    following = asyncio.create_task(work.run(LONG, may_end.is_set))
    await asyncio.sleep(0)
    may_end.set()
    assert await following is True


def text(words: str) -> generation_pb2.Prompt:
    return generation_pb2.Prompt(text=words)


def chat(num_turns: int) -> generation_pb2.Prompt:
    turn = generation_pb2.ChatMessage(role=generation_pb2.CHAT_ROLE_USER, content="a")
    return generation_pb2.Prompt(chat=generation_pb2.Chat(messages=[turn] * num_turns))


LONG_PROMPTS = [
    pytest.param(lambda: text("word " * 1000), id="text"),
    pytest.param(lambda: chat(500), id="conversation"),
]


@pytest.mark.parametrize("prompt", LONG_PROMPTS)
async def test_a_long_prompt_is_read_in_a_thread(
    open_stage: OpenStage, prompt: Callable[[], generation_pb2.Prompt]
) -> None:
    work = one_thread(max_waiting=0)
    stage = await open_stage(StageOptions(text_work=work))
    tokenize = gateway_pb2.TokenizeRequest(prompt=prompt())
    generate = generation_pb2.GenerateRequest(prompt=prompt())
    async with occupied(work):
        for refused in (stage.stub.Tokenize(tokenize), stage.stub.Generate(generate)):
            error = await error_of(refused)
            assert (error.reason, error.retry_after is not None) == ("QUEUE_FULL", True)
    assert len((await stage.stub.Tokenize(tokenize)).token_ids) > 500


async def test_a_full_queue_refuses_a_long_prompt_unread(open_stage: OpenStage) -> None:
    work = one_thread()
    options = StageOptions(admission=AdmissionLimits(1, 0, 30.0), text_work=work)
    stage = await open_stage(options)
    running = stage.stub.Generate(request())
    await stage.legs()
    async with occupied(work):
        error = await error_of(
            stage.stub.Generate(generation_pb2.GenerateRequest(prompt=text("word " * 1000)))
        )
        assert (type(error), error.reason) == (ResourceExhausted, "QUEUE_FULL")
    running.cancel()


async def test_a_message_too_large_for_the_model_is_refused_undecoded(
    open_stage: OpenStage,
) -> None:
    stage = await open_stage(StageOptions())
    # Decoding a million turns takes a good part of a second.
    many = generation_pb2.GenerateRequest(prompt=chat(1_000_000))
    error = await error_of(stage.stub.Generate(many))
    assert (type(error), error.reason) == (InvalidArgument, "PROMPT_TOO_LARGE")
    assert [violation.field for violation in error.violations] == ["prompt.chat"]

    bias = dict.fromkeys(range(60000), 1.0)
    sampling = generation_pb2.SamplingParams(logit_bias=bias)
    error = await error_of(
        stage.stub.Generate(generation_pb2.GenerateRequest(prompt=text("x"), sampling=sampling))
    )
    assert (type(error), error.reason) == (ResourceExhausted, "MESSAGE_TOO_LARGE")


async def test_the_largest_request_that_could_be_served_is_decoded(open_stage: OpenStage) -> None:
    stage = await open_stage(StageOptions())
    size = stage.orchestrator.model_limits.max_prompt_bytes
    sampling = generation_pb2.SamplingParams(
        logit_bias=dict.fromkeys(range(48_000, 49_024), -100.0),
        stop=["x" * 256] * 16,
        stop_token_ids=range(49_000, 49_064),
        max_tokens=1,
    )
    words = ("xy " * size)[:size]
    error = await error_of(
        stage.stub.Generate(generation_pb2.GenerateRequest(prompt=text(words), sampling=sampling))
    )
    # It was read: what does not fit is only known once it is tokens.
    assert error.reason == "CONTEXT_EXCEEDED"
