"""A pull fails with the reason of whoever ended it, at whatever moment that is."""

import asyncio
from typing import Any

import pytest

from kvtransfer.errors import PullFailed
from kvtransfer.pull import Pull
from tests.kvtransfer.stage import (
    BLOCK_SIZE,
    WAIT,
    Stage,
    chunks_of,
    new_attempt,
    prompt,
)

TOKENS = prompt(2 * BLOCK_SIZE)
SOURCE, TARGET = [5, 6], [7, 8]


async def reason_of(pull: Pull) -> str:
    with pytest.raises(PullFailed) as caught:
        async with asyncio.timeout(WAIT):
            await pull.released()
    caught.value.fence.lifted.result(WAIT)
    return caught.value.reason


async def test_a_message_for_a_call_that_is_just_over_hides_no_reason(
    local_stage: Stage,
) -> None:
    """Prefill ends the call; Start goes out before the end has been read from it."""
    attempt = new_attempt()
    local_stage.producer.register(attempt, TOKENS)
    local_stage.producer.computing(attempt)
    pull = local_stage.pull(attempt, TOKENS)
    await pull.computing()
    written = asyncio.get_running_loop().create_future()

    def start(_: Any) -> None:
        # Runs as far as it can at once: the call is over, and nobody has been told yet.
        with pytest.raises(StopIteration):
            pull.start(0, TARGET).send(None)
        written.set_result(None)

    pull._call.add_done_callback(start)
    await local_stage.server.stop(None)
    async with asyncio.timeout(WAIT):
        await written
    assert await reason_of(pull) == "UNAVAILABLE"


async def test_a_bug_while_a_read_is_noted_ends_the_pull(
    local_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("kvtransfer.chunk_reader.ChunkRecord", broken)
    attempt = new_attempt()
    pull = await local_stage.started(attempt, TOKENS, TARGET)
    local_stage.producer.chunk_ready(attempt, chunks_of(TOKENS, SOURCE, BLOCK_SIZE)[0])
    assert await reason_of(pull) == "INTERNAL"
