"""A thousand streams on a tiny model: what they get, and what the services keep of it."""

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from batonctl.service_spec import Role
from bench.load.clients import ClientProcess
from bench.load.outcome import Outcome
from bench.load.samples import Sample, mb_per_minute, take_sample
from bench.load.stack import loaded_stack
from bench.results import Figure
from bench.stack import Stack
from bench.tiny_model import pool_of, write_tiny_model

PROMPT_TOKENS, MAX_TOKENS = 32, 200
BLOCK_TOKENS = 16
# The last ones always wait for admission, so that the queue is full whenever somebody else asks.
NUM_WAITING = 16
NUM_CLIENT_PROCESSES = 2
SAMPLE_SECONDS = 5.0
REFUSAL_SECONDS = 0.25
# More than the longest time for which anybody may hold a block that nobody asks for.
QUIET_SECONDS = 30.0
# What grows before it levels off: caches, and pages of the pools that were never touched.
SETTLING_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Course:
    """Samples of each role in order, those after the settling apart, and what stayed held."""

    samples: dict[Role, list[Sample]]
    settled: dict[Role, list[Sample]]
    blocks_left: dict[Role, int]
    outcome: Outcome


async def measure_open_streams(num_streams: int, seconds: float, folder: Path) -> list[Figure]:
    """Runs for so long; the load is that of two client processes and a quiet third one."""
    model = write_tiny_model(folder / "tiny")
    # A pool becomes resident block by block, so they are just so large that it happens soon. Decode
    # has room for every stream at its full length, and the block that each may grow into.
    decode_pool = pool_of(num_streams * (PROMPT_TOKENS + MAX_TOKENS + 2 * BLOCK_TOKENS))
    prefill_pool = pool_of(num_streams * PROMPT_TOKENS // 2)
    waiting = [f"--max-queue={num_streams + NUM_WAITING}"]
    flags = {
        Role.GATEWAY: [
            f"--max-in-flight={num_streams}",
            f"--max-queue={NUM_WAITING}",
            f"--max-queue-seconds={seconds}",
        ],
        Role.PREFILL: [*prefill_pool, *waiting],
        Role.DECODE: [*decode_pool, *waiting, f"--max-decode-batch={num_streams}"],
    }
    async with loaded_stack(model, folder, flags) as stack:
        return _figures(num_streams, await _run(stack, num_streams, seconds))


async def _run(stack: Stack, num_streams: int, seconds: float) -> Course:
    address = stack[Role.GATEWAY].address
    options = {"prompt_tokens": PROMPT_TOKENS, "max_tokens": MAX_TOKENS}
    clients = [
        await ClientProcess.start(
            "streams",
            address,
            seed=number,
            streams=(num_streams + NUM_WAITING) // NUM_CLIENT_PROCESSES,
            **options,
        )
        for number in range(NUM_CLIENT_PROCESSES)
    ]
    began = time.monotonic()
    settling = min(SETTLING_SECONDS, seconds / 2)
    samples: dict[Role, list[Sample]] = {role: [] for role in stack}
    try:
        samples = await _watch(stack, settling / 2)
        clients.append(
            await ClientProcess.start("refusals", address, every=REFUSAL_SECONDS, **options)
        )
        for role, more in (await _watch(stack, seconds - settling / 2)).items():
            samples[role] += more
        outcomes = [await client.outcome(stop=True) for client in clients]
    finally:
        for client in clients:
            client.kill()
    settled = {
        role: [each for each in series if each.at - began > settling]
        for role, series in samples.items()
    }
    blocks_left = {role: await _blocks_left(stack, role) for role in (Role.PREFILL, Role.DECODE)}
    outcome = sum(outcomes, Outcome())
    return Course(samples, settled, blocks_left, outcome)


async def _watch(stack: Stack, seconds: float) -> dict[Role, list[Sample]]:
    series: dict[Role, list[Sample]] = {role: [] for role in stack}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await asyncio.sleep(SAMPLE_SECONDS)
        for role, service in stack.items():
            series[role].append(await take_sample(service))
        print(
            "  ".join(
                f"{role} {s.rss_mb:.1f} MB {s.descriptors} fds {s.threads} threads "
                f"{s.tasks} tasks {s.running} running"
                for role, s in ((role, each[-1]) for role, each in series.items())
            ),
            flush=True,
        )
    return series


async def _blocks_left(stack: Stack, role: Role) -> int:
    """Blocks that are held although nobody asks any more."""
    end = time.monotonic() + QUIET_SECONDS
    while True:
        left = (await take_sample(stack[role])).blocks
        if not left or time.monotonic() > end:
            return left
        await asyncio.sleep(1.0)


def _figures(num_streams: int, course: Course) -> list[Figure]:
    outcome = course.outcome
    peak = max(sample.running for sample in course.samples[Role.DECODE])
    waited = ", ".join(f"{count} {reason}" for reason, count in sorted(outcome.failures.items()))
    figures = [
        Figure("load.streams", num_streams, "streams", note=f"{outcome.num_answers} answers"),
        Figure("load.decoding.peak", peak, "requests in a step"),
    ]
    for role in Role:
        settled = course.settled[role]
        first, last = settled[0], settled[-1]
        figures.append(
            Figure(
                f"load.rss.{role}.mb_per_min",
                round(mb_per_minute(settled), 3),
                "MB/minute",
                note=f"{first.rss_mb:.1f} MB, and {last.rss_mb:.1f} MB "
                f"{(last.at - first.at) / 60:.1f} minutes later",
            )
        )
    figures += [
        Figure("load.fds.growth", _growth(course, "descriptors"), "descriptors"),
        Figure("load.threads.growth", _growth(course, "threads"), "threads"),
        Figure("load.tasks.growth", _growth(course, "tasks"), "tasks"),
        Figure("load.blocks.left", sum(course.blocks_left.values()), "blocks"),
        _milliseconds("load.gap.p50.ms", outcome.gaps, 50),
        _milliseconds("load.gap.p99.ms", outcome.gaps, 99),
        _milliseconds("load.gap.max.ms", outcome.gaps, 100, "the longest silence of a stream"),
        _milliseconds("load.refusal.p50.ms", outcome.refusals, 50, "of a quiet client's process"),
        _milliseconds(
            "load.refusal.p99.ms", outcome.refusals, 99, f"{len(outcome.refusals)} refusals"
        ),
        Figure("load.failures", sum(outcome.failures.values()), "requests", note=waited or None),
    ]
    return figures


def _growth(course: Course, what: str) -> int:
    """Of all services after the settling, from its first half to its second.

    The least of each half: whoever reads a metrics page adds a connection and a thread.
    """
    growth = 0
    for series in course.settled.values():
        values = [getattr(sample, what) for sample in series]
        half = len(values) // 2
        growth += min(values[half:]) - min(values[:half])
    return growth


def _milliseconds(
    name: str, seconds: Sequence[float], percent: int, note: str | None = None
) -> Figure:
    return Figure(name, round(percentile(seconds, percent) * 1e3, 2), "ms", note=note)


def percentile(values: Sequence[float], percent: int) -> float:
    """The value that so many of a hundred do not exceed."""
    if percent == 100 or len(values) < 2:
        return max(values, default=0.0)
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
