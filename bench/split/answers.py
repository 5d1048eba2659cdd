"""Asks for answers, and notes when each token came."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from baton.client import BatonClient
from bench.traffic import Arrival

# Any vocabulary has these.
NUM_TOKEN_IDS = 256


@dataclass(frozen=True, slots=True)
class Answer:
    """``times`` of its tokens, in seconds from the question."""

    trace_id: str
    times: tuple[float, ...]

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.times)]

    @property
    def is_good(self) -> bool:
        """First token within 500 ms, 15 ms a token, 99 of 100 gaps within 50 ms."""
        gaps = sorted(self.gaps) or [0.0]
        mean, worst = sum(gaps) / len(gaps), gaps[len(gaps) * 99 // 100]
        return self.times[0] <= 0.5 and mean <= 0.015 and worst <= 0.05


def prompt_of(length: int, seed: int) -> list[int]:
    """Tokens that share no prefix with those of another seed."""
    generator = random.Random(seed)
    return [generator.randrange(NUM_TOKEN_IDS) for _ in range(length)]


async def ask(client: BatonClient, prompt: Sequence[int], num_tokens: int) -> Answer:
    times: list[float] = []
    trace_id = ""
    began = time.perf_counter()
    async for message in client.stream(
        prompt, max_tokens=num_tokens, ignore_eos=True, temperature=0.0
    ):
        came = sum(len(delta.token_ids) for delta in message.deltas)
        times += [time.perf_counter() - began] * came
        trace_id = message.summary.request_id or trace_id
    assert len(times) == num_tokens, f"{len(times)} tokens of {num_tokens}"
    return Answer(trace_id, tuple(times))


async def ask_as_they_arrive(client: BatonClient, arrivals: Sequence[Arrival]) -> list[Answer]:
    """Every request at its time, whatever has become of those before."""
    began = time.perf_counter()

    async def one(number: int, arrival: Arrival) -> Answer:
        prompt = prompt_of(arrival.prompt_tokens, seed=1_000_000 + number)
        await asyncio.sleep(arrival.at - (time.perf_counter() - began))
        return await ask(client, prompt, arrival.output_tokens)

    return await asyncio.gather(*(one(number, each) for number, each in enumerate(arrivals)))


async def gaps_of_full_batch(
    client: BatonClient, num_streams: int, context: int, num_tokens: int
) -> list[float]:
    """Seconds between tokens while all streams run."""
    answers = await asyncio.gather(
        *(ask(client, prompt_of(context, seed), num_tokens) for seed in range(num_streams))
    )
    last_start = max(answer.times[1] for answer in answers)
    first_end = min(answer.times[-1] for answer in answers)
    return [
        later - earlier
        for answer in answers
        for earlier, later in pairwise(answer.times)
        if earlier > last_start and later <= first_end
    ]
