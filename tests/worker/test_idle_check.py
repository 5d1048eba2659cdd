"""Books that are wrong end the worker; books that were right a moment ago are not read again."""

import pytest

from engine.block_manager import BlockManager
from worker.idle_check import CHECK_SECONDS, IdleCheck


def test_wrong_books_are_found_at_the_next_check() -> None:
    now = 0.0
    blocks = BlockManager(4)
    check = IdleCheck(blocks, clock=lambda: now)
    check.run()
    blocks._counts["free"] -= 1
    check.run()
    now = CHECK_SECONDS
    with pytest.raises(AssertionError):
        check.run()
