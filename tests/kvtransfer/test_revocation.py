"""Who ends a lease, and what the other side is told (protocol 3.2, 3.3, 3.6, 3.7)."""

import asyncio
import contextlib

import pytest

from chassis.errors import Aborted, Cancelled, ResourceExhausted, ServiceError
from kvtransfer.errors import DuplicateAttempt, PullFailed
from kvtransfer.lease import LeaseEnd
from kvtransfer.producer import HandoffTimeouts
from kvtransfer.pull import Pull
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

TOKENS = prompt(2 * BLOCK_SIZE)
SOURCE, TARGET = [5, 6], [7, 8]
REVOKED = Aborted("room is needed", reason="LEASE_REVOKED")


async def failure_of(pull: Pull) -> PullFailed:
    with pytest.raises(PullFailed) as caught:
        async with asyncio.timeout(WAIT):
            await pull.released()
    return caught.value


@pytest.mark.parametrize(
    "error",
    [
        REVOKED,
        ResourceExhausted("full", reason="POOL_FULL", retry_after=0.5),
        Cancelled("the client left", reason="CLIENT_CANCELLED"),
    ],
    ids=["aborted", "exhausted", "cancelled"],
)
async def test_a_revocation_reaches_decode_in_the_workers_own_words(
    local_stage: Stage, error: ServiceError
) -> None:
    attempt = new_attempt()
    pull = await local_stage.started(attempt, TOKENS, TARGET)
    assert local_stage.producer.revoke(attempt, error)
    failed = await failure_of(pull)
    assert type(failed.error) is type(error)
    assert (failed.reason, str(failed)) == (error.reason, error.message)
    assert failed.error.retry_after == error.retry_after


async def test_the_worker_that_revokes_frees_the_blocks_itself(local_stage: Stage) -> None:
    attempt = new_attempt()
    pull = await local_stage.started(attempt, TOKENS, TARGET)
    assert local_stage.producer.revoke(attempt, REVOKED)
    assert not local_stage.producer.revoke(attempt, REVOKED)
    await failure_of(pull)
    assert local_stage.listener.ends == []


@pytest.mark.parametrize("state", ["computing", "started", "announced", "completed"])
async def test_a_lease_can_be_revoked_in_every_state(local_stage: Stage, state: str) -> None:
    assert local_stage.fabric is not None
    local_stage.fabric.held = state in ("announced", "completed")
    await pair(local_stage)
    attempt, pull = await bring_to(local_stage, state)
    assert local_stage.producer.revoke(attempt, REVOKED)
    failed = await failure_of(pull)
    assert failed.reason == "LEASE_REVOKED"
    local_stage.fabric.held = False
    failed.fence.lifted.result(WAIT)


async def test_a_pull_of_an_attempt_that_was_revoked_before_is_refused(
    local_stage: Stage,
) -> None:
    attempt = new_attempt()
    local_stage.producer.register(attempt, TOKENS)
    local_stage.producer.revoke(attempt, REVOKED)
    failed = await failure_of(local_stage.pull(attempt, TOKENS))
    assert failed.reason == "ATTEMPT_UNKNOWN"


@pytest.mark.parametrize(
    "state",
    ["opening", "waiting", "computing", "started", "announced", "completed", "released"],
)
async def test_decode_may_cancel_in_every_state(local_stage: Stage, state: str) -> None:
    """Protocol 5.1; after Start, closing the Pull frees prefill's blocks at once (3.7)."""
    assert local_stage.fabric is not None
    await pair(local_stage)
    local_stage.fabric.held = state in ("announced", "completed")
    attempt, pull = await bring_to(local_stage, state)
    fence = pull.cancel()
    assert pull.cancel() is fence
    fenced = set(TARGET) if state in ("announced", "completed") else set()
    assert set(fence.block_ids) == fenced
    assert fence.lifted.done() is not bool(fenced)
    local_stage.fabric.held = False
    fence.lifted.result(WAIT)
    if state in ("started", "announced", "completed"):
        assert await local_stage.listener.wait_for_end(attempt) is LeaseEnd.PULL_BROKEN
        assert not local_stage.producer.revoke(attempt, REVOKED)
    if state != "released":
        assert (await failure_of(pull)).reason == "PULL_CANCELLED"


