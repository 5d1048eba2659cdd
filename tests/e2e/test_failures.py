"""Any process may die at any moment: requests go on, and answers stay right (protocol 5)."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from baton.client import BatonClient
from batonctl.ports import find_free_ports
from bench.tiny_model import tiny_prompt
from chassis.errors import Unavailable
from tests.e2e.gateway_process import until_counted
from tests.e2e.metrics_page import read_counter
from tests.e2e.service_process import ServiceProcess, running_service
from tests.e2e.split_client import split_client
from tests.e2e.worker_process import WorkerProcess, running

POOL = ("--kv-memory-bytes", str(16 << 20))
NUM_STREAMS = 8
NUM_TOKENS = 200
ENDLESS: dict[str, Any] = {"temperature": 0.0, "max_tokens": 12_000, "ignore_eos": True}


@dataclass(slots=True)
class Stack:
    """A gateway over its workers, by role; a worker can be killed and replaced.

    The gateway knows one more address of each role, where nobody is at first.
    """

    gateway: ServiceProcess
    workers: dict[str, list[WorkerProcess]]
    spare_ports: dict[str, int]
    model: str
    traces: Path
    stack: ExitStack

    def kill(self, role: str, index: int = 0) -> WorkerProcess:
        worker = self.workers[role][index]
        worker.signal(signal.SIGKILL)
        worker.wait_exit()
        return worker

    def replace(self, role: str, index: int = 0, *, elsewhere: bool = False) -> WorkerProcess:
        """Another process where the killed one was, or at the spare address."""
        port = self.spare_ports[role] if elsewhere else self.workers[role][index].port
        worker = self.stack.enter_context(
            running(role, *POOL, trace_directory=self.traces, model=self.model, port=port)
        )
        self.workers[role][index] = worker
        return worker.wait_ready()


@contextmanager
def stack_of(
    model: str,
    traces: Path,
    num_prefill: int,
    num_decode: int,
    flags: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Iterator[Stack]:
    """``flags`` are those of a role's workers, beside the usual ones."""
    with ExitStack() as stack:
        roles = {"prefill": num_prefill, "decode": num_decode}
        workers = {
            role: [
                stack.enter_context(
                    running(role, *POOL, *flags.get(role, ()), trace_directory=traces, model=model)
                )
                for _ in range(number)
            ]
            for role, number in roles.items()
        }
        for worker in (*workers["prefill"], *workers["decode"]):
            worker.wait_ready()
        spare_ports = dict(zip(roles, find_free_ports(len(roles)), strict=True))
        peers = [
            f"--{role}-addresses="
            + ",".join([*(each.address for each in workers[role]), f"127.0.0.1:{port}"])
            for role, port in spare_ports.items()
        ]
        gateway = stack.enter_context(
            running_service("gateway", *peers, "--model", model, BATON_TRACE_DIR=str(traces))
        )
        gateway.wait_for_log("ready on")
        yield Stack(gateway, workers, spare_ports, model, traces, stack)


@pytest.fixture
def pairs(tiny_model: str, tmp_path: Path) -> Iterator[Stack]:
    """Two workers of each role."""
    with stack_of(tiny_model, tmp_path, 2, 2) as stack:
        yield stack


@pytest.fixture
def pair(tiny_model: str, tmp_path: Path) -> Iterator[Stack]:
    """One worker of each role."""
    with stack_of(tiny_model, tmp_path, 1, 1) as stack:
        yield stack


@pytest.fixture
def patient_pair(tiny_model: str, tmp_path: Path) -> Iterator[Stack]:
    """As ``pair``; by time alone prefill gives nothing up."""
    with stack_of(tiny_model, tmp_path, 1, 1, {"prefill": ("--handoff-timeout=600",)}) as stack:
        yield stack


async def until_ready(client: BatonClient, stack: Stack) -> None:
    """Returns once the gateway has met every worker."""
    await until_counted(client, **{role: len(each) for role, each in stack.workers.items()})


async def tokens_of(client: BatonClient, number: int) -> AsyncIterator[int]:
    """A long answer, every other one drawn, token by token."""
    stream = client.stream(
        tiny_prompt(100, seed=number),
        max_tokens=NUM_TOKENS,
        temperature=0.8 if number % 2 else 0.0,
        seed=number,
        ignore_eos=True,
    )
    async for message in stream:
        for delta in message.deltas:
            for token_id in delta.token_ids:
                yield token_id


async def answer_of(client: BatonClient, number: int) -> list[int]:
    return [token_id async for token_id in tokens_of(client, number)]


