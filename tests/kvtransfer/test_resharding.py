"""Workers whose KV heads are divided among other numbers of ranks hand over (protocol 2.4, 4.3)."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from chassis.errors import InvalidArgument
from kvtransfer.errors import PullFailed
from kvtransfer.handoff import Chunk
from kvtransfer.lease import LeaseEnd
from kvtransfer.transfer_thread import TransferThread
from kvtransfer.transport.local import LocalFabric, LocalTransport
from tests.kvtransfer.scripted_prefill import ScriptedPrefill
from tests.kvtransfer.stage import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    WAIT,
    Stage,
    Traffic,
    completion_of,
    new_attempt,
    new_pool,
    prompt,
    serve,
)

SOURCE, TARGET = (5, 6, 9), [7, 8, 3]
TOKENS = prompt(3 * BLOCK_SIZE)


@dataclass(frozen=True, slots=True)
class Divided:
    """A stage, and the pools of the ranks on both sides."""

    stage: Stage
    prefill: list[torch.Tensor]
    decode: list[torch.Tensor]

    async def hand_over(self, checksums: tuple[int, ...], num_cached: int = 0) -> LeaseEnd:
        """The blocks SOURCE, of which decode has so many already. Raises PullFailed."""
        producer, attempt = self.stage.producer, new_attempt()
        async with asyncio.timeout(WAIT):
            pull = await self.stage.started(
                attempt, TOKENS, TARGET[num_cached:], cached_tokens=num_cached * BLOCK_SIZE
            )
            producer.chunk_ready(attempt, Chunk(0, len(TOKENS), SOURCE, checksums))
            producer.complete(attempt, completion_of(TOKENS, list(SOURCE)))
            await pull.released()
        return await self.stage.listener.wait_for_end(attempt)


@pytest.fixture(params=[(1, 2), (2, 1), (2, 2)], ids=["1 to 2", "2 to 1", "2 to 2"])
async def divided(request: pytest.FixtureRequest, fabric: LocalFabric) -> AsyncIterator[Divided]:
    torch.manual_seed(0)
    whole = new_pool(NUM_BLOCKS, filled=True), new_pool(NUM_BLOCKS)
    pools = [
        [share.contiguous() for share in pool.chunk(num_ranks, dim=1)]
        for pool, num_ranks in zip(whole, request.param, strict=True)
    ]
    sides = []
    for role, ranks in zip(("prefill", "decode"), pools, strict=True):
        named = [LocalTransport(pool, f"{role}-{n}", fabric) for n, pool in enumerate(ranks)]
        sides.append(TransferThread(named))
        sides[-1].start()
    stage = Stage(*sides, fabric=fabric)
    await stage.open()
    yield Divided(stage, *pools)
    await stage.close()
    for side in sides:
        side.stop()


async def test_every_head_arrives_and_its_checksum_agrees(divided: Divided) -> None:
    checksums = divided.stage.prefill.checksums(SOURCE)
    assert await divided.hand_over(checksums) is LeaseEnd.RELEASED
    expected = new_pool(NUM_BLOCKS)
    expected[TARGET] = torch.cat(divided.prefill, dim=1)[list(SOURCE)]
    assert torch.equal(torch.cat(divided.decode, dim=1), expected)
    assert divided.stage.decode.checksums(TARGET) == checksums


async def test_a_head_that_is_another_one_on_its_arrival_is_noticed(divided: Divided) -> None:
    checksums = divided.stage.prefill.checksums(SOURCE)
    divided.prefill[-1][SOURCE[-1], -1, 0, 0, 0, 0] += 1
    with pytest.raises(PullFailed) as caught:
        await divided.hand_over(checksums)
    assert caught.value.reason == "BLOCKS_CORRUPT"


@pytest.mark.parametrize("num_cached", [2, 3], ids=["all but the tail", "all"])
async def test_only_what_decode_lacks_is_read(divided: Divided, num_cached: int) -> None:
    checksums = divided.stage.prefill.checksums(SOURCE)
    assert await divided.hand_over(checksums, num_cached) is LeaseEnd.RELEASED
    decode = divided.stage.decode
    assert decode.num_bytes_read == (3 - num_cached) * decode.block_bytes
    expected = new_pool(NUM_BLOCKS)
    expected[TARGET[num_cached:]] = torch.cat(divided.prefill, dim=1)[list(SOURCE[num_cached:])]
    assert torch.equal(torch.cat(divided.decode, dim=1), expected)


class SaysTooFewHeads(ScriptedPrefill):
    async def Handshake(self, request: Any, context: Any) -> Any:
        response = await super().Handshake(request, context)
        response.ranks[0].num_heads -= 1
        return response


async def test_a_prefill_worker_whose_ranks_lack_a_head_is_not_read(local_stage: Stage) -> None:
    liar = SaysTooFewHeads(local_stage.prefill_boot_id, local_stage.prefill, ())
    server, address = await serve(liar, Traffic())
    pull = local_stage.consumer.open(new_attempt(), address, liar.boot_id, TOKENS)
    with pytest.raises(PullFailed, match=r"ranks with KV heads 0\.\.0 do not divide 2"):
        await pull.released()
    await server.stop(None)


async def test_a_decode_worker_whose_ranks_lack_a_head_is_refused(
    local_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtransfer.handshake.own_ranks", lambda layout, transfers: [])
    with pytest.raises(InvalidArgument, match="do not divide 2"):
        await local_stage.consumer.pair(local_stage.address, local_stage.prefill_boot_id)
