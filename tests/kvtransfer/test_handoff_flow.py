"""The life of a hand-off over a real server, on each transport (protocol 3)."""

import asyncio
import threading

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
    until,
)

SOURCE = [9, 3, 4, 5, 60]
TARGET = [21, 22, 40, 2, 63]
NUM_TOKENS = 4 * BLOCK_SIZE + 2


async def test_a_prompt_is_handed_over_chunk_by_chunk(stage: Stage) -> None:
    token_ids, attempt = prompt(NUM_TOKENS), new_attempt()
    stage.producer.register(attempt, token_ids)
    pull = stage.pull(attempt, token_ids)
    stage.producer.computing(attempt)
    async with asyncio.timeout(WAIT):
        await pull.computing()
        await pull.start(0, TARGET)
        for chunk in chunks_of(token_ids, SOURCE, 2 * BLOCK_SIZE):
            stage.producer.chunk_ready(attempt, chunk)
        stage.producer.complete(attempt, completion_of(token_ids, SOURCE, token_id=42))
        completion = await pull.complete()
        await pull.released()
    assert completion.num_tokens == NUM_TOKENS
    assert [sample.token_id for sample in completion.first_samples] == [42]
    assert torch.equal(stage.decode_pool[TARGET], stage.prefill_pool[SOURCE])
    assert await stage.listener.wait_for_end(attempt) is LeaseEnd.RELEASED
    # Each chunk has its record, in the order in which the reads ended.
    assert sorted(record.num_blocks for record in pull.records) == [1, 2, 2]


async def test_bytes_are_blocks_times_block_size_and_no_other_block_is_written(
    stage: Stage,
) -> None:
    pull = await stage.hand_over(NUM_TOKENS, SOURCE, TARGET)
    block_bytes = stage.decode.block_bytes
    assert stage.decode.num_bytes_read == len(TARGET) * block_bytes
    assert sum(record.num_bytes for record in pull.records) == len(TARGET) * block_bytes
    others = [block for block in range(64) if block not in TARGET]
    assert not stage.decode_pool[others].any()


async def test_blocks_that_decode_has_cached_are_not_read(stage: Stage) -> None:
    await stage.hand_over(NUM_TOKENS, SOURCE, TARGET[3:], cached_tokens=3 * BLOCK_SIZE)
    assert torch.equal(stage.decode_pool[TARGET[3:]], stage.prefill_pool[SOURCE[3:]])
    assert stage.decode.num_bytes_read // stage.decode.block_bytes == 2


async def test_a_prompt_that_decode_has_in_full_is_handed_over_without_a_read(
    stage: Stage,
) -> None:
    await stage.hand_over(2 * BLOCK_SIZE, SOURCE[:2], [], cached_tokens=2 * BLOCK_SIZE)
    assert stage.decode.num_bytes_read == 0


async def test_a_pull_may_come_before_its_prefill(stage: Stage) -> None:
    token_ids, attempt = prompt(NUM_TOKENS), new_attempt()
    pull = stage.pull(attempt, token_ids)
    async with asyncio.timeout(WAIT):
        await until(lambda: "/baton.v1.KvTransferService/Pull" in stage.traffic.calls)
        stage.producer.register(attempt, token_ids)
        stage.producer.computing(attempt)
        await pull.computing()
    pull.cancel()


async def test_a_pull_may_come_after_everything_is_computed(stage: Stage) -> None:
    token_ids, attempt = prompt(NUM_TOKENS), new_attempt()
    stage.producer.register(attempt, token_ids)
    stage.producer.computing(attempt)
    for chunk in chunks_of(token_ids, SOURCE, 3 * BLOCK_SIZE):
        stage.producer.chunk_ready(attempt, chunk)
    stage.producer.complete(attempt, completion_of(token_ids, SOURCE))
    pull = stage.pull(attempt, token_ids)
    async with asyncio.timeout(WAIT):
        await pull.computing()
        await pull.start(0, TARGET)
        await pull.complete()
        await pull.released()
    assert torch.equal(stage.decode_pool[TARGET], stage.prefill_pool[SOURCE])


