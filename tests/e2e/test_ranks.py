"""Workers of two ranks each, over NIXL between each rank and its like (protocol 4.3)."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from baton.client import BatonClient
from batonctl.ports import find_free_ports, is_free
from bench.tiny_model import tiny_prompt
from tests.batonctl.command import Running
from tests.e2e.engine_reference import Reference
from tests.e2e.rank_processes import rank_pids, until_gone
from tests.e2e.split_client import is_quiet, split_client
from tests.e2e.tiny_model import POOL
from tests.e2e.worker_process import WorkerProcess, running

RANKS = ("--tensor-parallel-size", "2")
PROMPTS = [tiny_prompt(length, seed=length) for length in (1, 16, 40, 130, 300)]
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}
LONG: dict[str, Any] = {**GREEDY, "max_tokens": 30_000}
# Long enough to be under way when a rank dies, and not much longer.
ANSWER: dict[str, Any] = {**GREEDY, "max_tokens": 400}


@contextmanager
def worker_pair(
    model: str, traces: Path, prefill: tuple[str, ...] = RANKS
) -> Iterator[tuple[WorkerProcess, WorkerProcess]]:
    """A prefill worker, and a decode worker of two ranks; both are ready."""
    with (
        running("prefill", *POOL, *prefill, trace_directory=traces, model=model) as first,
        running("decode", *POOL, *RANKS, trace_directory=traces, model=model) as second,
    ):
        yield first.wait_ready(), second.wait_ready()


@pytest.mark.slow
async def test_two_ranks_on_both_sides_give_the_tokens_of_one_process(
    tiny_model: str, tmp_path: Path
) -> None:
    with worker_pair(tiny_model, tmp_path, (*RANKS, "--checksums")) as workers:
        async with split_client(*workers) as client:
            answers = [(await client.generate(prompt, **GREEDY))[0] for prompt in PROMPTS]
            forked = await client.generate(PROMPTS[3], choices=(0, 1, 2), **GREEDY)
        ranks = [os.pidfd_open(pid) for worker in workers for pid in rank_pids(worker.pid)]
        for worker in workers:
            worker.terminate()
        assert [await asyncio.to_thread(worker.wait_exit) for worker in workers] == [0, 0]
        for rank in ranks:
            await until_gone(rank)
    expected = Reference(tiny_model).complete([(prompt, GREEDY) for prompt in PROMPTS])
    assert answers == [list(completion.token_ids) for (completion,) in expected]
    assert forked == dict.fromkeys(range(3), answers[3])
    assert len(ranks) == 2


@pytest.mark.slow
async def test_workers_of_other_numbers_of_ranks_are_refused_with_both(
    tiny_model: str, tmp_path: Path
) -> None:
    with worker_pair(tiny_model, tmp_path, ()) as workers:
        async with split_client(*workers) as client:
            finished = await (await client.begin(PROMPTS[2], **GREEDY)).outcome()
    assert finished.failure.reason == "LAYOUT_MISMATCH"
    assert "decode has '2: heads 0..0, heads 1..1'" in finished.failure.message
    assert "prefill has '1: heads 0..1'" in finished.failure.message


async def test_a_model_that_cannot_be_divided_ends_a_worker_at_its_start(
    tiny_model: str, tmp_path: Path
) -> None:
    flags = (*POOL, "--tensor-parallel-size", "4")
    with running("decode", *flags, trace_directory=tmp_path, model=tiny_model) as worker:
        assert await asyncio.to_thread(worker.wait_exit) == 1
    assert "cannot start: 2 KV heads cannot be divided among 4 ranks" in "".join(worker.log)


@pytest.mark.slow
async def test_the_end_of_a_rank_is_that_of_its_worker_and_of_all_ranks(
    tiny_model: str, tmp_path: Path
) -> None:
    """Prefill loses one while it is idle, decode its first while it computes."""
    with worker_pair(tiny_model, tmp_path) as (prefill, decode):
        async with split_client(prefill, decode, outlived=False) as client:
            attempt = await client.begin(PROMPTS[2], **LONG)
            await attempt.stepped.wait()
            await client.watch_until("prefill", is_quiet)
            (rank,) = rank_pids(prefill.pid)
            os.kill(rank, signal.SIGKILL)
            assert await asyncio.to_thread(prefill.wait_exit) == 1
            (rank,) = rank_pids(decode.pid)
            left = os.pidfd_open(rank)
            # A stopped process does nothing by itself.
            os.kill(rank, signal.SIGSTOP)
            decode.signal(signal.SIGKILL)
            await until_gone(left)
    assert "RankLost: rank 1 was ended by signal 9" in "".join(prefill.log)


@pytest.mark.slow
async def test_answers_outlive_a_rank_of_either_worker_which_comes_back(
    tiny_model: str, tmp_path: Path
) -> None:
    """Of one decode worker of two while both compute, and of the only prefill worker."""
    gateway, prefill, *others = find_free_ports(20)
    # Two decode workers take two ports.
    decode = next(port for port in others if is_free(port + 1) and is_free(port + 1001))
    ports = {"gateway": gateway, "prefill": prefill, "decode": decode}
    flags = [f"--{role}-port={port}" for role, port in ports.items()]
    flags += ["--model", tiny_model, "--dtype=float32", "--decode-workers=2", *RANKS]
    with Running("up", *flags, env={"BATON_TRACE_DIR": str(tmp_path)}) as up:
        await asyncio.to_thread(up.wait_line, "ready at")
        async with BatonClient(f"127.0.0.1:{ports['gateway']}") as client:
            streams = [client.stream(prompt, **ANSWER) for prompt in PROMPTS[:4]]
            begun = [await _tokens(stream, 2) for stream in streams]
            await _lose_rank(up, "decode-0", ports["decode"])
            rest = await asyncio.gather(*(_tokens(stream) for stream in streams))
            await asyncio.to_thread(up.wait_line, "decode-0 is ready again")
            await _lose_rank(up, "prefill-0", ports["prefill"])
            streams = [client.stream(prompt, **ANSWER) for prompt in PROMPTS[:4]]
            again = await asyncio.gather(*(_tokens(stream) for stream in streams))
            await asyncio.to_thread(up.wait_line, "prefill-0 is ready again")
        up.interrupt()
        assert await asyncio.to_thread(up.wait) == 0
    completions = Reference(tiny_model).complete([(prompt, ANSWER) for prompt in PROMPTS[:4]])
    expected = [list(completion.token_ids) for (completion,) in completions]
    assert [first + last for first, last in zip(begun, rest, strict=True)] == expected
    assert again == expected


async def _tokens(stream: AsyncIterator[Any], at_least: int | None = None) -> list[int]:
    """The next tokens of an answer, or all that are left."""
    tokens: list[int] = []
    async for message in stream:
        tokens += [token for delta in message.deltas for token in delta.token_ids]
        if at_least is not None and len(tokens) >= at_least:
            break
    return tokens


async def _lose_rank(up: Running, name: str, port: int) -> None:
    """Kills the second rank of the worker there; returns once the supervisor has noticed."""
    (worker,) = (pid for pid in up.children() if f"--port={port}" in _arguments(pid))
    (rank,) = rank_pids(worker)
    os.kill(rank, signal.SIGKILL)
    await asyncio.to_thread(up.wait_line, "rank 1 was ended by signal 9")
    await asyncio.to_thread(up.wait_line, f"{name} died (exit code 1)")


def _arguments(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
