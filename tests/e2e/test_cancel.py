"""Many clients at once, most of whom leave at any moment: the rest is right, no block is lost."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import pytest

from baton.client import BatonClient
from chassis.errors import Cancelled, DeadlineExceeded
from tests.e2e.engine_reference import Reference
from tests.e2e.gateway_process import running_gateway
from tests.e2e.metrics_page import read_counter
from tests.e2e.pool_size import pool_of
from tests.e2e.prompts import prompt
from tests.e2e.service_process import ServiceProcess
from tests.e2e.split_client import SplitClient, split_client
from tests.e2e.worker_process import WorkerProcess, running

NUM_LEAVERS = 40
TINY = pool_of(64)
STAYERS: list[tuple[list[int], dict[str, Any]]] = [
    (prompt(40 + 30 * number, seed=11_000 + number), {"temperature": 0.0, "max_tokens": 20})
    for number in range(6)
]


@pytest.fixture(scope="module", params=["roomy", "tiny"])
def pair(
    request: pytest.FixtureRequest,
    workers: tuple[WorkerProcess, WorkerProcess],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[WorkerProcess, WorkerProcess]]:
    """Two workers, whose pools hold either everything at once or two or three requests."""
    if request.param == "roomy":
        yield workers
        return
    traces = tmp_path_factory.mktemp("traces")
    with (
        running("prefill", *TINY, "--revoke-after", "0.1", trace_directory=traces) as prefill,
        running("decode", *TINY, trace_directory=traces) as decode,
    ):
        yield prefill.wait_ready(), decode.wait_ready()


@pytest.fixture
async def watcher(pair: tuple[WorkerProcess, WorkerProcess]) -> AsyncIterator[SplitClient]:
    async with split_client(*pair) as client:
        yield client


# On a busy machine the last in the queue waits for minutes.
NARROW = ("--max-in-flight", "12", "--max-queue-seconds", "250")


@pytest.fixture
def narrow_gateway(
    pair: tuple[WorkerProcess, WorkerProcess], tmp_path: Path
) -> Iterator[ServiceProcess]:
    """Places for a dozen: the others queue here, and leave here."""
    with running_gateway([pair[0]], [pair[1]], tmp_path, *NARROW) as gateway:
        yield gateway


class Leaver:
    """A client that leaves somewhere between its first word and its last."""

    def __init__(self, number: int, client: BatonClient, watcher: SplitClient) -> None:
        self._rng = random.Random(number)
        self._client = client
        self._watcher = watcher
        self._tokens = prompt(self._rng.choice((1, 30, 200, 600)), seed=10_000 + number)
        self._options: dict[str, Any] = {
            "temperature": 1.0,
            "seed": number,
            "n": self._rng.choice((1, 1, 3)),
            "max_tokens": self._rng.choice((1, 12, 300)),
            "ignore_eos": True,
        }

    async def come_and_go(self) -> None:
        """In one of three ways."""
        leave = self._rng.choice((self._cancel_call, self._stop_reading, self._run_out_of_time))
        await leave()

    async def _cancel_call(self) -> None:
        """After some steps of a worker, in whatever state the request is then."""
        call = asyncio.create_task(self._client.generate(self._tokens, **self._options))
        role, num_steps = self._rng.choice(("prefill", "decode")), self._rng.randrange(12)
        first = (await self._watcher.watch_until(role, lambda load: True)).load.steps
        passed = asyncio.create_task(
            self._watcher.watch_until(role, lambda load: load.steps >= first + num_steps)
        )
        await asyncio.wait((call, passed), return_when=asyncio.FIRST_COMPLETED)
        for task in (call, passed):
            task.cancel()
        with suppress(asyncio.CancelledError, Cancelled):
            await call
        with suppress(asyncio.CancelledError):
            await passed

    async def _stop_reading(self) -> None:
        num_messages = self._rng.randrange(1, 8)
        stream = self._client.stream(self._tokens, **self._options)
        async with aclosing(stream):
            async for _ in stream:
                num_messages -= 1
                if not num_messages:
                    break

    async def _run_out_of_time(self) -> None:
        deadline = self._rng.uniform(0.01, 3)
        with suppress(DeadlineExceeded):
            await self._client.generate(self._tokens, deadline=deadline, **self._options)


async def test_of_many_clients_who_come_and_go_nothing_is_left(
    narrow_gateway: ServiceProcess, watcher: SplitClient, reference: Reference
) -> None:
    # Checks the sum of the blocks in every message of both workers, to the end.
    watching = [
        asyncio.create_task(watcher.watch_until(role, lambda load: False))
        for role in ("prefill", "decode")
    ]
    async with BatonClient(narrow_gateway.address) as client:
        staying = [client.generate(tokens, **options) for tokens, options in STAYERS]
        leavers = [Leaver(number, client, watcher) for number in range(NUM_LEAVERS)]
        answers, _ = await asyncio.gather(
            asyncio.gather(*staying), asyncio.gather(*(each.come_and_go() for each in leavers))
        )
    await watcher.all_blocks_back()
    assert not any(task.done() for task in watching)
    for task in watching:
        task.cancel()
    assert read_counter(narrow_gateway, "baton_requests_running") == 0
    assert read_counter(narrow_gateway, "baton_queue_waiting", queue="admission") == 0
    for name in ("baton_tokens_in_flight", "baton_held_bytes"):
        assert read_counter(narrow_gateway, name) == 0
    expected = reference.complete(STAYERS)
    assert [list(answer.choices[0].token_ids) for answer in answers] == [
        list(completion.token_ids) for (completion,) in expected
    ]


async def test_a_prompt_that_nobody_waits_for_is_computed_no_further(
    narrow_gateway: ServiceProcess, watcher: SplitClient
) -> None:
    """Prefill alone has it: no decode leg breaks the lease for the gateway."""
    before = (await watcher.watch_until("prefill", lambda load: True)).load.steps
    async with BatonClient(narrow_gateway.address) as client:
        num_chunks, chunk = 3, 256
        tokens = prompt(num_chunks * chunk, seed=12_200)
        call = asyncio.create_task(client.generate(tokens, max_tokens=1))
        await watcher.watch_until("prefill", lambda load: load.running > 0)
        call.cancel()
        await watcher.all_blocks_back()
    after = (await watcher.watch_until("prefill", lambda load: True)).load.steps
    assert after - before < num_chunks


async def test_the_copies_that_choices_wait_for_come_back_too(
    narrow_gateway: ServiceProcess, watcher: SplitClient
) -> None:
    """Each choice but one has a block reserved for its copy of the partial last one."""
    tokens = prompt(603, seed=12_201)
    async with BatonClient(narrow_gateway.address) as client:
        call = asyncio.create_task(client.generate(tokens, n=4, max_tokens=100))
        await watcher.watch_until("decode", lambda load: load.blocks.reserved == 38 + 3)
        call.cancel()
        await watcher.all_blocks_back()
