"""Blocks that are not what was computed are noticed (protocol 4.3)."""

import asyncio
from dataclasses import replace

import pytest
import torch

from kvtransfer.checksums import block_checksums, head_checksums
from kvtransfer.errors import PullFailed
from kvtransfer.handoff import Chunk
from tests.kvtransfer.scripted_prefill import (
    COMPUTING,
    DONE,
    START,
    STAY,
    ScriptedPrefill,
    chunk,
    complete,
    released,
)
from tests.kvtransfer.stage import BLOCK_SIZE, WAIT, Stage, Traffic, new_attempt, prompt, serve

TOKENS = prompt(2 * BLOCK_SIZE)
SOURCE, TARGET = [5, 6], [7, 8]


async def pull_with(stage: Stage, checksums: tuple[int, ...]) -> None:
    """A hand-off whose only chunk has these checksums. Raises PullFailed."""
    message = chunk(0, len(TOKENS), *SOURCE)
    message.chunk_ready.checksums.extend(checksums)
    script = (COMPUTING, START, message, complete(len(TOKENS)), DONE, released(alive=True), STAY)
    scripted = ScriptedPrefill(stage.prefill_boot_id, stage.prefill, script)
    await stage.server.stop(None)
    stage.server, stage.address = await serve(scripted, Traffic())
    pull = stage.pull(new_attempt(), TOKENS)
    async with asyncio.timeout(WAIT):
        await pull.computing()
        await pull.start(0, TARGET)
        await pull.released()


async def test_blocks_with_their_own_checksums_are_taken(stage: Stage) -> None:
    await pull_with(stage, stage.prefill.checksums(SOURCE))
    assert torch.equal(stage.decode_pool[TARGET], stage.prefill_pool[SOURCE])


async def test_other_blocks_end_the_pull_and_are_free_at_once(stage: Stage) -> None:
    right = stage.prefill.checksums(SOURCE)
    # One bit changes between the computation and the read.
    stage.prefill_pool.view(-1).view(torch.int32)[-1 + 7 * stage.prefill_pool[0].numel()] ^= 1
    with pytest.raises(PullFailed) as caught:
        await pull_with(stage, right)
    assert caught.value.reason == "BLOCKS_CORRUPT"
    caught.value.fence.lifted.result(WAIT)


async def test_some_blocks_without_a_checksum_break_the_protocol(stage: Stage) -> None:
    with pytest.raises(PullFailed) as caught:
        await pull_with(stage, stage.prefill.checksums(SOURCE[:1]))
    assert caught.value.reason == "PROTOCOL"


def test_checksums_stay_with_their_blocks() -> None:
    whole = Chunk(0, 3 * BLOCK_SIZE, (5, 6, 9), (50, 60, 90))
    assert Chunk.from_pb(whole.to_pb()) == whole
    assert whole.without_cached(2 * BLOCK_SIZE, BLOCK_SIZE) == Chunk(
        2 * BLOCK_SIZE, BLOCK_SIZE, (9,), (90,)
    )
    bare = replace(whole, checksums=())
    assert bare.without_cached(BLOCK_SIZE, BLOCK_SIZE) == Chunk(BLOCK_SIZE, 2 * BLOCK_SIZE, (6, 9))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_byte_of_a_block_counts(dtype: torch.dtype) -> None:
    pool = torch.randn(3, 2, 4).to(dtype)
    before = head_checksums(pool, [1, 2])
    assert head_checksums(pool.clone(), [1, 2]) == before
    pool[2, 1, 3] += 1
    after = head_checksums(pool, [1, 2])
    assert after[0] == before[0]
    assert [a == b for a, b in zip(after[1], before[1], strict=True)] == [True, False]


@pytest.mark.parametrize("num_ranks", [2, 3, 6])
def test_the_checksum_of_a_block_is_the_same_however_its_heads_are_divided(num_ranks: int) -> None:
    pool = torch.randn(3, 6, 4)
    whole = block_checksums([head_checksums(pool, [2, 1])])
    shares = [share.contiguous() for share in pool.chunk(num_ranks, dim=1)]
    assert block_checksums([head_checksums(share, [2, 1]) for share in shares]) == whole
    shares[-1][2, -1, -1] += 1
    changed = block_checksums([head_checksums(share, [2, 1]) for share in shares])
    assert (changed[0] == whole[0], changed[1] == whole[1]) == (False, True)