async def test_a_pull_that_broke_before_start_may_come_again(local_stage: Stage) -> None:
    await pair(local_stage)
    attempt, pull = await bring_to(local_stage, "computing")
    pull.cancel()
    async with asyncio.timeout(WAIT):
        while True:
            # Prefill may still see the first Pull open; that is refused, and tried again.
            second = local_stage.pull(attempt, TOKENS)
            with contextlib.suppress(PullFailed):
                await second.computing()
                break
    await second.start(0, TARGET)
    await local_stage.listener.wait_for_start(attempt)
    assert local_stage.listener.ends == []
    second.cancel()


async def test_an_attempt_that_nobody_pulls_times_out(local_stage: Stage) -> None:
    local_stage.handoff = HandoffTimeouts(handoff=0.02)
    producer = local_stage.new_producer(local_stage.prefill_boot_id)
    attempt = new_attempt()
    producer.register(attempt, TOKENS)
    assert await local_stage.listener.wait_for_end(attempt) is LeaseEnd.HANDOFF_TIMEOUT
    with pytest.raises(DuplicateAttempt):
        producer.register(attempt, TOKENS)


async def test_the_time_for_a_hand_off_runs_again_after_an_unstarted_pull_broke(
    local_stage: Stage,
) -> None:
    await local_stage.restart(handoff=HandoffTimeouts(handoff=2.0))
    await pair(local_stage)
    attempt, pull = await bring_to(local_stage, "computing")
    pull.cancel()
    assert await local_stage.listener.wait_for_end(attempt) is LeaseEnd.HANDOFF_TIMEOUT


async def test_an_attempt_that_stays_on_prefill_is_known_but_cannot_be_pulled(
    local_stage: Stage,
) -> None:
    attempt = new_attempt()
    local_stage.producer.register(attempt, TOKENS, hand_off=False)
    with pytest.raises(DuplicateAttempt):
        local_stage.producer.register(attempt, TOKENS)
    failed = await failure_of(local_stage.pull(attempt, TOKENS))
    assert failed.reason == "ATTEMPT_UNKNOWN"
    assert local_stage.producer.revoke(attempt, REVOKED)


async def test_reports_about_an_ended_attempt_are_ignored(local_stage: Stage) -> None:
    attempt = new_attempt()
    local_stage.producer.register(attempt, TOKENS)
    local_stage.producer.revoke(attempt, REVOKED)
    local_stage.producer.computing(attempt)
    local_stage.producer.chunk_ready(attempt, chunks_of(TOKENS, SOURCE, BLOCK_SIZE)[0])
    local_stage.producer.complete(attempt, completion_of(TOKENS, SOURCE))
    assert local_stage.listener.started_attempts == []


async def pair(stage: Stage) -> None:
    """First, because nothing moves while a test holds the fabric, not even a first byte."""
    assert stage.fabric is not None
    held, stage.fabric.held = stage.fabric.held, False
    await stage.consumer.pair(stage.address, stage.prefill_boot_id)
    stage.fabric.held = held


async def bring_to(stage: Stage, state: str) -> tuple[bytes, Pull]:
    """A fresh attempt whose Pull has come this far and no further."""
    attempt = new_attempt()
    pull = stage.pull(attempt, TOKENS)
    if state == "opening":
        return attempt, pull
    stage.producer.register(attempt, TOKENS)
    if state == "waiting":
        await until(lambda: "/baton.v1.KvTransferService/Pull" in stage.traffic.calls)
        return attempt, pull
    stage.producer.computing(attempt)
    await pull.computing()
    if state == "computing":
        return attempt, pull
    await pull.start(0, TARGET)
    await stage.listener.wait_for_start(attempt)
    if state == "started":
        return attempt, pull
    for chunk in chunks_of(TOKENS, SOURCE, BLOCK_SIZE):
        stage.producer.chunk_ready(attempt, chunk)
    if state == "announced":
        await until(lambda: stage.decode.num_blocks_in_flight == len(TARGET))
        return attempt, pull
    stage.producer.complete(attempt, completion_of(TOKENS, SOURCE))
    if state == "completed":
        await until(lambda: stage.decode.num_blocks_in_flight == len(TARGET))
        return attempt, pull
    await pull.released()
    return attempt, pull
