"""Pools to read from: in this process, or in another that can be stopped and killed."""

import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

import torch

from kvtransfer.transport.local import LocalFabric, LocalTransport
from kvtransfer.transport.ranked import RemoteRank

BLOCK_VALUES = 4096
NUM_HEADS = 4
NUM_BLOCKS = 200
WAIT = 20.0
"""Seconds after which a test that waits has failed."""


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        os.sched_yield()


def numbered(offset: int, block_ids: Sequence[int]) -> torch.Tensor:
    """What these blocks of a peer hold: b + ``offset`` and, behind the point, where in the block.

    No two are equal, nor are the beginnings of any two parts of a block.
    """
    numbers = torch.tensor(block_ids, dtype=torch.float32) + offset
    # As fine as float32 is there.
    return numbers[:, None] + torch.arange(BLOCK_VALUES) // 4 / (BLOCK_VALUES // 4)


def shares(offset: int, num_ranks: int) -> list[torch.Tensor]:
    """The pools of a peer's ranks, of (block, head, value), which divide every block."""
    heads = numbered(offset, range(NUM_BLOCKS)).view(NUM_BLOCKS, NUM_HEADS, -1)
    return [share.contiguous() for share in heads.chunk(num_ranks, dim=1)]


def ranks_of(metadata: Iterable[bytes]) -> tuple[RemoteRank, ...]:
    """Ranks that divide a block evenly, each with its metadata."""
    each = tuple(metadata)
    return tuple(RemoteRank(one, BLOCK_VALUES * 4 // len(each)) for one in each)


class Peer(ABC):
    """A worker whose ranks divide the heads of its blocks, which ``numbered`` describes."""

    name: str
    offset: int
    ranks: tuple[RemoteRank, ...]

    def blocks(self, ids: list[int]) -> torch.Tensor:
        """What these blocks hold, on all of its ranks together."""
        return numbered(self.offset, ids)

    @abstractmethod
    def freeze(self) -> None:
        """Nothing moves from here until ``thaw``."""

    @abstractmethod
    def thaw(self) -> None:
        """Moves again; no effect where it is not frozen, or dead."""

    @abstractmethod
    def kill(self) -> None:
        """Dies without a word."""


class LocalPeer(Peer):
    """Pools on a fabric."""

    def __init__(self, offset: int, fabric: LocalFabric, num_ranks: int = 1) -> None:
        self.offset = offset
        self.name = f"peer-{offset}"
        self._fabric = fabric
        self._pool_names = [f"{self.name}-pool-{rank}" for rank in range(num_ranks)]
        for pool, name in zip(shares(offset, num_ranks), self._pool_names, strict=True):
            LocalTransport(pool, name, fabric)
        self.ranks = ranks_of([name.encode() for name in self._pool_names])

    def freeze(self) -> None:
        self._fabric.held = True

    def thaw(self) -> None:
        self._fabric.held = False

    def kill(self) -> None:
        for name in self._pool_names:
            del self._fabric.pools[name]


class ProcessPeer(Peer):
    """A process with a transport for each rank; it sees the environment as it is when made."""

    def __init__(self, offset: int, num_ranks: int = 1, transport: str = "nixl") -> None:
        self.offset = offset
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.kvtransfer.pool_peer"),
                *(str(offset), str(num_ranks), transport),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.name = f"peer-{self._process.pid}"
        assert self._process.stdout is not None
        self.ranks = ranks_of(map(bytes.fromhex, self._process.stdout.readline().split()))

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        # The signal is only sent so far; the process may be running yet.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()
