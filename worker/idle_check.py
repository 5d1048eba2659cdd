"""A block manager that looks itself over when there is time."""

from engine.block_manager import BlockManager

BLOCKS_A_CHECK = 256


class IdleCheck:
    """Verifies the bookkeeping a few blocks at a time; the engine calls it whenever it is idle.

    So the request that comes next waits for a tenth of a millisecond, however large the pool is.
    A fault raises AssertionError, which ends the worker: with wrong books it could hand a block
    to two requests.
    """

    def __init__(self, blocks: BlockManager) -> None:
        self._blocks = blocks
        self._next = 1

    def run(self) -> None:
        """Checks the sums, and the next blocks in turn."""
        end = min(self._next + BLOCKS_A_CHECK, self._blocks.num_blocks + 1)
        self._blocks.check_blocks(range(self._next, end))
        self._next = end if end <= self._blocks.num_blocks else 1
