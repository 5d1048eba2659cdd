"""A client that leaves, in every stage of its request, gives every block back."""

import asyncio
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from baton.client import BatonClient
from chassis.errors import DeadlineExceeded
from tests.e2e.gateway_process import gateway_for
from tests.e2e.prompts import prompt
from tests.e2e.split_client import SplitClient
from tests.e2e.worker_process import WorkerProcess

# Eight prefill steps of 256 tokens: time enough to leave in the middle.
LONG = 2_000


class Reader:
    """Reads a stream in a task of its own, which can be cancelled at any moment."""

    def __init__(self, client: BatonClient, token_ids: list[int], **options: Any) -> None:
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        options = {"max_tokens": 1_000, "ignore_eos": True, "temperature": 0, **options}
        self._task = asyncio.create_task(self._read(client.stream(token_ids, **options)))

    async def _read(self, stream: Any) -> None:
        async for message in stream:
            self.messages.put_nowait(message)

    async def leave(self) -> None:
        self._task.cancel()
        with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
            await self._task

    async def result(self) -> None:
        await self._task


async def test_while_queued_on_a_worker(baton: BatonClient, client: SplitClient) -> None:
    ahead = Reader(baton, prompt(LONG, seed=600))
    await client.watch_until("prefill", lambda load: load.running > 0)
    queued = Reader(baton, prompt(LONG, seed=601))
    await client.watch_until("prefill", lambda load: load.pending_tokens > LONG)
    await queued.leave()
    await ahead.leave()
    await client.all_blocks_back()


async def test_in_prefill(baton: BatonClient, client: SplitClient) -> None:
    reader = Reader(baton, prompt(LONG, seed=602))
    await client.watch_until("prefill", lambda load: load.running > 0)
    await reader.leave()
    assert reader.messages.empty()
    await client.all_blocks_back()


async def test_in_transfer(baton: BatonClient, client: SplitClient) -> None:
    reader = Reader(baton, prompt(LONG, seed=603))
    await client.watch_until("decode", lambda load: load.handing_off > 0)
    await client.watch_until("decode", lambda load: load.blocks.reserved > 0)
    await reader.leave()
    await client.all_blocks_back()


async def test_in_decode(baton: BatonClient, client: SplitClient) -> None:
    reader = Reader(baton, prompt(40, seed=604), n=2)
    for _ in range(3):
        await reader.messages.get()
    await reader.leave()
    await client.all_blocks_back()


async def test_when_the_deadline_passes(baton: BatonClient, client: SplitClient) -> None:
    reader = Reader(baton, prompt(40, seed=605), deadline=1.0)
    with pytest.raises(DeadlineExceeded):
        await reader.result()
    await client.all_blocks_back()


async def test_while_queued_at_the_gateway(
    workers: tuple[WorkerProcess, WorkerProcess], client: SplitClient, tmp_path: Path
) -> None:
    narrow = ("--max-in-flight", "1")
    with gateway_for([workers[0]], [workers[1]], tmp_path, *narrow) as address:
        async with BatonClient(address) as baton:
            running = Reader(baton, prompt(40, seed=606))
            await running.messages.get()
            queued = Reader(baton, prompt(40, seed=607))
            next_in_line = Reader(baton, prompt(40, seed=608), max_tokens=2)
            await queued.leave()
            await running.leave()
            await next_in_line.result()
    assert queued.messages.empty()
    await client.all_blocks_back()
