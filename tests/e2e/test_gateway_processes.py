"""Several gateway processes in front of the same workers, and how they stop."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.client import BatonClient
from chassis.errors import Unavailable
from tests.e2e.engine_reference import Reference
from tests.e2e.gateway_process import running_gateway
from tests.e2e.metrics_page import read_samples
from tests.e2e.prompts import prompt
from tests.e2e.service_process import ServiceProcess
from tests.e2e.split_client import SplitClient
from tests.e2e.worker_process import WorkerProcess

NUM_REQUESTS = 16
# However long the machine takes for an answer.
FLAGS = ("--workers", "2", "--drain-grace", "200")


@pytest.fixture
def gateways(
    workers: tuple[WorkerProcess, WorkerProcess], tmp_path: Path
) -> Iterator[ServiceProcess]:
    """Two processes, each with a session of its own to the decode worker."""
    with running_gateway([workers[0]], [workers[1]], tmp_path, *FLAGS) as gateway:
        gateway.wait_for_log("ready on", times=2)
        yield gateway


async def ask(address: str, token_ids: list[int]) -> list[int]:
    """On a connection of its own, which either process may take."""
    async with BatonClient(address) as client:
        answer = await client.generate(token_ids, temperature=0, max_tokens=8)
        return list(answer.choices[0].token_ids)


async def test_all_are_answered_and_one_page_counts_them(
    gateways: ServiceProcess, client: SplitClient, reference: Reference
) -> None:
    prompts = [prompt(20 + index, seed=12_000 + index) for index in range(NUM_REQUESTS)]
    answers = await asyncio.gather(*(ask(gateways.address, tokens) for tokens in prompts))
    sampling = {"temperature": 0.0, "max_tokens": 8}
    expected = reference.complete([(each, sampling) for each in prompts])
    assert answers == [list(completion.token_ids) for (completion,) in expected]
    counted = {
        sample.name: sample.value
        for sample in read_samples(gateways)
        if sample.name.endswith("_count") or sample.labels == {"code": "OK", "reason": ""}
    }
    assert counted["baton_requests_total"] == NUM_REQUESTS
    assert counted["gen_ai_server_time_to_first_token_seconds_count"] == NUM_REQUESTS
    await client.all_blocks_back()


async def test_a_gateway_that_is_told_to_stop_finishes_its_answers(
    gateways: ServiceProcess, client: SplitClient
) -> None:
    async with BatonClient(gateways.address) as baton:
        stream = baton.stream(
            prompt(20, seed=12_100), temperature=0, max_tokens=60, ignore_eos=True
        )
        messages = [await anext(stream)]
        gateways.terminate()
        gateways.wait_for_log("stopping: ", times=2)
        with pytest.raises(Unavailable):
            await baton.generate(prompt(20, seed=12_101), max_tokens=2)
        messages += [message async for message in stream]
    deltas = [delta for message in messages for delta in message.deltas]
    assert sum(len(delta.token_ids) for delta in deltas) == 60
    assert messages[-1].HasField("summary")
    assert await asyncio.to_thread(gateways.wait_exit) == 0
    await client.all_blocks_back()
