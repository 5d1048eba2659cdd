"""Workers of one and two ranks, over NIXL between those that hold the same heads (protocol 4.3)."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from baton.client import BatonClient
from batonctl.ports import find_free_ports, is_free
from bench.tiny_model import tiny_prompt
from tests.batonctl.command import Running
from tests.e2e.engine_reference import Reference
from tests.e2e.gateway_process import gateway_for
from tests.e2e.metrics_page import read_counter
from tests.e2e.rank_processes import rank_pids, until_gone
from tests.e2e.split_client import is_quiet, split_client
from tests.e2e.tiny_model import BLOCK_BYTES, POOL
from tests.e2e.worker_process import WorkerProcess, running

RANKS = ("--tensor-parallel-size", "2")
PROMPTS = [tiny_prompt(length, seed=length) for length in (1, 16, 40, 130, 300)]
NUM_BLOCKS = sum(-(-len(prompt) // 16) for prompt in PROMPTS)
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}
LONG: dict[str, Any] = {**GREEDY, "max_tokens": 30_000}
# Long enough to be under way when a rank dies, and not much longer.
ANSWER: dict[str, Any] = {**GREEDY, "max_tokens": 400}


@contextmanager
def worker_pair(model: str, traces: Path) -> Iterator[tuple[WorkerProcess, WorkerProcess]]:
    """A prefill and a decode worker of two ranks each; both are ready."""
    with (
        running("prefill", *POOL, *RANKS, trace_directory=traces, model=model) as prefill,
        running("decode", *POOL, *RANKS, trace_directory=traces, model=model) as decode,
    ):
        yield prefill.wait_ready(), decode.wait_ready()


@contextmanager
def workers_of_all_sizes(
    model: str, traces: Path
) -> Iterator[dict[tuple[str, int], WorkerProcess]]:
    """By role and number of ranks; all are ready."""
    with ExitStack() as stack:
        workers = {
            (role, size): stack.enter_context(
                running(
                    role,
                    *(*POOL, "--tensor-parallel-size", str(size)),
                    *(("--checksums",) if role == "prefill" else ()),
                    trace_directory=traces,
                    model=model,
                )
            )
            for role in ("prefill", "decode")
            for size in (1, 2)
        }
        yield {which: worker.wait_ready() for which, worker in workers.items()}


@pytest.mark.slow
async def test_any_numbers_of_ranks_on_both_sides_give_the_tokens_of_one_process(
    tiny_model: str, tmp_path: Path
) -> None:
    expected = Reference(tiny_model).complete([(prompt, GREEDY) for prompt in PROMPTS])
    answers = [list(completion.token_ids) for (completion,) in expected]
    with workers_of_all_sizes(tiny_model, tmp_path) as workers:
        for sizes in ((2, 2), (1, 2), (2, 1)):
            prefill, decode = workers["prefill", sizes[0]], workers["decode", sizes[1]]
            # No pair shares what it has with another.
            common = {**GREEDY, "salt": bytes(sizes)}
            async with split_client(prefill, decode) as client:
                moved = [bytes_moved(decode)]
                assert [(await client.generate(each, **common))[0] for each in PROMPTS] == answers
                moved.append(bytes_moved(decode))
                forked = await client.generate(PROMPTS[3], choices=(0, 1, 2), **common)
                assert forked == dict.fromkeys(range(3), answers[3])
                moved.append(bytes_moved(decode))
                assert await client.generate(PROMPTS[1], **common) == {0: answers[1]}
                moved.append(bytes_moved(decode))
            # Of a prompt that is known but for its end only that moves, of whole blocks nothing.
            blocks = [(late - early) // BLOCK_BYTES for early, late in pairwise(moved)]
            assert blocks == [NUM_BLOCKS, 1, 0], sizes
        unlike = [workers["prefill", 1]], [workers["decode", 2]]
        with gateway_for(*unlike, tmp_path, "--model", tiny_model) as address:
            async with BatonClient(address) as baton:
                answer = await baton.generate(PROMPTS[4], **GREEDY)
        assert list(answer.choices[0].token_ids) == answers[4]
        ranks = [os.pidfd_open(pid) for each in workers.values() for pid in rank_pids(each.pid)]
        for worker in workers.values():
            worker.terminate()
        ends = [await asyncio.to_thread(worker.wait_exit) for worker in workers.values()]
        assert ends == [0, 0, 0, 0]
        for rank in ranks:
            await until_gone(rank)
    assert len(ranks) == 2


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


def bytes_moved(decode: WorkerProcess) -> float:
    return read_counter(decode, "baton_kv_transfer_bytes_total", transport="nixl")


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