async def test_the_first_chunk_is_read_while_later_ones_compute(stage: Stage) -> None:
    token_ids, attempt = prompt(NUM_TOKENS), new_attempt()
    pull = await stage.started(attempt, token_ids, TARGET)
    first, second = chunks_of(token_ids, SOURCE, 2 * BLOCK_SIZE)
    stage.producer.chunk_ready(attempt, first)
    async with asyncio.timeout(WAIT):
        await until(lambda: bool(pull.records))
        assert torch.equal(stage.decode_pool[TARGET[:2]], stage.prefill_pool[SOURCE[:2]])
        stage.producer.chunk_ready(attempt, second)
        stage.producer.complete(attempt, completion_of(token_ids, SOURCE))
        await pull.released()


async def test_progress_may_be_reported_from_the_engine_thread(stage: Stage) -> None:
    token_ids, attempt = prompt(NUM_TOKENS), new_attempt()
    pull = stage.pull(attempt, token_ids)
    stage.producer.register(attempt, token_ids)
    may_go_on = threading.Event()

    def engine() -> None:
        stage.producer.computing(attempt)
        may_go_on.wait(WAIT)
        for chunk in chunks_of(token_ids, SOURCE, BLOCK_SIZE):
            stage.producer.chunk_ready(attempt, chunk)
        stage.producer.complete(attempt, completion_of(token_ids, SOURCE))

    thread = threading.Thread(target=engine)
    thread.start()
    async with asyncio.timeout(WAIT):
        await pull.computing()
        await pull.start(0, TARGET)
        may_go_on.set()
        await pull.released()
    thread.join()
    assert torch.equal(stage.decode_pool[TARGET], stage.prefill_pool[SOURCE])


async def test_many_attempts_at_once_keep_their_blocks_apart(stage: Stage) -> None:
    pairs = [([2 * n + 1, 2 * n + 2], [62 - 2 * n, 61 - 2 * n]) for n in range(30)]
    await asyncio.gather(
        *(stage.hand_over(2 * BLOCK_SIZE, source, target) for source, target in pairs)
    )
    for source, target in pairs:
        assert torch.equal(stage.decode_pool[target], stage.prefill_pool[source])
    assert stage.decode.num_bytes_read // stage.decode.block_bytes == 60
    ends = [how for _, how in stage.listener.ends]
    assert ends == [LeaseEnd.RELEASED] * 30


async def test_a_pair_shakes_hands_once(stage: Stage) -> None:
    async with asyncio.timeout(WAIT):
        await asyncio.gather(
            *(stage.consumer.pair(stage.address, stage.prefill_boot_id) for _ in range(5))
        )
        # More than one where the first byte was slow: a worker polls for a while after each.
        shaken = stage.handshakes
        await stage.consumer.pair(stage.address, stage.prefill_boot_id)
        await stage.hand_over(BLOCK_SIZE, [3], [4])
    assert stage.handshakes == shaken
    assert stage.consumer.num_peers == 1


async def test_both_sides_rest_when_the_last_pull_is_over(stage: Stage) -> None:
    await stage.hand_over(NUM_TOKENS, SOURCE, TARGET)
    await until(lambda: not stage.prefill.polling and not stage.decode.polling)


async def test_prefill_polls_only_from_the_first_chunk_on(stage: Stage) -> None:
    token_ids, attempt = prompt(NUM_TOKENS), new_attempt()
    pull = await stage.started(attempt, token_ids, TARGET)
    # The Handshake, which polls for the first byte, is over some time.
    await until(lambda: not stage.prefill.polling)
    first, *rest = chunks_of(token_ids, SOURCE, 2 * BLOCK_SIZE)
    stage.producer.chunk_ready(attempt, first)
    await until(lambda: stage.prefill.polling and len(pull.records) == 1)
    for chunk in rest:
        stage.producer.chunk_ready(attempt, chunk)
    stage.producer.complete(attempt, completion_of(token_ids, SOURCE))
    async with asyncio.timeout(WAIT):
        await pull.released()
    await until(lambda: not stage.prefill.polling)
