"""Which workers pair, and what happens when one goes away (protocol 1.1, 2.4, 4.8)."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from chassis.errors import FailedPrecondition, NotFound, ServiceError, Unavailable
from kvtransfer.errors import PeerUnknown, PullFailed
from kvtransfer.handshake import answer_handshake, peer_name
from kvtransfer.lease import LeaseEnd
from kvtransfer.producer import HandoffTimeouts
from kvtransfer.pull import Pull, PullTimeouts
from kvtransfer.transfer_thread import TransferThread
from kvtransfer.transport.local import LocalFabric, LocalTransport
from tests.kvtransfer.scripted_prefill import ScriptedPrefill
from tests.kvtransfer.stage import (
    BLOCK_SIZE,
    LAYOUT,
    NUM_BLOCKS,
    WAIT,
    Stage,
    Traffic,
    chunks_of,
    completion_of,
    new_attempt,
    new_pool,
    prompt,
    serve,
    until,
)

TOKENS = prompt(2 * BLOCK_SIZE)
SOURCE, TARGET = [5, 6], [7, 8]


async def failure_of(pull: Pull) -> PullFailed:
    with pytest.raises(PullFailed) as caught:
        async with asyncio.timeout(WAIT):
            await pull.released()
    return caught.value


async def test_another_dtype_is_refused_at_pairing_with_both_named(local_stage: Stage) -> None:
    # Of as many bytes: nothing else would notice.
    local_stage.layout = replace(LAYOUT, dtype="bfloat16", head_dim=2 * LAYOUT.head_dim)
    consumer = local_stage.new_consumer()
    with pytest.raises(FailedPrecondition) as caught:
        await consumer.pair(local_stage.address, local_stage.prefill_boot_id)
    assert caught.value.reason == "LAYOUT_MISMATCH"
    assert "dtype: decode has 'bfloat16', prefill has 'float32'" in caught.value.message
    await consumer.close()


async def test_another_layout_is_refused_at_pairing_with_field_and_both_values(
    local_stage: Stage,
) -> None:
    local_stage.layout = replace(LAYOUT, model_digest="another")
    consumer = local_stage.new_consumer()
    with pytest.raises(FailedPrecondition) as caught:
        await consumer.pair(local_stage.address, local_stage.prefill_boot_id)
    assert caught.value.reason == "LAYOUT_MISMATCH"
    assert "model_digest: decode has 'another', prefill has 'm'" in caught.value.message
    await consumer.close()


async def test_an_attempt_between_other_layouts_fails_with_the_reason(local_stage: Stage) -> None:
    local_stage.layout = replace(LAYOUT, model_digest="another")
    consumer = local_stage.new_consumer()
    pull = consumer.open(new_attempt(), local_stage.address, local_stage.prefill_boot_id, TOKENS)
    failed = await failure_of(pull)
    assert failed.reason == "LAYOUT_MISMATCH"
    await consumer.close()


async def test_another_incarnation_is_refused(local_stage: Stage) -> None:
    pull = local_stage.consumer.open(new_attempt(), local_stage.address, os.urandom(16), TOKENS)
    failed = await failure_of(pull)
    assert isinstance(failed.error, FailedPrecondition)
    assert failed.reason == "BOOT_ID_STALE"


async def test_a_worker_that_is_not_there_is_unavailable(local_stage: Stage) -> None:
    await local_stage.server.stop(None)
    failed = await failure_of(local_stage.pull(new_attempt(), TOKENS))
    assert isinstance(failed.error, Unavailable)


class LateToPoll(ScriptedPrefill):
    """Its machine is so busy that it has stopped polling when decode begins to."""

    num_handshakes = 0

    async def Handshake(self, request: Any, context: Any) -> Any:
        self.num_handshakes += 1
        if self.num_handshakes == 1:
            return answer_handshake(request, LAYOUT, self.transfers, boot_id=self.boot_id)
        return await super().Handshake(request, context)


async def test_a_worker_is_asked_to_poll_until_the_first_byte_has_moved(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtransfer.prefill_peer.NUDGE_SECONDS", 0.02)
    late = LateToPoll(os.urandom(16), stage.prefill, ())
    server, address = await serve(late, Traffic())
    await stage.consumer.pair(address, late.boot_id)
    assert stage.consumer.num_peers == 1
    await server.stop(None)


async def test_a_failed_pairing_is_tried_anew(local_stage: Stage) -> None:
    await local_stage.server.stop(None)
    with pytest.raises(ServiceError):
        await local_stage.consumer.pair(local_stage.address, local_stage.prefill_boot_id)
    await local_stage.restart()
    await local_stage.hand_over(2 * BLOCK_SIZE, SOURCE, TARGET)


async def test_an_attempt_that_prefill_never_gets_is_unknown(local_stage: Stage) -> None:
    """Protocol 3.2: the Pull waits for the hand-off time, and leaves a tombstone."""
    await local_stage.restart(handoff=HandoffTimeouts(handoff=0.02, linger=0.2))
    attempt = new_attempt()
    failed = await failure_of(local_stage.pull(attempt, TOKENS))
    assert isinstance(failed.error, NotFound)
    again = await failure_of(local_stage.pull(attempt, TOKENS))
    assert again.reason == "ATTEMPT_UNKNOWN"


async def test_a_worker_that_stops_fails_its_pulls_and_is_paired_with_again(
    stage: Stage,
) -> None:
    pull = await stage.started(new_attempt(), TOKENS, TARGET)
    await stage.restart()
    failed = await failure_of(pull)
    assert isinstance(failed.error, Unavailable)
    failed.fence.lifted.result(WAIT)
    await stage.hand_over(2 * BLOCK_SIZE, SOURCE, TARGET)
    assert torch.equal(stage.decode_pool[TARGET], stage.prefill_pool[SOURCE])


async def test_a_restarted_worker_takes_the_place_of_its_predecessor(
    stage: Stage, threads: Callable[[torch.Tensor], TransferThread]
) -> None:
    """A new boot id at the old address, with a pool of its own, while nothing is being pulled."""
    await stage.hand_over(2 * BLOCK_SIZE, SOURCE, TARGET)
    old_boot_id, old_thread = stage.prefill_boot_id, stage.prefill
    stage.prefill = threads(new_pool(64, filled=True))
    await stage.restart(boot_id=os.urandom(16))
    old_thread.stop()
    await stage.hand_over(2 * BLOCK_SIZE, SOURCE, [9, 10])
    assert torch.equal(stage.decode_pool[[9, 10]], stage.prefill_pool[SOURCE])
    failed = await failure_of(
        stage.consumer.open(new_attempt(), stage.address, old_boot_id, TOKENS)
    )
    assert failed.reason == "BOOT_ID_STALE"
    # Asking for the old incarnation did not harm the new one.
    await stage.hand_over(2 * BLOCK_SIZE, SOURCE, [11, 12])


async def test_a_lost_connection_ends_reads_before_the_peer_is_read_again(
    local_stage: Stage,
) -> None:
    assert local_stage.fabric is not None
    attempt = new_attempt()
    pull = await local_stage.started(attempt, TOKENS, TARGET)
    local_stage.fabric.held = True
    for chunk in chunks_of(TOKENS, SOURCE, BLOCK_SIZE):
        local_stage.producer.chunk_ready(attempt, chunk)
    await until(lambda: local_stage.decode.num_blocks_in_flight == 2)
    await local_stage.restart()
    failed = await failure_of(pull)
    assert set(failed.fence.block_ids) == set(TARGET)
    assert not failed.fence.lifted.done()
    pairing = asyncio.create_task(
        local_stage.consumer.pair(local_stage.address, local_stage.prefill_boot_id)
    )
    await until(lambda: local_stage.consumer.num_peers == 0)
    assert not pairing.done()
    local_stage.fabric.held = False
    async with asyncio.timeout(WAIT):
        await pairing
    assert failed.fence.lifted.done()


async def test_a_read_that_takes_too_long_fails_and_stays_fenced_until_it_ends(
    local_stage: Stage,
) -> None:
    assert local_stage.fabric is not None
    local_stage.timeouts = PullTimeouts(read=0.05)
    local_stage.consumer = local_stage.new_consumer()
    attempt = new_attempt()
    pull = await local_stage.started(attempt, TOKENS, TARGET)
    local_stage.fabric.held = True
    local_stage.producer.chunk_ready(attempt, chunks_of(TOKENS, SOURCE, BLOCK_SIZE)[0])
    failed = await failure_of(pull)
    assert failed.reason == "READ_TIMEOUT"
    assert failed.fence.block_ids == (TARGET[0],)
    assert await local_stage.listener.wait_for_end(attempt) is LeaseEnd.PULL_BROKEN
    local_stage.fabric.held = False
    failed.fence.lifted.result(WAIT)


async def test_a_peer_whose_bytes_are_lost_is_paired_with_again(local_stage: Stage) -> None:
    """The stream lives, but the transport says that the peer is gone."""
    assert local_stage.fabric is not None
    attempt = new_attempt()
    pull = await local_stage.started(attempt, TOKENS, TARGET)
    pool = local_stage.fabric.pools.pop("prefill")
    local_stage.producer.chunk_ready(attempt, chunks_of(TOKENS, SOURCE, BLOCK_SIZE)[0])
    failed = await failure_of(pull)
    assert failed.reason == "PEER_LOST"
    local_stage.fabric.pools["prefill"] = pool
    await local_stage.hand_over(2 * BLOCK_SIZE, SOURCE, TARGET)
    assert local_stage.handshakes == 2


async def pull_that_reads(stage: Stage, fabric: LocalFabric) -> Pull:
    """One whose read is under way, until the fabric is held no more."""
    attempt = new_attempt()
    pull = await stage.started(attempt, TOKENS, TARGET)
    fabric.held = True
    stage.producer.chunk_ready(attempt, chunks_of(TOKENS, SOURCE, BLOCK_SIZE)[0])
    await until(lambda: stage.decode.num_blocks_in_flight == 1)
    return pull


async def test_a_peer_with_reads_left_over_is_asked_to_keep_polling(
    local_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert local_stage.fabric is not None
    monkeypatch.setattr("kvtransfer.consumer.NUDGE_SECONDS", 0.02)
    pull = await pull_that_reads(local_stage, local_stage.fabric)
    fence = pull.cancel()
    await until(lambda: local_stage.handshakes >= 3)
    local_stage.fabric.held = False
    fence.lifted.result(WAIT)


async def test_a_lost_peer_with_reads_left_over_is_asked_to_keep_polling_too(
    local_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its connection broke, as where one of the two was stopped for a while; and it polls for
    nobody else."""
    assert local_stage.fabric is not None
    monkeypatch.setattr("kvtransfer.consumer.NUDGE_SECONDS", 0.02)
    pull = await pull_that_reads(local_stage, local_stage.fabric)
    await local_stage.restart()
    failed = await failure_of(pull)
    before = local_stage.handshakes
    await until(lambda: local_stage.handshakes >= before + 3)
    assert local_stage.consumer.num_peers == 0
    local_stage.fabric.held = False
    failed.fence.lifted.result(WAIT)
    # Nothing is in the way of the pair any more.
    await local_stage.hand_over(2 * BLOCK_SIZE, SOURCE, TARGET)


