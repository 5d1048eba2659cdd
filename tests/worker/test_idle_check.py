"""Books that are wrong end the worker; looking them over takes little time at once."""

from collections.abc import Iterable

import pytest

from engine.block_manager import BlockManager
from worker.idle_check import BLOCKS_A_CHECK, IdleCheck

NUM_BLOCKS = 2 * BLOCKS_A_CHECK + 3


class ReadBooks(BlockManager):
    """Notes which blocks were checked."""

    def __init__(self) -> None:
        super().__init__(NUM_BLOCKS)
        self.checked: list[list[int]] = []

    def check_blocks(self, block_ids: Iterable[int]) -> None:
        self.checked.append(list(block_ids))
        super().check_blocks(self.checked[-1])


def test_every_block_is_checked_in_turn_and_few_at_once() -> None:
    blocks = ReadBooks()
    check = IdleCheck(blocks)
    for _ in range(6):
        check.run()
    assert [block for some in blocks.checked[:3] for block in some] == [*range(1, NUM_BLOCKS + 1)]
    assert blocks.checked[3:] == blocks.checked[:3]
    assert max(len(some) for some in blocks.checked) == BLOCKS_A_CHECK


def test_a_wrong_sum_is_found_at_once() -> None:
    blocks = BlockManager(NUM_BLOCKS)
    check = IdleCheck(blocks)
    check.run()
    blocks._counts["free"] -= 1
    with pytest.raises(AssertionError):
        check.run()


def test_a_wrong_block_is_found_when_its_turn_comes() -> None:
    blocks = BlockManager(NUM_BLOCKS)
    check = IdleCheck(blocks)
    blocks._blocks[NUM_BLOCKS].num_fences = 1
    check.run()
    check.run()
    with pytest.raises(AssertionError):
        check.run()
