"""One attempt's KV on its way into the decode worker."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc.aio

from baton.v1 import kv_transfer_pb2
from chassis.failure import failure_from_pb
from kvtransfer import pull_failure
from kvtransfer.chunk_reader import ChunkReader, ChunkRecord
from kvtransfer.errors import MessageOutOfOrder, PeerLost, PullFailed
from kvtransfer.fence import Fence
from kvtransfer.handoff import Chunk, Completion, token_digest
from kvtransfer.prefill_peer import PrefillPeer
from kvtransfer.transfer_thread import TransferThread


@dataclass(frozen=True, slots=True)
class PullTimeouts:
    """Seconds. ``pair``: for a Handshake, and again for the first byte; ``read``: for a chunk."""

    pair: float = 10.0
    read: float = 10.0
    released: float = 2.0


DEFAULT_TIMEOUTS = PullTimeouts()


class Pull:
    """Made by ``Consumer.open``; event loop only.

    In order: ``computing``, ``start``, ``complete``, ``released``. Each raises PullFailed, whose
    ``fence`` names the blocks that must not be reused yet. Only after ``released`` may anything
    computed from the KV leave the worker or enter its prefix cache (protocol 3.6). ``cancel`` is
    legal in every state, also after a failure and at the end.
    """

    def __init__(
        self,
        attempt_id: bytes,
        token_ids: Sequence[int],
        *,
        block_size: int,
        transfers: TransferThread,
        timeouts: PullTimeouts,
        find_peer: Callable[[], Awaitable[PrefillPeer]],
        on_over: "Callable[[Pull, Fence, bool], None]",
    ) -> None:
        self.peer: PrefillPeer | None = None
        self._attempt_id = attempt_id
        self._token_digest = token_digest(token_ids)
        self._timeouts = timeouts
        self._find_peer = find_peer
        self._on_over = on_over
        self._reader = ChunkReader(
            transfers,
            num_tokens=len(token_ids),
            block_size=block_size,
            timeout=timeouts.read,
            on_failure=self._fail,
        )
        loop = asyncio.get_running_loop()
        self._computing: asyncio.Future[None] = loop.create_future()
        self._completed: asyncio.Future[Completion] = loop.create_future()
        self._told_released: asyncio.Future[bool] = loop.create_future()
        self._released: asyncio.Future[None] = loop.create_future()
        # Set when the pull is over, in whatever way.
        self._fence: Fence | None = None
        self._failed: PullFailed | None = None
        self._call: Any = None
        self._tasks = [
            loop.create_task(self._guard(self._listen)),
            loop.create_task(self._guard(self._finish)),
        ]

    @property
    def records(self) -> Sequence[ChunkRecord]:
        """The reads that are complete so far, in the order in which they ended."""
        return self._reader.records

    @property
    def arrived_at(self) -> float:
        """When nothing was missing any more, of time.monotonic; of use after ``complete``."""
        return self._reader.arrived_at

    @property
    def exposed_seconds(self) -> float:
        """How long blocks were still read after the prompt was computed; after ``complete``."""
        return self._reader.exposed_seconds

    async def computing(self) -> None:
        """Waits until prefill computes the prompt: time to reserve blocks (protocol 3.3)."""
        await asyncio.shield(self._computing)

    async def start(self, cached_tokens: int, block_ids: Sequence[int]) -> None:
        """The prompt's missing blocks are reserved; reads go there as chunks become ready.

        Once, after ``computing``. ``cached_tokens``: leading tokens whose KV is here, a multiple
        of the block size. ``block_ids``: one destination for each further block, in order.
        """
        if self._failed is None:
            self._reader.start(cached_tokens, block_ids)
            message = kv_transfer_pb2.PullRequest(
                start=kv_transfer_pb2.Start(cached_tokens=cached_tokens)
            )
            await self._guard(lambda: self._write(message))
        if self._failed is not None:
            raise self._failed

    async def complete(self) -> Completion:
        """Waits until every read is complete; Done is on its way then."""
        return await asyncio.shield(self._completed)

    async def released(self) -> None:
        """Waits until prefill has confirmed that its lease was alive (protocol 3.6)."""
        await asyncio.shield(self._released)

    def cancel(self) -> Fence:
        """Ends the pull if it is not over; the fence is empty where nothing is being read."""
        if self._fence is None:
            self._fail(pull_failure.given_up())
        assert self._fence is not None
        return self._fence

    async def _listen(self) -> None:
        """Opens the call and hears it to its end."""
        self.peer = await self._find_peer()
        self._call = self.peer.pull()
        opened = kv_transfer_pb2.Open(
            attempt_id=self._attempt_id,
            boot_id=self.peer.boot_id,
            token_digest=self._token_digest,
        )
        await self._call.write(kv_transfer_pb2.PullRequest(open=opened))
        while (response := await self._call.read()) is not grpc.aio.EOF:
            self._hear(response, self.peer)
        if not self._told_released.done():
            raise pull_failure.pull_closed()

    def _hear(self, response: kv_transfer_pb2.PullResponse, peer: PrefillPeer) -> None:
        match response.WhichOneof("message"):
            case "computing" if not self._computing.done():
                self._computing.set_result(None)
            case "chunk_ready":
                self._read(Chunk.from_pb(response.chunk_ready), peer)
            case "complete":
                completion = Completion.from_pb(response.complete)
                if completion.last_chunk is not None:
                    self._read(completion.last_chunk, peer)
                self._reader.finish(completion)
            case "released" if self._completed.done() and not self._told_released.done():
                self._told_released.set_result(response.released.alive)
            case "revoked":
                raise failure_from_pb(response.revoked.failure)
            case other:
                raise MessageOutOfOrder(f"{other} at the wrong time")

    def _read(self, chunk: Chunk, peer: PrefillPeer) -> None:
        self._reader.read(chunk, peer.name, peer.num_blocks)

    async def _finish(self) -> None:
        """From the last read to the confirmed release."""
        completion = await self._reader.all_read
        self._completed.set_result(completion)
        await self._write(kv_transfer_pb2.PullRequest(done=kv_transfer_pb2.Done()))
        try:
            async with asyncio.timeout(self._timeouts.released):
                alive = await self._told_released
        except TimeoutError:
            raise pull_failure.release_timeout(self._timeouts.released) from None
        if not alive:
            raise pull_failure.lease_lost()
        self._fence = Fence.none()
        self._released.set_result(None)
        self._on_over(self, self._fence, False)

    async def _write(self, message: kv_transfer_pb2.PullRequest) -> None:
        # Raised where the call is over; only the listener is told why.
        with contextlib.suppress(asyncio.InvalidStateError):
            await self._call.write(message)

    async def _guard(self, work: Callable[[], Awaitable[object]]) -> None:
        """Runs a part of the pull; whatever goes wrong in it is the end of the whole."""
        try:
            await work()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # gRPC cancels the readers and writers of a call when the call or channel is closed.
            self._fail(PeerLost("the connection to the prefill worker was closed"))
        except Exception as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Ends the pull; the first failure counts, and none once the release is confirmed."""
        if self._fence is not None:
            return
        self._fence = self._reader.give_up()
        self._failed = PullFailed(pull_failure.explain(error), fence=self._fence)
        for milestone in (self._computing, self._completed, self._released):
            if not milestone.done():
                milestone.set_exception(self._failed)
                # Asked for here, so that nobody needs to wait for every milestone.
                milestone.exception()
        if self._call is not None:
            self._call.cancel()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._on_over(self, self._fence, pull_failure.means_peer_lost(error))
