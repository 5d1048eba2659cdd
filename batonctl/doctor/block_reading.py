"""Reads of scattered blocks from another process, as a decode worker makes them."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle

import torch

from kvtransfer.transfer_thread import TransferThread
from kvtransfer.transport.base import Transport
from kvtransfer.transport.ranked import RemoteRank

PEER = "peer"
SECONDS = 60.0
RUNS = 9
# Odd, so that blocks there and here come in ever other pairs.
DRAWS = 9


class Reading:
    """Reads ``num_blocks`` blocks, each time others, from a pool of twice as many into one.

    Which ones is drawn beforehand: what a read takes is not to include that.
    """

    def __init__(self, thread: TransferThread, num_blocks: int) -> None:
        self.pool = thread.pool
        self.num_bytes = num_blocks * thread.block_bytes
        self._thread = thread
        generator = torch.Generator().manual_seed(0)
        draws = [torch.randperm(thread.num_blocks - 1, generator=generator) for _ in range(DRAWS)]
        self._draws = cycle([tuple((draw[:num_blocks] + 1).tolist()) for draw in draws])

    def scattered(self) -> tuple[int, ...]:
        """Ids of blocks that lie anywhere, as after hours of service."""
        return next(self._draws)

    def __call__(self, times: int = 1) -> None:
        """``times`` of them at once."""
        reads = [self._thread.read(PEER, self.scattered(), self.scattered()) for _ in range(times)]
        for read in reads:
            read.done.result(SECONDS)


def pool_blocks_for(num_blocks: int) -> int:
    """Blocks of a pool that so many are read from, or into."""
    return 2 * num_blocks + 1


@contextmanager
def connected(transport: Transport, metadata: bytes, num_blocks: int) -> Iterator[Reading]:
    """Reads from the pool that ``metadata`` describes; the transport is closed at the end.

    Raises PeerError where nothing can be read from it.
    """
    thread = TransferThread([transport])
    thread.start()
    try:
        thread.connect(PEER, [RemoteRank(metadata, thread.block_bytes)]).result(SECONDS)
        yield Reading(thread, num_blocks)
        thread.disconnect(PEER).result(SECONDS)
    finally:
        thread.stop()


def seconds_in_turn(*functions: Callable[[], object], runs: int = RUNS) -> list[float]:
    """The median of each: they take turns, so that what the machine does besides hits all."""
    times: list[list[float]] = [[] for _ in functions]
    for run in range(runs + 1):
        for function, taken in zip(functions, times, strict=True):
            began = time.perf_counter()
            function()
            if run:
                taken.append(time.perf_counter() - began)
    return [statistics.median(taken) for taken in times]
