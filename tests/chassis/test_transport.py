"""What the settings of connections do: silence, frozen peers, readers that do not read, sizes."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from baton.v1.gateway_pb2 import ChoiceDelta, GenerateResponse, GenerateStreamResponse
from baton.v1.generation_pb2 import GenerateRequest
from chassis.channel import INNER, MESSAGE_LIMIT, PUBLIC, WINDOW
from tests.chassis.conftest import Serve

SILENT_CLIENT = Path(__file__).with_name("silent_client.py")
# Longer than any time-out of any profile, and than what gRPC core takes for idle by itself.
SILENCE_SECONDS = 660.0
STALL_SECONDS = 2.0


async def test_a_writer_is_held_up_by_a_reader_that_does_not_read(serve: Serve) -> None:
    """Otherwise a slow client's answer would pile up unseen; no test of speed: only of room."""
    message = GenerateStreamResponse(deltas=[ChoiceDelta(text="x" * 50_000)])
    written = 0
    was_held_up = asyncio.Event()

    async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
        nonlocal written
        while True:
            watch = asyncio.get_running_loop().call_later(STALL_SECONDS, was_held_up.set)
            yield message
            watch.cancel()
            written += message.ByteSize()

    async with serve(stream=stream) as served:
        call = served.stub.GenerateStream(GenerateRequest())
        await call.read()
        await asyncio.wait_for(was_held_up.wait(), 60)
        # The stream's window, and what either end takes in before it looks at the window.
        assert written < 3 * WINDOW
        call.cancel()


async def test_a_frozen_caller_loses_its_call_and_what_it_holds(serve: Serve) -> None:
    begun, given_up = asyncio.Event(), asyncio.Event()

    async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            yield GenerateStreamResponse()
            begun.set()
            await asyncio.Event().wait()
        finally:
            given_up.set()

    async with serve(stream=stream, profile=INNER) as served:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(SILENT_CLIENT), served.address
        )
        try:
            await asyncio.wait_for(begun.wait(), 60)
            os.kill(process.pid, signal.SIGSTOP)
            # Without the ping time-out this takes a minute.
            await asyncio.wait_for(given_up.wait(), 30)
        finally:
            process.kill()
            await process.wait()


async def test_an_answer_above_the_limit_is_refused_and_the_limit_named(serve: Serve) -> None:
    async def generate(request: Any, context: Any) -> Any:
        return GenerateResponse(model="x" * (MESSAGE_LIMIT + 1))

    async with serve(generate) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.stub.Generate(GenerateRequest())
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(MESSAGE_LIMIT) in str(caught.value.details())


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(2 * SILENCE_SECONDS)
async def test_calls_survive_minutes_of_silence(serve: Serve) -> None:
    speak = asyncio.Event()

    async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
        yield GenerateStreamResponse()
        await speak.wait()
        yield GenerateStreamResponse()

    async with AsyncExitStack() as stack:
        calls = []
        for profile in (PUBLIC, INNER):
            served = await stack.enter_async_context(serve(stream=stream, profile=profile))
            calls.append(served.stub.GenerateStream(GenerateRequest()))
            await calls[-1].read()
        await asyncio.sleep(SILENCE_SECONDS)
        speak.set()
        for call in calls:
            assert await call.read() == GenerateStreamResponse()
            assert await call.code() is grpc.StatusCode.OK
