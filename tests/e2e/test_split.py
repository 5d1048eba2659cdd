"""Real prefill and decode processes on loopback, driven without a gateway."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from baton.v1 import decode_pb2, generation_pb2, prefill_pb2
from chassis.status import from_rpc_error
from tests.e2e.engine_reference import Reference
from tests.e2e.metrics_page import read_counter
from tests.e2e.split_client import Attempt, SplitClient, split_client
from tests.e2e.trace_store import TraceStore
from tests.e2e.worker_process import WorkerProcess, running

BLOCK_SIZE = 16
POOL = ("--kv-memory-bytes", str(256 << 20))


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def workers(traces: Path) -> Iterator[tuple[WorkerProcess, WorkerProcess]]:
    with (
        running("prefill", *POOL, trace_directory=traces) as prefill,
        running("decode", *POOL, trace_directory=traces) as decode,
    ):
        yield prefill.wait_ready(), decode.wait_ready()


@pytest.fixture
async def client(workers: tuple[WorkerProcess, WorkerProcess]) -> AsyncIterator[SplitClient]:
    async with split_client(*workers) as client:
        yield client


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference()


def prompt(num_tokens: int, seed: int) -> list[int]:
    """Tokens that no other seed shares a block with."""
    return random.Random(seed).choices(range(1_000, 40_000), k=num_tokens)


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 32, 300])
async def test_greedy_tokens_equal_those_of_one_engine(
    client: SplitClient, reference: Reference, num_tokens: int
) -> None:
    tokens = prompt(num_tokens, seed=num_tokens)
    options = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}
    assert await client.generate(tokens, **options) == reference.generate(tokens, **options)


async def test_requests_in_one_batch_equal_those_of_one_engine(
    client: SplitClient, reference: Reference
) -> None:
    options = [
        {"temperature": 0.0, "max_tokens": 20},
        {"temperature": 0.8, "seed": 5, "max_tokens": 12},
        {"temperature": 1.2, "top_p": 0.9, "seed": 6, "max_tokens": 30, "min_tokens": 10},
        {"temperature": 1.0, "top_k": 5, "seed": 7, "max_tokens": 8, "repetition_penalty": 1.3},
        {"temperature": 0.0, "max_tokens": 16, "frequency_penalty": 1.5, "presence_penalty": 0.5},
        {"temperature": 0.7, "min_p": 0.05, "seed": 8, "max_tokens": 16, "logit_bias": {42: 5.0}},
    ]
    prompts = [prompt(20 + 13 * index, seed=100 + index) for index in range(len(options))]
    pairs = list(zip(prompts, options, strict=True))
    answers = await asyncio.gather(*(client.generate(tokens, **each) for tokens, each in pairs))
    assert answers == [reference.generate(tokens, **each) for tokens, each in pairs]


@pytest.mark.parametrize("num_tokens", [21, 32], ids=["partial last block", "whole blocks"])
async def test_choices_share_one_prefill_and_draw_as_one_engine_does(
    client: SplitClient, reference: Reference, num_tokens: int
) -> None:
    options = {"choices": (0, 1, 2), "temperature": 1.0, "seed": 11, "max_tokens": 10}
    tokens = prompt(num_tokens, seed=200 + num_tokens)
    assert await client.generate(tokens, **options) == reference.generate(tokens, **options)


async def test_a_single_token_is_prefills_alone(client: SplitClient) -> None:
    attempt = await client.begin(
        prompt(40, seed=1), decode_leg=False, temperature=0.0, max_tokens=1
    )
    assert attempt.prefill is not None
    await attempt.prefill
    assert attempt.response is not None
    (first,) = attempt.response.first_tokens
    assert first.finish.reason == generation_pb2.FINISH_REASON_LENGTH


async def test_a_request_that_ends_on_its_first_token_ends_on_both_legs(
    client: SplitClient, reference: Reference
) -> None:
    tokens = prompt(40, seed=2)
    (first,) = reference.generate(tokens, temperature=0.0, max_tokens=1)[0]
    attempt = await client.begin(tokens, temperature=0.0, max_tokens=9, stop_token_ids=[first])
    assert await attempt.result() == {0: [first]}
    assert attempt.response is not None
    (answer,) = attempt.response.first_tokens
    assert answer.finish.reason == generation_pb2.FINISH_REASON_STOP_TOKEN


async def test_a_known_prompt_is_cached_on_prefill_and_moves_only_its_tail(
    client: SplitClient, workers: tuple[WorkerProcess, WorkerProcess]
) -> None:
    tokens = prompt(40, seed=3)
    options = {"temperature": 0.0, "max_tokens": 4, "ignore_eos": True}
    first = await client.generate(tokens, **options)
    moved = [_bytes_moved(workers[1])]
    again = await client.begin(tokens, **options)
    assert await again.result() == first
    assert again.response is not None
    assert again.response.cached_tokens == 32
    moved.append(_bytes_moved(workers[1]))
    assert moved[1] - moved[0] == _block_bytes()


async def test_a_prompt_of_known_whole_blocks_moves_nothing(
    client: SplitClient, workers: tuple[WorkerProcess, WorkerProcess]
) -> None:
    tokens = prompt(48, seed=4)
    options = {"temperature": 0.0, "max_tokens": 4, "ignore_eos": True}
    first = await client.generate(tokens, **options)
    moved = _bytes_moved(workers[1])
    assert await client.generate(tokens, **options) == first
    assert _bytes_moved(workers[1]) == moved


async def test_a_prompt_is_not_shared_across_salts(client: SplitClient) -> None:
    tokens = prompt(40, seed=5)
    for salt in (b"one", b"two"):
        attempt = await client.begin(tokens, salt=salt, temperature=0.0, max_tokens=2)
        await attempt.result()
        assert attempt.response is not None
        assert attempt.response.cached_tokens == 0


async def test_the_bytes_moved_are_the_blocks_of_the_prompt(
    client: SplitClient, workers: tuple[WorkerProcess, WorkerProcess]
) -> None:
    before = _bytes_moved(workers[1])
    await client.generate(prompt(100, seed=6), temperature=0.0, max_tokens=3, ignore_eos=True)
    assert _bytes_moved(workers[1]) - before == 7 * _block_bytes()


async def test_kv_moves_while_later_chunks_of_the_prompt_compute(
    client: SplitClient, traces: Path
) -> None:
    attempt = await client.begin(prompt(2_000, seed=7), temperature=0.0, max_tokens=2)
    await attempt.result()
    store = TraceStore(traces)
    chunks = await store.events(attempt.trace_id, "prefill.compute", "chunk")
    reads = await store.events(attempt.trace_id, "kv.pull", "chunk")
    assert [chunk.attributes["baton.tokens"] for chunk in chunks] == [256] * 7 + [208]
    assert sum(int(read.attributes["baton.blocks"]) for read in reads) == 125
    # A chunk's event is its end, so the last chunk starts no earlier than the one before ends.
    assert reads[0].time_ns < chunks[-2].time_ns


async def test_every_stage_of_both_legs_is_in_the_callers_trace(
    client: SplitClient, traces: Path
) -> None:
    attempt = await client.begin(prompt(20, seed=8), temperature=0.0, max_tokens=5, ignore_eos=True)
    await attempt.result()
    store = TraceStore(traces)
    for name in ("prefill.queue", "Prefill", "decode.queue", "decode.generate"):
        await store.span(attempt.trace_id, name)
    generate = await store.span(attempt.trace_id, "decode.generate")
    assert generate.attributes["baton.steps"] == 4
    assert generate.attributes["baton.itl.p50"] > 0


async def test_an_attempt_is_taken_once_by_each_worker(client: SplitClient) -> None:
    tokens = prompt(20, seed=9)
    first = await client.begin(tokens, temperature=0.0, max_tokens=300, ignore_eos=True)
    await first.stepped.wait()
    again = await client.begin(tokens, attempt_id=first.attempt_id, temperature=0.0, max_tokens=3)
    assert (await again.rejected).reason == "ATTEMPT_EXISTS"
    assert again.prefill is not None
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await again.prefill
    assert caught.value.code() == grpc.StatusCode.ALREADY_EXISTS
    await client.cancel(first)
    assert (await first.finished).outcome == decode_pb2.OUTCOME_CANCELLED


async def test_messages_for_an_earlier_process_are_refused(client: SplitClient) -> None:
    request = prefill_pb2.PrefillRequest(attempt_id=os.urandom(16), boot_id=bytes(16))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.prefill_stub.Prefill(request).read()
    assert from_rpc_error(caught.value).reason == "BOOT_ID_STALE"
    session = client.decode_stub.Session()
    hello = decode_pb2.Hello(boot_id=bytes(16))
    await session.write(decode_pb2.SessionRequest(hello=hello))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await session.read()
    assert from_rpc_error(caught.value).reason == "BOOT_ID_STALE"


async def test_a_submit_that_names_an_earlier_prefill_process_fails(client: SplitClient) -> None:
    client.boot_ids["prefill"] = os.urandom(16)
    attempt = await client.begin(prompt(20, seed=10), prefill_leg=False, max_tokens=3)
    finished = await attempt.outcome()
    assert finished.outcome == decode_pb2.OUTCOME_FAILED
    assert finished.failure.reason == "BOOT_ID_STALE"


async def test_cancel_is_answered_for_a_handle_that_nobody_knows(client: SplitClient) -> None:
    attempt = await client.begin([5], prefill_leg=False, decode_leg=False)
    await client.cancel(attempt)
    assert (await attempt.finished).outcome == decode_pb2.OUTCOME_CANCELLED


async def _until_waiting(client: SplitClient, attempt: Attempt) -> None:
    await client.watch_until("prefill", lambda load: load.waiting > 0)


async def _until_computing(client: SplitClient, attempt: Attempt) -> None:
    await client.watch_until("prefill", lambda load: load.blocks.leased > 0)


async def _until_first_token(client: SplitClient, attempt: Attempt) -> None:
    await attempt.prefilled.wait()


async def _until_decoding(client: SplitClient, attempt: Attempt) -> None:
    await attempt.stepped.wait()


@pytest.mark.parametrize(
    "state",
    [_until_waiting, _until_computing, _until_first_token, _until_decoding],
    ids=["queued", "in prefill", "in transfer", "in decode"],
)
async def test_a_cancelled_request_gives_every_block_back(client: SplitClient, state) -> None:
    busy = await client.begin(prompt(1_000, seed=20), temperature=0.0, max_tokens=2)
    attempt = await client.begin(
        prompt(600, seed=21), temperature=0.0, max_tokens=1_000, ignore_eos=True
    )
    await state(client, attempt)
    await client.cancel(attempt)
    assert (await attempt.outcome()).outcome == decode_pb2.OUTCOME_CANCELLED
    await busy.result()
    await client.all_blocks_back()


async def test_a_deadline_ends_both_legs_and_gives_every_block_back(client: SplitClient) -> None:
    attempt = await client.begin(
        prompt(30, seed=22), seconds=1.0, temperature=0.0, max_tokens=5_000, ignore_eos=True
    )
    assert (await attempt.outcome()).outcome == decode_pb2.OUTCOME_CANCELLED
    await client.all_blocks_back()


async def test_a_deadline_that_has_passed_is_rejected(client: SplitClient) -> None:
    attempt = await client.begin([5], seconds=-1.0, prefill_leg=False, max_tokens=3)
    assert (await attempt.rejected).reason == "DEADLINE_EXCEEDED"


async def test_a_broken_session_gives_every_block_back(
    workers: tuple[WorkerProcess, WorkerProcess],
) -> None:
    async with split_client(*workers) as client:
        attempt = await client.begin(
            prompt(30, seed=23), temperature=0.0, max_tokens=5_000, ignore_eos=True
        )
        await attempt.stepped.wait()
        client.session.cancel()
        await client.watch_until("decode", lambda load: load.running == 0)


async def test_a_prompt_that_fails_on_decode_frees_prefill_too(client: SplitClient) -> None:
    tokens = prompt(30, seed=24)
    attempt = await client.begin(tokens, temperature=0.0, max_tokens=5_000, ignore_eos=True)
    await attempt.prefilled.wait()
    await client.send(cancel=decode_pb2.Cancel(handle=attempt.handle))
    assert (await attempt.outcome()).outcome == decode_pb2.OUTCOME_CANCELLED
    await client.all_blocks_back()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"token_ids": [49_152]}, "TOKEN_ID_UNKNOWN"),
        ({"token_ids": []}, "PROMPT_EMPTY"),
        ({"token_ids": [5], "choices": (3, 3)}, "CHOICES_INVALID"),
        ({"token_ids": [5], "max_tokens": 10_000}, "CONTEXT_EXCEEDED"),
        ({"token_ids": [5], "temperature": float("nan")}, "SAMPLING_OUT_OF_RANGE"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_what_no_step_could_compute_is_refused_by_both_workers(
    client: SplitClient, options: dict[str, object], reason: str
) -> None:
    attempt = await client.begin(**options)  # type: ignore[arg-type]
    assert (await attempt.rejected).reason == reason
    assert attempt.prefill is not None
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await attempt.prefill
    error = from_rpc_error(caught.value)
    assert (caught.value.code(), error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, reason)


def _bytes_moved(decode: WorkerProcess) -> float:
    return read_counter(decode, "baton_kv_transfer_bytes_total", transport="nixl")


def _block_bytes() -> int:
    # SmolLM2-135M in float32: layers, K and V, KV heads, tokens, head size, bytes.
    return 30 * 2 * 3 * BLOCK_SIZE * 64 * 4
