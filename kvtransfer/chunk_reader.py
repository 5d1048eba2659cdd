"""Reads the announced blocks of one attempt into reserved ones."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvtransfer import pull_failure
from kvtransfer.block_read import BlockRead
from kvtransfer.errors import MessageOutOfOrder
from kvtransfer.fence import Fence
from kvtransfer.handoff import Chunk, Completion
from kvtransfer.transfer_thread import TransferThread


@dataclass(frozen=True, slots=True)
class ChunkRecord:
    """One finished read, for the kv.pull span.

    ``done_at`` is of time.monotonic, on the transfer thread; ``end_ns`` is the same moment in
    nanoseconds since the epoch.
    """

    num_blocks: int
    num_bytes: int
    transport: str
    seconds: float
    done_at: float
    end_ns: int


class ChunkReader:
    """Checks each chunk against the prompt, reads it, and knows when all has arrived.

    ``on_failure`` is called for the first read that fails or takes longer than ``timeout``
    seconds. Event loop only.
    """

    def __init__(
        self,
        transfers: TransferThread,
        *,
        num_tokens: int,
        block_size: int,
        timeout: float,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.records: list[ChunkRecord] = []
        self.all_read: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._transfers = transfers
        self._num_tokens = num_tokens
        self._block_size = block_size
        self._timeout = timeout
        self._on_failure = on_failure
        self._block_ids: tuple[int, ...] | None = None
        self._cached_tokens = 0
        self._next_token = 0
        self._reads: list[BlockRead] = []
        self._num_reading = 0
        self._completion: Completion | None = None
        self._told_at = 0.0

    @property
    def arrived_at(self) -> float:
        """When nothing was missing any more, of time.monotonic: the last byte or the first token,
        whichever came later. Of use once ``all_read`` is done."""
        return max([self._told_at, *(record.done_at for record in self.records)])

    @property
    def exposed_seconds(self) -> float:
        """How long was still read after prefill had computed everything: what no computing hid."""
        return self.arrived_at - self._told_at

    def start(self, cached_tokens: int, block_ids: Sequence[int]) -> None:
        """Sets the destinations: one for each block after the cached ones."""
        num_blocks = -(-(self._num_tokens - cached_tokens) // self._block_size)
        assert cached_tokens % self._block_size == 0 <= self._num_tokens - cached_tokens, (
            f"{cached_tokens} cached tokens of {self._num_tokens}"
        )
        assert len(block_ids) == num_blocks, f"{len(block_ids)} destinations, not {num_blocks}"
        self._block_ids = tuple(block_ids)
        self._cached_tokens = self._next_token = cached_tokens

    def read(self, chunk: Chunk, peer: str, num_remote_blocks: int) -> None:
        """Begins to read a chunk. Raises MessageOutOfOrder where it does not fit the prompt."""
        destinations = self._destinations(chunk, num_remote_blocks)
        self._next_token = chunk.end_token
        read = self._transfers.read(peer, chunk.block_ids, destinations, chunk.checksums)
        timer = asyncio.get_running_loop().call_later(self._timeout, self._time_out, read)
        self._reads.append(read)
        self._num_reading += 1

        def on_done(done: "asyncio.Future[float]") -> None:
            timer.cancel()
            try:
                self._on_read(read, done.result())
            except Exception as error:
                self._on_failure(error)

        asyncio.wrap_future(read.done).add_done_callback(on_done)

    def finish(self, completion: Completion) -> None:
        """Nothing follows: ``all_read`` resolves after the last read. Raises MessageOutOfOrder."""
        if self._next_token != self._num_tokens or completion.num_tokens != self._num_tokens:
            raise MessageOutOfOrder(
                f"complete with {completion.num_tokens} tokens, {self._next_token} of them told, "
                f"of a prompt of {self._num_tokens}"
            )
        self._completion = completion
        self._told_at = time.monotonic()
        self._settle()

    def give_up(self) -> Fence:
        """Cancels what is being read; the fence is empty where nothing is."""
        for read in self._reads:
            read.cancel()
        # A read whose destinations are all posted and done has ended, whatever became of it.
        writing = [read for read in self._reads if not read.ended.done()]
        blocks = [block for read in writing for block in read.local_ids]
        return Fence.around(blocks, [read.ended for read in writing])

    def _destinations(self, chunk: Chunk, num_remote_blocks: int) -> tuple[int, ...]:
        if self._block_ids is None or self._completion is not None:
            raise MessageOutOfOrder(f"{chunk} before Start or after Complete")
        whole = chunk.num_tokens % self._block_size == 0 or chunk.end_token == self._num_tokens
        num_blocks = -(-chunk.num_tokens // self._block_size)
        if chunk.first_token != self._next_token or chunk.end_token > self._num_tokens:
            raise MessageOutOfOrder(f"{chunk} does not follow token {self._next_token}")
        one_each = len(chunk.checksums) in (0, num_blocks)
        if not whole or not chunk.num_tokens or len(chunk.block_ids) != num_blocks or not one_each:
            raise MessageOutOfOrder(f"{chunk} does not cover its tokens")
        if not all(0 < block < num_remote_blocks for block in chunk.block_ids):
            raise MessageOutOfOrder(f"{chunk} is not within {num_remote_blocks} blocks")
        first = (chunk.first_token - self._cached_tokens) // self._block_size
        return self._block_ids[first : first + num_blocks]

    def _on_read(self, read: BlockRead, seconds: float) -> None:
        num_blocks = len(read.local_ids)
        late = time.monotonic() - read.done_at
        record = ChunkRecord(
            num_blocks,
            num_blocks * self._transfers.block_bytes,
            read.transport,
            seconds,
            read.done_at,
            time.time_ns() - round(late * 1e9),
        )
        self.records.append(record)
        self._num_reading -= 1
        self._settle()

    def _settle(self) -> None:
        if self._completion is not None and not self._num_reading and not self.all_read.done():
            self.all_read.set_result(self._completion)

    def _time_out(self, read: BlockRead) -> None:
        self._on_failure(pull_failure.read_timeout(len(read.local_ids), self._timeout))
