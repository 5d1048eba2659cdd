"""A process is stopped (SIGSTOP) and goes on later: others notice, go round it, and take it back.

Nobody is restarted, what concerned the frozen process goes on elsewhere, and every block comes back
(protocol 4.6, 4.8, 5.2, 5.3, 5.5).
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from baton.client import BatonClient
from baton.v1 import gateway_pb2, worker_pb2
from bench.tiny_model import tiny_prompt
from chassis.errors import ServiceError
from tests.e2e.engine_reference import Reference
from tests.e2e.gateway_process import PATIENCE, running_gateway, until_counted
from tests.e2e.service_process import ServiceProcess
from tests.e2e.split_client import SplitClient, split_client
from tests.e2e.tiny_model import POOL
from tests.e2e.worker_process import WorkerProcess, running

# Peers give a frozen process up after five seconds, and so it stays frozen for longer than anything
# on a worker may take: a freeze of half a minute is no other one.
LIMITS = {
    "prefill": ("--stuck-seconds=4", "--handoff-timeout=4"),
    "decode": ("--stuck-seconds=4", "--read-timeout=4"),
}
SHORT: dict[str, Any] = {"temperature": 0.0, "max_tokens": 6, "ignore_eos": True}
# Goes on for longer than any test; so much of it is compared.
ENDLESS: dict[str, Any] = {"temperature": 0.0, "max_tokens": 30_000, "ignore_eos": True}
NUM_COMPARED = 1_000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Stream:
    """An endless answer, read by a task of its own."""

    def __init__(self, client: BatonClient, seed: int) -> None:
        self.prompt = tiny_prompt(30, seed=seed)
        self.token_ids: list[int] = []
        self.failure: ServiceError | None = None
        self._grew = asyncio.Event()
        self._task = asyncio.create_task(self._read(client))

    @property
    def is_over(self) -> bool:
        return self._task.done()

    async def reach(self, num_tokens: int) -> None:
        """Returns once there are so many tokens, or no more to come."""
        async with asyncio.timeout(PATIENCE):
            while len(self.token_ids) < num_tokens and self.failure is None:
                self._grew.clear()
                await self._grew.wait()

    async def end(self) -> None:
        """Leaves; what has come stays."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def check(self, reference: Reference) -> None:
        """What has come is the right beginning."""
        sampling = {**ENDLESS, "max_tokens": NUM_COMPARED}
        (expected,) = expected_of(reference, [self.prompt], **sampling)
        num_compared = min(len(self.token_ids), NUM_COMPARED)
        assert self.token_ids[:num_compared] == expected[:num_compared]

    async def _read(self, client: BatonClient) -> None:
        try:
            async with aclosing(client.stream(self.prompt, **ENDLESS)) as messages:
                async for message in messages:
                    for delta in message.deltas:
                        self.token_ids += delta.token_ids
                    self._grew.set()
        except ServiceError as error:
            self.failure = error
            self._grew.set()


@dataclass(frozen=True, slots=True)
class Stack:
    gateway: ServiceProcess
    prefill: WorkerProcess
    decode: tuple[WorkerProcess, WorkerProcess]


