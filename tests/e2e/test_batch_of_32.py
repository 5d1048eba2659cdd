"""Thirty-two requests in one batch of the split stack, each against itself alone, unsplit.

The model is small, so that each of them can be repeated.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest

from baton.client import BatonClient
from baton.v1.generation_pb2 import SamplingParams as SamplingParamsPb
from baton.v1.generation_pb2 import TokenLogprobs
from bench.tiny_model import tiny_prompt
from engine.config import EngineConfig
from engine.llm_engine import LLMEngine
from tests.e2e.engine_reference import EOS_TOKEN_IDS, Reference
from tests.e2e.gateway_process import gateway_for
from tests.e2e.split_client import split_client
from tests.e2e.tiny_model import POOL
from tests.e2e.worker_process import WorkerProcess, running
from tests.engine.near_ties import equal_up_to_a_near_tie
from worker.leg import params_from_pb

NUM_REQUESTS = 32
# Tokens that each gets while all of them run.
NUM_TOGETHER = 12
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_p": 0.9, "top_k": 50},
    {"temperature": 1.3, "min_p": 0.02, "repetition_penalty": 1.2},
)
Request: TypeAlias = tuple[list[int], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Stack:
    gateway: str
    prefill: WorkerProcess
    decode: WorkerProcess


@contextmanager
def stack(traces: Path, model: str, *flags: str) -> Iterator[Stack]:
    with ExitStack() as entered:
        prefill, decode = (
            entered.enter_context(running(role, *flags, trace_directory=traces, model=model))
            for role in ("prefill", "decode")
        )
        prefill.wait_ready()
        decode.wait_ready()
        address = entered.enter_context(gateway_for([prefill], [decode], traces, "--model", model))
        yield Stack(address, prefill, decode)


def sampling(index: int, kinds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """None ends by itself before the batch has been seen at work."""
    return {
        "seed": index,
        "logprobs": 2,
        "ignore_eos": True,
        "max_tokens": 4_000,
        **kinds[index % len(kinds)],
    }


async def answer_together(stack: Stack, requests: Sequence[Request]) -> list[list[TokenLogprobs]]:
    """What each request has received when all have got some in the same steps.

    The decode worker computes all that it runs in every step; none has left it meanwhile.
    """
    received: list[list[TokenLogprobs]] = [[] for _ in requests]
    news = asyncio.Condition()

    async def follow(place: int, client: BatonClient) -> None:
        token_ids, options = requests[place]
        async with aclosing(client.stream(token_ids, **options)) as messages:
            async for message in messages:
                async with news:
                    for delta in message.deltas:
                        received[place] += delta.logprobs
                    news.notify_all()

    async with (
        asyncio.timeout(100),
        split_client(stack.prefill, stack.decode) as watcher,
        BatonClient(stack.gateway) as client,
    ):
        following = [asyncio.create_task(follow(place, client)) for place in range(len(requests))]
        await watcher.watch_until("decode", lambda load: load.running == NUM_REQUESTS)
        enough = [len(each) + NUM_TOGETHER for each in received]
        async with news:
            await news.wait_for(
                lambda: all(
                    len(each) >= so_many for each, so_many in zip(received, enough, strict=True)
                )
            )
        last = await watcher.watch_until("decode", lambda load: True)
        assert last.load.running == NUM_REQUESTS
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
    return received


def make_requests(kinds: Sequence[dict[str, Any]]) -> list[Request]:
    return [
        (tiny_prompt(1 + 7 * index, seed=index), sampling(index, kinds))
        for index in range(NUM_REQUESTS)
    ]


async def test_float32_is_the_same_to_the_bit_as_alone_and_unsplit(
    tiny_model: str, traces: Path
) -> None:
    requests = make_requests(KINDS)
    with stack(traces, tiny_model, *POOL) as running_stack:
        received = await answer_together(running_stack, requests)
    alone = Reference(tiny_model)
    for (token_ids, options), got in zip(requests, received, strict=True):
        ((expected,),) = alone.complete([(token_ids, {**options, "max_tokens": len(got)})])
        assert [each.chosen.token_id for each in got] == list(expected.token_ids)
        for actual, known in zip(got, expected.logprobs, strict=True):
            assert actual.chosen.logprob == known.logprob
            assert [(top.token_id, top.logprob) for top in actual.top] == list(known.top)


@pytest.mark.parametrize("quantization", ["none", "q4"], ids=["bfloat16", "q4"])
async def test_lower_precision_differs_from_alone_and_unsplit_only_at_near_ties(
    tiny_model: str, quantization: Literal["none", "q4"], traces: Path
) -> None:
    """Without truncation, whose border is a near-tie of its own."""
    requests = make_requests(KINDS[:2])
    flags = ("--dtype", "bfloat16", "--quantization", quantization, *POOL)
    with stack(traces, tiny_model, *flags) as running_stack:
        received = await answer_together(running_stack, requests)
    engine = LLMEngine(
        EngineConfig(
            tiny_model, dtype="bfloat16", quantization=quantization, kv_memory_bytes=64 << 20
        )
    )
    num_equal = 0
    for (token_ids, options), got in zip(requests, received, strict=True):
        params = params_from_pb(SamplingParamsPb(**options), 1_000, EOS_TOKEN_IDS)
        tokens = [each.chosen.token_id for each in got]
        num_equal += equal_up_to_a_near_tie(engine, token_ids, params, tokens)
    assert num_equal > NUM_REQUESTS * NUM_TOGETHER // 2
