"""A decode pool far too small for what runs in it: requests go on in new attempts, none is lost."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from baton.client import BatonClient
from baton.v1.gateway_pb2 import GenerateResponse
from tests.e2e.engine_reference import Reference
from tests.e2e.gateway_process import gateway_for
from tests.e2e.pool_size import pool_of
from tests.e2e.prompts import prompt
from tests.e2e.split_client import split_client
from tests.e2e.trace_store import TraceStore
from tests.e2e.worker_process import WorkerProcess, running

# Room for two of the requests at their full length.
POOL = pool_of(12)
NUM_TOKENS = 64
OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.8, "top_k": 40, "seed": 1, "logprobs": 2},
    {"temperature": 0.0, "repetition_penalty": 1.2, "frequency_penalty": 0.5},
    {"temperature": 0.9, "top_k": 40, "seed": 2, "n": 2},
    {"temperature": 0.7, "top_p": 0.8, "seed": 3, "min_tokens": 60, "presence_penalty": 1.0},
    {"temperature": 0.0, "logit_bias": {28: -100.0}, "logprobs": 0},
]


@pytest.fixture(scope="module")
def small_decode(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[WorkerProcess, Path]]:
    traces = tmp_path_factory.mktemp("traces")
    with running("decode", *POOL, trace_directory=traces) as decode:
        yield decode.wait_ready(), traces


async def test_preempted_requests_are_resumed_through_the_gateway(
    workers: tuple[WorkerProcess, WorkerProcess],
    small_decode: tuple[WorkerProcess, Path],
    reference: Reference,
) -> None:
    requests = [
        (prompt(16, seed=900 + index), {"max_tokens": NUM_TOKENS, "ignore_eos": True, **options})
        for index, options in enumerate(OPTIONS)
    ]
    decode, traces = small_decode
    with gateway_for([workers[0]], [decode], traces) as address:
        async with BatonClient(address) as client, split_client(workers[0], decode) as watcher:
            answers = await asyncio.gather(
                *(client.generate(tokens, **options) for tokens, options in requests)
            )
            await watcher.all_blocks_back()
        resumed = [await num_resumed(TraceStore(traces), answer) for answer in answers]
    assert sum(number > 0 for number in resumed) >= 2
    expected = reference.complete(requests)
    for answer, completions, (tokens, options) in zip(answers, expected, requests, strict=True):
        got = [list(choice.token_ids) for choice in answer.choices]
        assert got == [list(completion.token_ids) for completion in completions]
        for choice, completion in zip(answer.choices, completions, strict=True):
            assert [each.chosen.token_id for each in choice.logprobs] == [
                each.token_id for each in completion.logprobs
            ]
        # Whatever had to be computed again, usage is what the client sent and got.
        assert answer.usage.prompt_tokens == len(tokens)
        assert answer.usage.completion_tokens == NUM_TOKENS * options.get("n", 1)


async def num_resumed(store: TraceStore, answer: GenerateResponse) -> int:
    events = await store.events(answer.request_id, "Generate", "retry")
    assert {event.attributes["baton.reason"] for event in events} <= {"PREEMPTED"}
    return len(events)