@pytest.fixture(scope="module")
def stack(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    traces = tmp_path_factory.mktemp("traces")
    with (
        running(
            "prefill", *POOL, *LIMITS["prefill"], trace_directory=traces, model=tiny_model
        ) as prefill,
        running(
            "decode", *POOL, *LIMITS["decode"], trace_directory=traces, model=tiny_model
        ) as first,
        running(
            "decode", *POOL, *LIMITS["decode"], trace_directory=traces, model=tiny_model
        ) as second,
    ):
        for worker in (prefill, first, second):
            worker.wait_ready()
        model = ("--model", tiny_model)
        with running_gateway([prefill], [first, second], traces, *model) as gateway:
            yield Stack(gateway, prefill, (first, second))


@pytest.fixture
async def baton(stack: Stack) -> AsyncIterator[BatonClient]:
    """The gateway's client, once it counts every worker."""
    async with BatonClient(stack.gateway.address) as client:
        await until_counted(client, prefill=1, decode=2)
        yield client


@pytest.fixture
async def watchers(stack: Stack) -> AsyncIterator[tuple[SplitClient, SplitClient]]:
    """One for each decode worker; in the end every block must be back, everywhere."""
    first, second = stack.decode
    async with (
        split_client(stack.prefill, first, outlived=False) as one,
        split_client(stack.prefill, second, outlived=False) as two,
    ):
        yield one, two
    for decode in stack.decode:
        async with split_client(stack.prefill, decode):
            pass


@pytest.fixture(scope="module")
def tiny_reference(tiny_model: str) -> Reference:
    return Reference(tiny_model)


@contextmanager
def frozen(process: ServiceProcess) -> Iterator[None]:
    process.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.signal(signal.SIGCONT)


async def load_of(watcher: SplitClient, role: str) -> worker_pb2.WatchResponse:
    return await watcher.watch_until(role, lambda load: True)


def tokens_of(answer: gateway_pb2.GenerateResponse) -> list[int]:
    return list(answer.choices[0].token_ids)


def expected_of(reference: Reference, prompts: Sequence[list[int]], **sampling: Any) -> list[Any]:
    completions = reference.complete([(tokens, sampling) for tokens in prompts])
    return [list(completion.token_ids) for (completion,) in completions]


async def four_streams(baton: BatonClient, first_seed: int) -> list[Stream]:
    """Streams that decode."""
    streams = [Stream(baton, seed) for seed in range(first_seed, first_seed + 4)]
    for stream in streams:
        await stream.reach(2)
    return streams


async def streams_on(watcher: SplitClient, baton: BatonClient, first_seed: int) -> list[Stream]:
    """Streams that decode, four or more, some of them on this worker."""
    streams = await four_streams(baton, first_seed)
    async with asyncio.timeout(PATIENCE):
        # One that was slow at first is given the fewer.
        while not (await load_of(watcher, "decode")).load.running:
            streams.append(Stream(baton, first_seed + len(streams)))
            await streams[-1].reach(2)
    return streams


async def leave_right(streams: Sequence[Stream], reference: Reference) -> None:
    """Ends streams of which none has failed or gone wrong."""
    for stream in streams:
        await stream.end()
        assert stream.failure is None
        stream.check(reference)


async def test_a_frozen_decode_worker_costs_no_answer_and_is_taken_back(
    stack: Stack,
    baton: BatonClient,
    watchers: tuple[SplitClient, SplitClient],
    tiny_reference: Reference,
) -> None:
    streams = await streams_on(watchers[0], baton, first_seed=0)
    boot_id = (await load_of(watchers[0], "decode")).info.boot_id
    with frozen(stack.decode[0]):
        await until_counted(baton, prefill=1, decode=1)
        others = [tiny_prompt(30, seed=number) for number in range(10, 14)]
        answers = await asyncio.gather(*(baton.generate(each, **SHORT) for each in others))
        assert [tokens_of(answer) for answer in answers] == expected_of(
            tiny_reference, others, **SHORT
        )
        for stream in streams:
            await stream.reach(len(stream.token_ids) + 1)
        await leave_right(streams, tiny_reference)
    await until_counted(baton, prefill=1, decode=2)
    async with split_client(stack.prefill, stack.decode[0]) as again:
        assert again.boot_ids["decode"] == boot_id
        steps = (await load_of(again, "decode")).load.steps
        served = asyncio.create_task(again.watch_until("decode", lambda load: load.steps > steps))
        # By lot among equals: it comes to the one that was frozen as well.
        while not served.done():
            answer = await baton.generate(others[0], **SHORT)
            assert tokens_of(answer) == tokens_of(answers[0])


async def test_a_frozen_prefill_worker_costs_no_answer_and_is_taken_back(
    stack: Stack,
    baton: BatonClient,
    watchers: tuple[SplitClient, SplitClient],
    tiny_reference: Reference,
) -> None:
    boot_id = (await load_of(watchers[0], "prefill")).info.boot_id
    streams = await four_streams(baton, first_seed=20)
    await watchers[0].watch_until("prefill", lambda load: load.handing_off == 0)
    with frozen(stack.prefill):
        caught = asyncio.create_task(baton.generate(tiny_prompt(30, seed=30), **SHORT))
        await until_counted(baton, prefill=0, decode=2)
        # Decode computes it. What had been handed over does not need the frozen worker either.
        assert [tokens_of(await caught)] == expected_of(
            tiny_reference, [tiny_prompt(30, seed=30)], **SHORT
        )
        for stream in streams:
            await stream.reach(len(stream.token_ids) + 1)
        await leave_right(streams, tiny_reference)
    await until_counted(baton, prefill=1, decode=2)
    # Both decode workers pair with it again.
    again = [tiny_prompt(30, seed=number) for number in range(32, 40)]
    answers = await asyncio.gather(*(baton.generate(each, **SHORT) for each in again))
    assert [tokens_of(answer) for answer in answers] == expected_of(tiny_reference, again, **SHORT)
    assert (await load_of(watchers[0], "prefill")).info.boot_id == boot_id


async def test_a_frozen_gateway_holds_no_blocks_and_goes_on_afterwards(
    stack: Stack,
    baton: BatonClient,
    watchers: tuple[SplitClient, SplitClient],
    tiny_reference: Reference,
) -> None:
    streams = await four_streams(baton, first_seed=40)
    with frozen(stack.gateway):
        for watcher in watchers:
            await watcher.all_blocks_back()
    for stream in streams:
        await stream.reach(len(stream.token_ids) + 1)
    await leave_right(streams, tiny_reference)
    await until_counted(baton, prefill=1, decode=2)
    tokens = tiny_prompt(30, seed=44)
    answer = await baton.generate(tokens, **SHORT)
    assert [tokens_of(answer)] == expected_of(tiny_reference, [tokens], **SHORT)
