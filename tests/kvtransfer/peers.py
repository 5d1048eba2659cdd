"""Pools to read from: in this process, or in another that can be stopped and killed."""

import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch

from kvtransfer.transport.local import LocalFabric, LocalTransport

BLOCK_VALUES = 4096
NUM_BLOCKS = 200
WAIT = 20.0
"""Seconds after which a test that waits has failed."""


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        os.sched_yield()


class Peer(ABC):
    """Block b of its pool holds b + ``offset`` in each of its BLOCK_VALUES float32 elements."""

    name: str
    offset: int
    metadata: tuple[bytes, ...]

    def blocks(self, ids: list[int]) -> torch.Tensor:
        """What these blocks hold."""
        numbers = torch.tensor(ids, dtype=torch.float32) + self.offset
        return numbers[:, None].repeat(1, BLOCK_VALUES)

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
    """A pool on a fabric, which may stand for those of several ranks."""

    def __init__(self, offset: int, fabric: LocalFabric, num_ranks: int = 1) -> None:
        self.offset = offset
        self.name = f"peer-{offset}"
        self._fabric = fabric
        numbers = torch.arange(NUM_BLOCKS, dtype=torch.float32) + offset
        pool = numbers[:, None].repeat(1, BLOCK_VALUES)
        self.metadata = LocalTransport(pool, self.name, fabric).metadata() * num_ranks

    def freeze(self) -> None:
        self._fabric.held = True

    def thaw(self) -> None:
        self._fabric.held = False

    def kill(self) -> None:
        del self._fabric.pools[self.name]


class ProcessPeer(Peer):
    """A process with a NIXL agent; it sees the environment as it is when made."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.kvtransfer.nixl_peer"),
                *(str(offset), str(NUM_BLOCKS), str(BLOCK_VALUES)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.name = f"peer-{self._process.pid}"
        assert self._process.stdout is not None
        self.metadata = (bytes.fromhex(self._process.stdout.readline().strip()),)

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
