"""A block manager that looks itself over when there is time."""

import time
from collections.abc import Callable

from engine.block_manager import BlockManager

CHECK_SECONDS = 10.0


class IdleCheck:
    """Verifies the bookkeeping at most every ten seconds; the engine calls it when idle.

    A fault raises AssertionError, which ends the worker: with wrong books it could hand a block
    to two requests.
    """

    def __init__(self, blocks: BlockManager, clock: Callable[[], float] = time.monotonic) -> None:
        self._blocks = blocks
        self._clock = clock
        self._next = 0.0

    def run(self) -> None:
        """Checks, where the last check is long enough ago."""
        if (now := self._clock()) >= self._next:
            self._blocks.check()
            self._next = now + CHECK_SECONDS
