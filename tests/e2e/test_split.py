"""Real prefill and decode processes on loopback, driven without a gateway."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from baton.v1 import generation_pb2
from tests.e2e.engine_reference import Reference
from tests.e2e.metrics_page import read_counter
from tests.e2e.pool_size import BLOCK_BYTES
from tests.e2e.prompts import prompt
from tests.e2e.split_client import SplitClient
from tests.e2e.trace_store import TraceStore
from tests.e2e.worker_process import WorkerProcess


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 32, 300])
async def test_greedy_tokens_equal_those_of_one_engine(
    client: SplitClient, reference: Reference, num_tokens: int
) -> None:
    tokens = prompt(num_tokens, seed=num_tokens)
    options: dict[str, Any] = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}
    assert await client.generate(tokens, **options) == reference.generate(tokens, **options)


async def test_requests_in_one_batch_equal_those_of_one_engine(
    client: SplitClient, reference: Reference
) -> None:
    options: list[dict[str, Any]] = [
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
    options: dict[str, Any] = {
        "choices": (0, 1, 2),
        "temperature": 1.0,
        "seed": 11,
        "max_tokens": 10,
    }
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
    options: dict[str, Any] = {"temperature": 0.0, "max_tokens": 4, "ignore_eos": True}
    first = await client.generate(tokens, **options)
    moved = [_bytes_moved(workers[1])]
    again = await client.begin(tokens, **options)
    assert await again.result() == first
    assert again.response is not None
    assert again.response.cached_tokens == 32
    moved.append(_bytes_moved(workers[1]))
    assert moved[1] - moved[0] == BLOCK_BYTES


async def test_a_prompt_of_known_whole_blocks_moves_nothing(
    client: SplitClient, workers: tuple[WorkerProcess, WorkerProcess]
) -> None:
    tokens = prompt(48, seed=4)
    options: dict[str, Any] = {"temperature": 0.0, "max_tokens": 4, "ignore_eos": True}
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
    assert _bytes_moved(workers[1]) - before == 7 * BLOCK_BYTES


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


def _bytes_moved(decode: WorkerProcess) -> float:
    return read_counter(decode, "baton_kv_transfer_bytes_total", transport="nixl")