async def test_closing_fails_what_is_open(local_stage: Stage) -> None:
    pull = await local_stage.started(new_attempt(), TOKENS, TARGET)
    await local_stage.consumer.close()
    assert (await failure_of(pull)).reason == "PULL_CANCELLED"
    await local_stage.consumer.close()


async def test_workers_that_died_are_forgotten_though_nobody_pulls_from_them(
    local_stage: Stage, fabric: LocalFabric
) -> None:
    """Protocol 4.8: of a hundred incarnations at new addresses nothing is left."""
    boot_ids = [os.urandom(16) for _ in range(100)]
    for boot_id in boot_ids:
        transfers = TransferThread([LocalTransport(new_pool(NUM_BLOCKS), boot_id.hex(), fabric)])
        transfers.start()
        server, address = await serve(ScriptedPrefill(boot_id, transfers, ()), Traffic())
        await local_stage.consumer.pair(address, boot_id)
        await server.stop(None)
        transfers.stop()
    await until(lambda: local_stage.consumer.num_peers == 0)
    for boot_id in boot_ids:
        read = local_stage.decode.read(peer_name(boot_id), [1], [1])
        assert isinstance(read.done.exception(WAIT), PeerUnknown)


async def test_an_open_pull_ends_well_though_its_worker_takes_no_more_calls(
    local_stage: Stage,
) -> None:
    """A worker that drains closes its connections before the last hand-off is over."""
    attempt = new_attempt()
    pull = await local_stage.started(attempt, TOKENS, TARGET)
    stopping = asyncio.create_task(local_stage.server.stop(WAIT))
    with pytest.raises(ServiceError):
        await local_stage.new_consumer().pair(local_stage.address, local_stage.prefill_boot_id)
    for chunk in chunks_of(TOKENS, SOURCE, 2 * BLOCK_SIZE):
        local_stage.producer.chunk_ready(attempt, chunk)
    local_stage.producer.complete(attempt, completion_of(TOKENS, SOURCE))
    async with asyncio.timeout(WAIT):
        await pull.released()
        await stopping
    await until(lambda: local_stage.consumer.num_peers == 0)
