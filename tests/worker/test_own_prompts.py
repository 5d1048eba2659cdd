"""Where no prefill worker is left, decode computes the prompt itself (protocol 5.5)."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from baton.v1 import decode_pb2, worker_pb2
from tests.worker.pair import WorkerPair, worker_pair

PROMPT = [7, 11, 13] * 17
LONG_ANSWER: dict[str, Any] = {"max_tokens": 300, "ignore_eos": True}


def has_made(steps: int, load: worker_pb2.WorkerLoad) -> bool:
    return load.steps >= steps


async def own(pair: WorkerPair, token_ids: list[int], **options: Any) -> dict[int, list[int]]:
    return await pair.client.generate(token_ids, own_prompt=True, **options)


async def test_the_answer_is_that_of_the_split(tiny_model: Path) -> None:
    sampling: dict[str, Any] = {
        "max_tokens": 20,
        "temperature": 0.9,
        "seed": 7,
        "choices": (0, 1, 2),
    }
    async with worker_pair(tiny_model) as pair:
        split = await pair.client.generate(PROMPT, **sampling)
    # Another pair: nothing is cached.
    async with worker_pair(tiny_model) as pair:
        assert await own(pair, PROMPT, **sampling) == split
        await pair.client.all_blocks_back()


async def test_many_at_once_answer_as_each_alone(tiny_model: Path) -> None:
    prompts = [[token, 11, 13] * (5 + token) for token in range(3, 15)]
    async with worker_pair(tiny_model) as pair:
        alone = [await own(pair, prompt, max_tokens=12) for prompt in prompts]
    async with worker_pair(tiny_model) as pair:
        together = await asyncio.gather(*(own(pair, prompt, max_tokens=12) for prompt in prompts))
        await pair.client.all_blocks_back()
    assert list(together) == alone


async def test_a_continuation_goes_on_where_its_tokens_end(tiny_model: Path) -> None:
    async with worker_pair(tiny_model) as pair:
        whole = (await own(pair, PROMPT, max_tokens=16, temperature=1.0, seed=3))[0]
        rest = await own(
            pair,
            [*PROMPT, *whole[:6]],
            num_prompt_tokens=len(PROMPT),
            max_tokens=16,
            temperature=1.0,
            seed=3,
        )
    assert rest[0] == whole[6:]


async def test_it_says_how_the_prompt_went(tiny_model: Path) -> None:
    async with worker_pair(tiny_model) as pair:
        await own(pair, PROMPT, max_tokens=2)
        attempt = await pair.client.begin(PROMPT, own_prompt=True, max_tokens=2)
        finished = await attempt.outcome()
        assert finished.prompt.cached_tokens == (len(PROMPT) - 1) // 4 * 4
        assert finished.prompt.compute.ToNanoseconds() > 0
        registry = pair.parts["decode"].metrics.registry
        assert registry.get_sample_value("baton_local_prefills_total") == 2


async def test_a_prompt_of_one_token_of_output_is_answered(tiny_model: Path) -> None:
    async with worker_pair(tiny_model) as pair:
        assert len((await own(pair, PROMPT, max_tokens=1))[0]) == 1
        await pair.client.all_blocks_back()


async def test_cancelled_at_any_moment_it_gives_every_block_back(tiny_model: Path) -> None:
    async with worker_pair(tiny_model) as pair:
        for num_steps in range(12):
            before = (await pair.client.watch_until("decode", lambda load: True)).load.steps
            attempt = await pair.client.begin(PROMPT * 3, own_prompt=True, **LONG_ANSWER)
            await pair.client.watch_until("decode", partial(has_made, before + num_steps))
            await pair.client.cancel(attempt)
            finished = await attempt.outcome()
            assert finished.outcome == decode_pb2.OUTCOME_CANCELLED
            await pair.client.all_blocks_back()
