"""Serves WorkerService: what every worker tells about itself."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import grpc.aio

from baton.v1 import worker_pb2, worker_pb2_grpc
from chassis.server import Server
from worker.load import LoadBoard
from worker.parts import Parts

# Protocol 2.6: every 250 ms and on change; changes within the gap travel together.
WATCH_INTERVAL = 0.25
WATCH_GAP = 0.01


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """Streams the board to every watcher."""

    def __init__(self, describe: Callable[[], worker_pb2.WorkerInfo], board: LoadBoard) -> None:
        self._describe = describe
        self._board = board

    async def Watch(
        self,
        request: worker_pb2.WatchRequest,
        context: grpc.aio.ServicerContext[worker_pb2.WatchRequest, worker_pb2.WatchResponse],
    ) -> AsyncIterator[worker_pb2.WatchResponse]:
        changed = self._board.next_change
        yield worker_pb2.WatchResponse(info=self._describe(), load=self._board.to_pb())
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(WATCH_INTERVAL):
                    await changed.wait()
            await asyncio.sleep(WATCH_GAP)
            changed = self._board.next_change
            yield worker_pb2.WatchResponse(load=self._board.to_pb())


def add_worker_servicer(
    server: Server, role: "worker_pb2.WorkerRole.ValueType", parts: Parts, board: LoadBoard
) -> None:
    """Registers the service; the worker's name is known once the server has its port."""

    def describe() -> worker_pb2.WorkerInfo:
        address = f"{server.settings.host}:{server.port}"
        return parts.identity.to_pb(role, address, parts.model)

    worker_pb2_grpc.add_WorkerServiceServicer_to_server(
        WorkerServicer(describe, board), server.grpc
    )
