"""Messages out of order are refused by whoever receives them, and never hang (protocol 2.5)."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence

import grpc.aio
import pytest
import torch

from baton.v1 import kv_transfer_pb2 as pb
from baton.v1 import kv_transfer_pb2_grpc
from chassis.channel import open_channel
from chassis.status import from_rpc_error
from kvtransfer.errors import PullFailed
from kvtransfer.handoff import token_digest
from kvtransfer.lease import LeaseEnd
from kvtransfer.pull import Pull, PullTimeouts
from tests.kvtransfer.scripted_prefill import (
    COMPUTING,
    DONE,
    START,
    STAY,
    ScriptedPrefill,
    Step,
    chunk,
    complete,
    released,
)
from tests.kvtransfer.stage import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    WAIT,
    Stage,
    Traffic,
    chunks_of,
    completion_of,
    new_attempt,
    prompt,
    serve,
)

TOKENS = prompt(2 * BLOCK_SIZE + 1)
SOURCE, TARGET = [5, 6, 9], [7, 8, 3]
FIRST = chunk(0, BLOCK_SIZE, 5)
SECOND = chunk(BLOCK_SIZE, BLOCK_SIZE, 6)
END = complete(len(TOKENS), chunk(2 * BLOCK_SIZE, 1, 9))


async def outcome(stage: Stage, script: Sequence[Step]) -> str:
    """Plays decode's part against a script: "released", or why the pull failed."""
    await stage.server.stop(None)
    scripted = ScriptedPrefill(stage.prefill_boot_id, stage.prefill, script)
    stage.server, stage.address = await serve(scripted, Traffic())
    pull = stage.pull(new_attempt(), TOKENS)
    try:
        async with asyncio.timeout(WAIT):
            await pull.computing()
            await pull.start(0, TARGET)
            await pull.released()
    except PullFailed as failed:
        failed.fence.lifted.result(WAIT)
        return failed.reason
    return "released"


async def test_the_right_order_is_a_hand_off(local_stage: Stage) -> None:
    script = (COMPUTING, START, FIRST, SECOND, END, DONE, released(alive=True))
    assert await outcome(local_stage, script) == "released"
    assert torch.equal(local_stage.decode_pool[TARGET], local_stage.prefill_pool[SOURCE])


SHUFFLED = [
    order
    for order in itertools.permutations((COMPUTING, FIRST, SECOND, END))
    if order != (COMPUTING, FIRST, SECOND, END)
]


@pytest.mark.parametrize(
    "order",
    SHUFFLED,
    ids=["-".join(str(message.WhichOneof("message")) for message in order) for order in SHUFFLED],
)
async def test_any_other_order_fails_the_pull(
    local_stage: Stage, order: tuple[pb.PullResponse, ...]
) -> None:
    assert await outcome(local_stage, (*order, STAY)) == "PROTOCOL"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ((released(alive=True), STAY), "PROTOCOL"),
        ((COMPUTING, COMPUTING, STAY), "PROTOCOL"),
        ((COMPUTING, START, END, STAY), "PROTOCOL"),
        ((COMPUTING, START, FIRST, FIRST, STAY), "PROTOCOL"),
        ((COMPUTING, START, SECOND, STAY), "PROTOCOL"),
        ((COMPUTING, START, chunk(0, BLOCK_SIZE), STAY), "PROTOCOL"),
        ((COMPUTING, START, chunk(0, 0), STAY), "PROTOCOL"),
        ((COMPUTING, START, chunk(0, BLOCK_SIZE - 1, 5), STAY), "PROTOCOL"),
        ((COMPUTING, START, chunk(0, 3 * BLOCK_SIZE, 5, 6, 9), STAY), "PROTOCOL"),
        ((COMPUTING, START, chunk(0, BLOCK_SIZE, NUM_BLOCKS), STAY), "PROTOCOL"),
        ((COMPUTING, START, chunk(0, BLOCK_SIZE, 0), STAY), "PROTOCOL"),
        ((COMPUTING, START, FIRST, SECOND, complete(len(TOKENS)), STAY), "PROTOCOL"),
        ((COMPUTING, START, FIRST, SECOND, END, FIRST, STAY), "PROTOCOL"),
        ((COMPUTING, START, FIRST, SECOND, END, DONE, COMPUTING, STAY), "PROTOCOL"),
        ((COMPUTING, START, FIRST, SECOND, END, DONE, released(alive=False)), "LEASE_LOST"),
        ((COMPUTING, START, FIRST, SECOND, END, DONE), "PULL_CLOSED"),
        ((COMPUTING, START), "PULL_CLOSED"),
        ((), "PULL_CLOSED"),
    ],
    ids=[
        "released first",
        "computing twice",
        "complete without chunks",
        "a chunk twice",
        "a gap",
        "no blocks",
        "no tokens",
        "a partial block in the middle",
        "past the prompt",
        "past the pool",
        "the padding block",
        "no last block",
        "a chunk after complete",
        "computing after done",
        "released but not alive",
        "closed after done",
        "closed after start",
        "closed at once",
    ],
)
async def test_prefill_cannot_make_decode_use_what_it_must_not(
    local_stage: Stage, script: tuple[Step, ...], reason: str
) -> None:
    assert await outcome(local_stage, script) == reason


