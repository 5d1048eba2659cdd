"""The life of a hand-off over a real server, on each transport."""

import asyncio

import torch

from kvtransfer.lease import LeaseEnd
from tests.kvtransfer.stage import (
    BLOCK_SIZE,
    WAIT,
    Stage,
    chunks_of,
    completion_of,
    new_attempt,
    prompt,
)


async def test_a_prompt_is_handed_over_chunk_by_chunk(stage: Stage) -> None:
    token_ids, attempt = prompt(18), new_attempt()
    source, target = [9, 3, 4, 5, 60], [21, 22, 40, 2, 63]
    stage.producer.register(attempt, token_ids)
    pull = stage.pull(attempt, token_ids)
    stage.producer.computing(attempt)
    async with asyncio.timeout(WAIT):
        await pull.computing()
        await pull.start(0, target)
        await stage.listener.wait_for_start(attempt)
        for chunk in chunks_of(token_ids, source, 8):
            stage.producer.chunk_ready(attempt, chunk)
        stage.producer.complete(attempt, completion_of(token_ids, source, token_id=42))
        completion = await pull.complete()
        await pull.released()
    assert completion.first_samples[0].token_id == 42
    assert completion.num_tokens == 18
    assert torch.equal(stage.decode_pool[target], stage.prefill_pool[source])
    assert await stage.listener.wait_for_end(attempt) is LeaseEnd.RELEASED
    assert [record.num_blocks for record in pull.records] == [2, 2, 1]
    assert stage.decode.counters.num_bytes == 5 * stage.decode.block_bytes
    assert BLOCK_SIZE * 5 >= 18
