"""One open Pull on the prefill side."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio

from baton.v1 import kv_transfer_pb2
from chassis.failure import failure_to_pb
from kvtransfer.errors import MessageOutOfOrder
from kvtransfer.handoff import Chunk, Completion
from kvtransfer.lease import Computing, Lease, LeaseEvent, Revocation

# grpc.aio.ServicerContext, which is generic over messages that its read() does not name.
Context = Any


class PullSession:
    """Tells a lease's story to decode, and hears Start and Done."""

    def __init__(
        self,
        lease: Lease,
        context: Context,
        *,
        on_started: Callable[[], None],
        on_announced: Callable[[], None],
        on_released: Callable[[], None],
    ) -> None:
        self._lease = lease
        self._context = context
        self._on_started = on_started
        self._on_announced = on_announced
        self._on_released = on_released
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._alive: bool | None = None

    def attach(self) -> None:
        """Opens the Pull. Raises AttemptError."""
        self._lease.open_pull(self._wake)

    async def run(self) -> None:
        """Until Released or Revoked has been sent, or decode has closed. Raises AttemptError."""
        listener = asyncio.create_task(self._listen())
        listener.add_done_callback(self._heard_all)
        try:
            await self._tell(listener)
        finally:
            listener.cancel()

    async def _tell(self, listener: "asyncio.Task[None]") -> None:
        while True:
            self._news.clear()
            for event in self._lease.take_events():
                await self._context.write(_to_pb(event))
                if isinstance(event, Revocation):
                    return
                if isinstance(event, Chunk | Completion):
                    self._on_announced()
            if listener.done():
                listener.result()
                if self._alive is not None:
                    released = kv_transfer_pb2.Released(alive=self._alive)
                    await self._context.write(kv_transfer_pb2.PullResponse(released=released))
                return
            await self._news.wait()

    async def _listen(self) -> None:
        while (request := await self._context.read()) is not grpc.aio.EOF:
            match request.WhichOneof("message"):
                case "start":
                    self._lease.start(request.start.cached_tokens)
                    self._on_started()
                case "done":
                    self._alive = self._lease.done()
                    if self._alive:
                        self._on_released()
                    return
                case other:
                    raise MessageOutOfOrder(f"{other} within an open Pull")

    def _heard_all(self, listener: "asyncio.Task[None]") -> None:
        if not listener.cancelled():
            # Taken note of here, because nobody asks once the call itself has been cancelled.
            listener.exception()
        self._news.set()

    def _wake(self) -> None:
        self._loop.call_soon_threadsafe(self._news.set)


def _to_pb(event: LeaseEvent) -> kv_transfer_pb2.PullResponse:
    match event:
        case Computing():
            return kv_transfer_pb2.PullResponse(computing=kv_transfer_pb2.Computing())
        case Chunk():
            return kv_transfer_pb2.PullResponse(chunk_ready=event.to_pb())
        case Completion():
            return kv_transfer_pb2.PullResponse(complete=event.to_pb())
        case Revocation(error):
            revoked = kv_transfer_pb2.Revoked(failure=failure_to_pb(error))
            return kv_transfer_pb2.PullResponse(revoked=revoked)
