"""How busy a worker is, and who wants to hear of it."""

import asyncio
from dataclasses import dataclass

from baton.v1 import worker_pb2
from engine.block_manager import BlockCounts


@dataclass(frozen=True, slots=True)
class Load:
    """A worker's load after a step. The fields are those of WorkerLoad."""

    blocks: BlockCounts
    waiting: int = 0
    handing_off: int = 0
    running: int = 0
    steps: int = 0
    pending_tokens: int = 0
    rate: float = 0.0

    def to_pb(self, *, accepting: bool, step_limit: float) -> worker_pb2.WorkerLoad:
        blocks = self.blocks
        return worker_pb2.WorkerLoad(
            accepting=accepting,
            blocks=worker_pb2.BlockCounts(
                leased=blocks.leased,
                used=blocks.used,
                reserved=blocks.reserved,
                fenced=blocks.fenced,
                cached=blocks.cached,
                free=blocks.free,
                total=blocks.total,
            ),
            waiting=self.waiting,
            handing_off=self.handing_off,
            running=self.running,
            steps=self.steps,
            pending_tokens=self.pending_tokens,
            rate=self.rate,
            step_limit=step_limit,
        )


class LoadBoard:
    """The newest load; wakes its readers when it differs in more than blocks, steps and rate.

    Event loop only. ``accepting`` is whether the worker takes new work, ``step_limit`` the seconds
    that one of its steps may take, 0 until known.
    """

    def __init__(self, load: Load) -> None:
        self._load = load
        self._accepting = False
        self.step_limit = 0.0
        self._changed = asyncio.Event()

    @property
    def load(self) -> Load:
        return self._load

    @property
    def accepting(self) -> bool:
        return self._accepting

    def to_pb(self) -> worker_pb2.WorkerLoad:
        return self._load.to_pb(accepting=self._accepting, step_limit=self.step_limit)

    def post(self, load: Load) -> None:
        before, self._load = self._load, load
        if _requests(before) != _requests(load):
            self._wake()

    def set_accepting(self, accepting: bool) -> None:
        if accepting != self._accepting:
            self._accepting = accepting
            self._wake()

    @property
    def next_change(self) -> asyncio.Event:
        """Set at the next change. Take it before reading, so that none is missed."""
        return self._changed

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _requests(load: Load) -> tuple[int, int, int]:
    return load.waiting, load.handing_off, load.running