async def answers(client: BatonClient) -> list[list[int]]:
    return list(await asyncio.gather(*(answer_of(client, n) for n in range(NUM_STREAMS))))


async def answer_telling(
    then: "asyncio.Future[None]", client: BatonClient, number: int
) -> list[int]:
    """An answer; ``then`` is set once it is well under way."""
    tokens: list[int] = []
    async for token_id in tokens_of(client, number):
        tokens.append(token_id)
        if len(tokens) == 20 and not then.done():
            then.set_result(None)
    return tokens


async def answers_while(client: BatonClient, stack: Stack, role: str) -> list[list[int]]:
    """The same answers; a worker is killed once the first of them is under way."""
    under_way: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    streams = [
        asyncio.create_task(answer_telling(under_way, client, number))
        for number in range(NUM_STREAMS)
    ]
    await under_way
    await asyncio.to_thread(stack.kill, role)
    return list(await asyncio.gather(*streams))


@pytest.mark.slow
@pytest.mark.parametrize("role", ["decode", "prefill"])
async def test_killed_in_mid_stream_a_worker_costs_no_answer_and_changes_none(
    pairs: Stack, role: str
) -> None:
    async with BatonClient(pairs.gateway.address) as client:
        expected = await answers(client)
        assert await answers_while(client, pairs, role) == expected
        await asyncio.to_thread(pairs.replace, role)
        await until_ready(client, pairs)
        await asyncio.to_thread(pairs.kill, role, 1)
        assert await answers(client) == expected


@pytest.mark.slow
async def test_without_prefill_workers_decode_computes_prompts_until_one_is_back(
    pair: Stack,
) -> None:
    async with BatonClient(pair.gateway.address) as client:
        expected = await answers(client)
        assert await answers_while(client, pair, "prefill") == expected
        assert await answers(client) == expected
        counted = read_counter(pair.workers["decode"][0], "baton_local_prefills_total")
        assert counted >= NUM_STREAMS
        await asyncio.to_thread(pair.replace, "prefill", elsewhere=True)
        await until_ready(client, pair)
        assert await answers(client) == expected
        assert read_counter(pair.workers["decode"][0], "baton_local_prefills_total") == counted


@pytest.mark.slow
async def test_without_decode_workers_the_client_hears_so_at_once_until_one_is_back(
    pair: Stack,
) -> None:
    async with BatonClient(pair.gateway.address) as client:
        expected = await answers(client)
        under_way: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        stream = asyncio.create_task(answer_telling(under_way, client, 0))
        await under_way
        await asyncio.to_thread(pair.kill, "decode")
        for refused in (stream, answer_of(client, 1)):
            with pytest.raises(Unavailable) as caught:
                await refused
            assert caught.value.reason == "NO_DECODE_WORKER"
        await asyncio.to_thread(pair.replace, "decode", elsewhere=True)
        await until_ready(client, pair)
        assert await answers(client) == expected


@pytest.mark.slow
async def test_a_killed_gateway_leaves_nothing_on_the_workers_and_its_successor_serves_at_once(
    patient_pair: Stack,
) -> None:
    pair = patient_pair
    workers = pair.workers["prefill"][0], pair.workers["decode"][0]
    async with split_client(*workers) as watcher:
        async with BatonClient(pair.gateway.address) as client:
            expected = await answers(client)
            lost = [asyncio.create_task(client.generate(tiny_prompt(30, seed=1), **ENDLESS))]
            await watcher.watch_until("decode", lambda load: load.running > 0)
            lost += [asyncio.create_task(client.generate(tiny_prompt(20_000, seed=2), **ENDLESS))]
            await watcher.watch_until("prefill", lambda load: load.running > 0)
            lost += [asyncio.create_task(client.generate(tiny_prompt(300, seed=3), **ENDLESS))]
            await watcher.watch_until("prefill", lambda load: load.running + load.waiting > 1)
            # One decodes, of another one the prompt is being computed, and one waits for that.
            pair.gateway.signal(signal.SIGKILL)
            for outcome in await asyncio.gather(*lost, return_exceptions=True):
                assert isinstance(outcome, Unavailable), outcome
        # Nothing but the broken streams would end them: all time-outs are minutes away.
        await watcher.all_blocks_back()
        await asyncio.to_thread(pair.gateway.wait_exit)
        pair.gateway.start()
        await asyncio.to_thread(pair.gateway.wait_for_log, "ready on")
        async with BatonClient(pair.gateway.address) as client:
            assert await answers(client) == expected
        for role, boot_id in watcher.boot_ids.items():
            load = await watcher.watch_until(role, lambda load: True)
            assert load.info.boot_id == boot_id
