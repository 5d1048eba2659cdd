"""Who is woken by which change of the load."""

import pytest

from engine.block_manager import BlockManager
from worker.load import Load, LoadBoard

COUNTS = BlockManager(4).counts()


@pytest.mark.parametrize("change", ["waiting", "handing_off", "running"])
async def test_a_change_of_the_requests_wakes_the_watchers(change: str) -> None:
    board = LoadBoard(Load(COUNTS))
    changed = board.next_change
    board.post(Load(COUNTS, **{change: 1}))
    assert changed.is_set()
    assert not board.next_change.is_set()


async def test_steps_alone_wake_nobody_but_are_shown() -> None:
    board = LoadBoard(Load(COUNTS))
    changed = board.next_change
    board.post(Load(COUNTS, steps=9))
    assert not changed.is_set()
    assert board.to_pb().steps == 9


async def test_taking_no_more_work_wakes_the_watchers() -> None:
    board = LoadBoard(Load(COUNTS))
    board.set_accepting(True)
    changed = board.next_change
    board.set_accepting(False)
    assert changed.is_set()
    assert board.to_pb().accepting is False


async def test_every_block_state_is_told() -> None:
    blocks = BlockManager(6)
    blocks.reserve(1)
    blocks.fence(blocks.allocate(2)[:1])
    told = LoadBoard(Load(blocks.counts())).to_pb().blocks
    assert (told.used, told.reserved, told.free, told.total) == (2, 1, 3, 6)
