"""KV bytes never travel in messages, and messages are few (protocol 2.5)."""

from tests.kvtransfer.stage import BLOCK_SIZE, NUM_BLOCKS, Stage


async def test_pull_messages_total_under_a_kibibyte_a_block(stage: Stage) -> None:
    ids = list(range(1, NUM_BLOCKS))
    await stage.hand_over(len(ids) * BLOCK_SIZE - 1, ids, ids[::-1])
    assert 0 < stage.traffic.num_bytes < 1024 * len(ids)
    # With 16-token blocks of a real model the share is far smaller still.
    assert stage.traffic.num_bytes < stage.decode.num_bytes_read / 50


async def test_a_prompt_of_one_token_stays_under_a_kibibyte(stage: Stage) -> None:
    await stage.hand_over(1, [5], [6])
    assert 0 < stage.traffic.num_bytes < 1024
