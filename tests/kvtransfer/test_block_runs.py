"""Adjacent blocks become one descriptor."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtransfer.block_read import cut_pieces
from kvtransfer.transport.base import BlockRun, merge_runs

BLOCK = st.integers(min_value=1, max_value=40)
PAIRS = st.lists(st.tuples(BLOCK, BLOCK))


def test_blocks_adjacent_on_both_sides_are_merged() -> None:
    assert merge_runs([4, 5, 6, 9], [1, 2, 3, 4], 10) == [BlockRun(4, 1, 3), BlockRun(9, 4, 1)]


def test_blocks_adjacent_on_one_side_only_are_not() -> None:
    assert merge_runs([4, 5], [2, 1], 10) == [BlockRun(4, 2, 1), BlockRun(5, 1, 1)]


def test_a_run_has_at_most_the_given_number_of_blocks() -> None:
    runs = merge_runs([1, 2, 3, 4, 5], [1, 2, 3, 4, 5], 2)
    assert [run.num_blocks for run in runs] == [2, 2, 1]


def test_lists_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="3 blocks cannot go to 1 places"):
        merge_runs([1, 2, 3], [1], 10)


@given(pairs=PAIRS, max_blocks=st.integers(min_value=1, max_value=6))
def test_pieces_name_every_pair_once_and_in_order(
    pairs: list[tuple[int, int]], max_blocks: int
) -> None:
    pieces = cut_pieces([a for a, _ in pairs], [b for _, b in pairs], max_blocks)
    named = [
        (run.remote_block + step, run.local_block + step)
        for piece in pieces
        for run in piece
        for step in range(run.num_blocks)
    ]
    assert named == pairs
    assert all(0 < sum(run.num_blocks for run in piece) <= max_blocks for piece in pieces)
