"""Every service of a stack is restarted in turn, under load: no request is lost (protocol 5.6)."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from baton.client import BatonClient
from bench.tiny_model import tiny_prompt
from chassis.model_store import resolve
from gateway.tokenizer import load_tokenizer
from tests.e2e.engine_reference import Reference
from tests.e2e.gateway_process import PATIENCE, running_gateway, until_counted
from tests.e2e.service_process import ServiceProcess
from tests.e2e.split_client import split_client
from tests.e2e.steady_load import Question, steady_load
from tests.e2e.tiny_model import POOL
from tests.e2e.worker_process import WorkerProcess, running

WIDTH = 6
SHORT = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True}
# Outlives the grace of a decode worker.
LONG = {"temperature": 0.0, "max_tokens": 900, "ignore_eos": True}
QUESTIONS = [
    Question(tiny_prompt(20 + 40 * number, seed=number), LONG if number % 4 == 0 else SHORT)
    for number in range(8)
]


@dataclass(frozen=True, slots=True)
class TwoOfEach:
    gateways: tuple[ServiceProcess, ServiceProcess]
    prefill: tuple[WorkerProcess, WorkerProcess]
    decode: tuple[WorkerProcess, WorkerProcess]


@pytest.fixture
def stack(tiny_model: str, tmp_path: Path) -> Iterator[TwoOfEach]:
    with ExitStack() as processes:

        def worker(role: str, *flags: str) -> WorkerProcess:
            context = running(role, *POOL, *flags, trace_directory=tmp_path, model=tiny_model)
            return processes.enter_context(context)

        prefill = worker("prefill"), worker("prefill")
        decode = worker("decode", "--drain-grace=1"), worker("decode", "--drain-grace=1")
        for each in (*prefill, *decode):
            each.wait_ready()
        model = ("--model", tiny_model)
        gateways = [
            # A busy machine may take more than the default for the longest answer.
            processes.enter_context(
                running_gateway(prefill, decode, tmp_path, *model, "--drain-grace=300")
            )
            for _ in range(2)
        ]
        yield TwoOfEach((gateways[0], gateways[1]), prefill, decode)


@pytest.fixture
async def operators(stack: TwoOfEach) -> AsyncIterator[list[BatonClient]]:
    """One for each gateway."""
    clients = [BatonClient(gateway.address) for gateway in stack.gateways]
    yield clients
    for client in clients:
        await client.close()


async def until_all_count(operators: list[BatonClient]) -> None:
    """Returns once every gateway sees two workers of each role."""
    for operator in operators:
        await until_counted(operator, prefill=2, decode=2)


async def restart(process: ServiceProcess) -> None:
    """As an operator does: SIGTERM, wait, start it again at the same address."""
    process.terminate()
    code = await asyncio.to_thread(process.wait_exit)
    assert code == 0, "".join(process.log)
    process.start()
    await asyncio.to_thread(process.wait_for_log, "ready on")


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_rolling_restart_of_every_service_loses_no_request(
    stack: TwoOfEach, operators: list[BatonClient], tiny_model: str
) -> None:
    await until_all_count(operators)
    addresses = [gateway.address for gateway in stack.gateways]
    async with steady_load(addresses, QUESTIONS, WIDTH) as load:
        for process in (*stack.gateways, *stack.prefill, *stack.decode):
            num_before = len(load.answers)
            await restart(process)
            await until_all_count(operators)
            assert load.failures == []
            async with asyncio.timeout(PATIENCE):
                while len(load.answers) < num_before + 2 * WIDTH:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
    assert load.failures == []
    completions = Reference(tiny_model).complete(
        [(question.token_ids, question.sampling) for question in QUESTIONS]
    )
    tokenizer = load_tokenizer(resolve(tiny_model).path)
    for answer in load.answers:
        expected = completions[answer.question][0].token_ids
        assert (answer.question, answer.token_ids) == (answer.question, expected)
        assert answer.text == tokenizer.decode(expected)
    for prefill, decode in zip(stack.prefill, stack.decode, strict=True):
        # Every block must be back.
        async with split_client(prefill, decode):
            pass
