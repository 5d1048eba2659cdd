"""Readiness follows the transfers: a worker that cannot move blocks takes no work."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc

from chassis.background import Background
from chassis.channel import open_channel
from chassis.lifecycle import Shutdown
from chassis.server import Server, ServerSettings, create_server
from engine.block_manager import BlockManager
from kvtransfer.transfer_thread import TransferThread
from kvtransfer.transport.local import LocalFabric, LocalTransport
from kvtransfer.transport.ranked import RemoteRank
from worker import transfer_watch
from worker.load import Load, LoadBoard
from worker.transfer_watch import watch_transfers

SERVICE = "baton.v1.DecodeService"
WAIT = 20.0
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Worker:
    """A server that is ready, the watch over it, and somebody who asks after its health."""

    def __init__(self, server: Server, fabric: LocalFabric) -> None:
        self.fabric = fabric
        self.transfers = TransferThread([LocalTransport(torch.zeros(8, 4), "us", fabric)])
        self.shutdown = Shutdown()
        self.board = LoadBoard(Load(BlockManager(4).counts()))
        self.board.set_accepting(True)
        self.watch = watch_transfers(self.transfers, server, self.board, self.shutdown)
        self.watching: Any = None
        self.health: Any = None
        self.check: Any = None

    async def until_health_is(self, status: int) -> None:
        async with asyncio.timeout(WAIT):
            while (await self.health.read()).status != status:
                pass
        assert self.board.accepting is (status == SERVING)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(transfer_watch, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(transfer_watch, "TROUBLE_SECONDS", 0.05)
    yield


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    fabric, background = LocalFabric(), Background()
    LocalTransport(torch.ones(8, 4), "peer", fabric)
    server = create_server(ServerSettings(), [SERVICE])
    await server.start()
    server.set_ready(True)
    worker = Worker(server, fabric)
    worker.transfers.start()
    await asyncio.wrap_future(
        worker.transfers.connect("peer", [RemoteRank(b"peer", block_bytes=16)])
    )
    worker.watching = background.spawn(worker.watch)
    async with open_channel(f"127.0.0.1:{server.port}") as channel:
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        stub = health_pb2_grpc.HealthStub(channel)
        worker.health, worker.check = stub.Watch(request), lambda: stub.Check(request)
        await worker.until_health_is(SERVING)
        yield worker
        worker.health.cancel()
    await background.close()
    await asyncio.to_thread(worker.transfers.stop)
    await server.stop()


async def fence(worker: Worker) -> None:
    """Gives up a read that does not end while the fabric is held."""
    worker.fabric.held = True
    read = worker.transfers.read("peer", [1], [1])
    while not worker.transfers.num_blocks_in_flight:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0)
    read.cancel()


async def test_while_blocks_are_fenced_by_a_read_that_does_not_end(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await fence(worker)
    await worker.until_health_is(NOT_SERVING)
    assert "not ready: blocks are fenced" in caplog.text
    worker.fabric.held = False
    await worker.until_health_is(SERVING)
    assert "ready again" in caplog.text


async def test_when_the_thread_has_ended(worker: Worker) -> None:
    await asyncio.to_thread(worker.transfers.stop)
    await worker.until_health_is(NOT_SERVING)


async def test_a_worker_that_drains_stays_out_of_rotation(worker: Worker) -> None:
    await fence(worker)
    await worker.until_health_is(NOT_SERVING)
    worker.shutdown.request("SIGTERM")
    worker.fabric.held = False
    await worker.watching
    answer = await worker.check()
    assert (answer.status, worker.board.accepting) == (NOT_SERVING, False)