async def test_a_release_that_does_not_come_fails_the_pull(local_stage: Stage) -> None:
    """Protocol 3.6: at most two seconds, here less."""
    local_stage.timeouts = PullTimeouts(released=0.05)
    await local_stage.consumer.close()
    local_stage.consumer = local_stage.new_consumer()
    script = (COMPUTING, START, FIRST, SECOND, END, DONE, STAY)
    assert await outcome(local_stage, script) == "RELEASE_TIMEOUT"


# From here on decode is the one who errs.


@pytest.fixture
async def channel(local_stage: Stage) -> AsyncIterator[grpc.aio.Channel]:
    channel = open_channel(local_stage.address)
    yield channel
    await channel.close()


def opened(stage: Stage, attempt: bytes, token_ids: list[int] = TOKENS) -> pb.PullRequest:
    return pb.PullRequest(
        open=pb.Open(
            attempt_id=attempt,
            boot_id=stage.prefill_boot_id,
            token_digest=token_digest(token_ids),
        )
    )


def start(cached_tokens: int = 0) -> pb.PullRequest:
    return pb.PullRequest(start=pb.Start(cached_tokens=cached_tokens))


def done() -> pb.PullRequest:
    return pb.PullRequest(done=pb.Done())


async def answer(
    channel: grpc.aio.Channel, messages: Sequence[pb.PullRequest]
) -> tuple[list[str | None], str]:
    """Sends each message when it is due: what came back, and the reason of the status."""
    call = kv_transfer_pb2_grpc.KvTransferServiceStub(channel).Pull()
    heard: list[str | None] = []
    try:
        async with asyncio.timeout(WAIT):
            for index, message in enumerate(messages):
                if index and message.WhichOneof("message") == "start":
                    first = await call.read()
                    assert isinstance(first, pb.PullResponse)
                    heard.append(first.WhichOneof("message"))
                await call.write(message)
            while isinstance(response := await call.read(), pb.PullResponse):
                heard.append(response.WhichOneof("message"))
    except grpc.aio.AioRpcError as error:
        return heard, from_rpc_error(error).reason
    return heard, "OK"


def computed(stage: Stage) -> bytes:
    """An attempt that prefill has computed in full."""
    attempt = new_attempt()
    stage.producer.register(attempt, TOKENS)
    stage.producer.computing(attempt)
    for part in chunks_of(TOKENS, SOURCE, BLOCK_SIZE):
        stage.producer.chunk_ready(attempt, part)
    stage.producer.complete(attempt, completion_of(TOKENS, SOURCE))
    return attempt


@pytest.mark.parametrize(
    ("num_opens", "others"),
    [
        (0, [start()]),
        (0, [done()]),
        (2, []),
        (1, [done()]),
        (1, [start(BLOCK_SIZE + 1)]),
        (1, [start(9 * BLOCK_SIZE)]),
        (0, [pb.PullRequest()]),
    ],
    ids=[
        "start first",
        "done first",
        "open twice",
        "done without start",
        "cached within a block",
        "cached past the prompt",
        "an empty message",
    ],
)
async def test_prefill_refuses_messages_out_of_order(
    local_stage: Stage, channel: grpc.aio.Channel, num_opens: int, others: list[pb.PullRequest]
) -> None:
    opens = [opened(local_stage, computed(local_stage))] * num_opens
    _, reason = await answer(channel, [*opens, *others])
    assert reason == "MESSAGE_OUT_OF_ORDER"
    assert local_stage.listener.ends == []


async def test_a_second_start_breaks_the_pull_and_ends_the_lease(
    local_stage: Stage, channel: grpc.aio.Channel
) -> None:
    attempt = computed(local_stage)
    _, reason = await answer(channel, [opened(local_stage, attempt), start(), start()])
    assert reason == "MESSAGE_OUT_OF_ORDER"
    assert await local_stage.listener.wait_for_end(attempt) is LeaseEnd.PULL_BROKEN


async def test_closing_without_done_ends_the_lease(local_stage: Stage) -> None:
    attempt = new_attempt()
    pull: Pull = await local_stage.started(attempt, TOKENS, TARGET)
    pull.cancel()
    assert await local_stage.listener.wait_for_end(attempt) is LeaseEnd.PULL_BROKEN


async def test_a_second_pull_of_an_attempt_is_refused(
    local_stage: Stage, channel: grpc.aio.Channel
) -> None:
    attempt = new_attempt()
    pull = await local_stage.started(attempt, TOKENS, TARGET)
    _, reason = await answer(channel, [opened(local_stage, attempt)])
    assert reason == "ATTEMPT_EXISTS"
    assert local_stage.listener.ends == []
    pull.cancel()


async def test_a_pull_with_other_tokens_is_refused(
    local_stage: Stage, channel: grpc.aio.Channel
) -> None:
    attempt = computed(local_stage)
    other = [*TOKENS[:-1], 0]
    _, reason = await answer(channel, [opened(local_stage, attempt, other)])
    assert reason == "TOKENS_DIFFER"
    assert local_stage.listener.ends == []
