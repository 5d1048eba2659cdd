"""Adjacent blocks become one descriptor."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtransfer.transport.block_runs import count_blocks, cut_pieces, each_block

BLOCK = st.integers(min_value=1, max_value=40)
PAIRS = st.lists(st.tuples(BLOCK, BLOCK))


def runs(remote_ids: list[int], local_ids: list[int], max_blocks: int) -> list[list[list[int]]]:
    """Of each piece."""
    return [piece.tolist() for piece in cut_pieces(remote_ids, local_ids, max_blocks)]


def test_blocks_adjacent_on_both_sides_are_merged() -> None:
    assert runs([4, 5, 6, 9], [1, 2, 3, 4], 10) == [[[4, 1, 3], [9, 4, 1]]]


def test_blocks_adjacent_on_one_side_only_are_not() -> None:
    assert runs([4, 5], [2, 1], 10) == [[[4, 2, 1], [5, 1, 1]]]


def test_a_piece_has_the_given_number_of_blocks_and_the_last_one_the_rest() -> None:
    ids = [1, 2, 3, 9, 5]
    assert runs(ids, ids, 2) == [[[1, 1, 2]], [[3, 3, 1], [9, 9, 1]], [[5, 5, 1]]]


def test_lists_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="3 blocks cannot go to 1 places"):
        cut_pieces([1, 2, 3], [1], 10)


@given(pairs=PAIRS, max_blocks=st.integers(min_value=1, max_value=6))
def test_pieces_name_every_pair_once_and_in_order(
    pairs: list[tuple[int, int]], max_blocks: int
) -> None:
    pieces = cut_pieces([a for a, _ in pairs], [b for _, b in pairs], max_blocks)
    named = [
        (there + step, here + step)
        for piece in pieces
        for there, here, num_blocks in piece.tolist()
        for step in range(num_blocks)
    ]
    assert named == pairs
    assert named == [(a, b) for piece in pieces for a, b, _ in each_block(piece).tolist()]
    assert [count_blocks(piece) for piece in pieces[:-1]] == [max_blocks] * (len(pieces) - 1)
    assert all(0 < count_blocks(piece) <= max_blocks for piece in pieces)
