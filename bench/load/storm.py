"""Requests of a real model that keep their latency while many more are refused."""

import asyncio
import statistics
from pathlib import Path

from batonctl.service_spec import Role
from bench.load.clients import ClientProcess
from bench.load.outcome import Outcome
from bench.load.samples import take_sample
from bench.load.stack import loaded_stack
from bench.results import Figure
from bench.stack import Stack

PROMPT_TOKENS, MAX_TOKENS = 16, 16
# Refused in a second, in admitted requests.
STORM_FACTOR = 1.0
POLL_SECONDS = 0.05


async def measure_storm(num_streams: int, rounds: int, model: str, folder: Path) -> list[Figure]:
    """Alone and under the storm in turns; each figure is the median over the rounds."""
    flags = {
        Role.GATEWAY: [f"--max-in-flight={num_streams}", "--max-queue=0"],
        Role.PREFILL: [],
        Role.DECODE: [],
    }
    alone, stormy = [], []
    async with loaded_stack(model, folder, flags) as stack:
        for number in range(rounds):
            alone.append(await _round(stack, num_streams, 2 * number, storm=False))
            stormy.append(await _round(stack, num_streams, 2 * number + 1, storm=True))
    num_refused = sum(len(each.refusals) for each in stormy)
    note = f"{num_refused / rounds / num_streams:.1f} times as many requests were refused meanwhile"
    return [
        *_pair(
            "itl",
            "time per token",
            [_median(each.token_times) for each in alone],
            [_median(each.token_times) for each in stormy],
            note,
        ),
        *_pair(
            "ttft",
            "time to first token",
            [_median(each.first_tokens) for each in alone],
            [_median(each.first_tokens) for each in stormy],
            note,
        ),
    ]


async def _round(stack: Stack, num_streams: int, seed: int, *, storm: bool) -> Outcome:
    address = stack[Role.GATEWAY].address
    options = {"prompt_tokens": PROMPT_TOKENS, "max_tokens": MAX_TOKENS}
    streams = await ClientProcess.start(
        "streams", address, seed=seed, streams=num_streams, once=True, **options
    )
    clients = [streams]
    try:
        if storm:
            await _until_full(stack, num_streams)
            pace = 1.0 / (STORM_FACTOR * num_streams)
            clients.append(
                await ClientProcess.start("refusals", address, every=pace, seed=seed, **options)
            )
        outcome = await streams.outcome(stop=False)
        return sum([await each.outcome(stop=True) for each in clients[1:]], outcome)
    finally:
        for client in clients:
            client.kill()


async def _until_full(stack: Stack, num_streams: int) -> None:
    """Returns once all places are taken."""
    while True:
        if (await take_sample(stack[Role.GATEWAY])).running >= num_streams:
            return
        await asyncio.sleep(POLL_SECONDS)


def _pair(name: str, what: str, alone: list[float], stormy: list[float], note: str) -> list[Figure]:
    before, after = statistics.median(alone), statistics.median(stormy)
    return [
        Figure(f"load.smollm2.{name}.alone.ms", round(before * 1e3, 1), "ms", note=what),
        Figure(f"load.smollm2.{name}.storm.ms", round(after * 1e3, 1), "ms", note=what),
        Figure(f"load.smollm2.{name}.ratio", round(after / before, 3), "storm / alone", note=note),
    ]


def _median(values: list[float]) -> float:
    return statistics.median(values)
