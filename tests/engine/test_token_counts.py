from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.token_counts import TokenCounts

TOKENS = st.lists(st.integers(0, 9), max_size=40)


@settings(deadline=None)
@given(prompt=st.lists(st.integers(0, 9), min_size=1, max_size=40), steps=st.lists(TOKENS))
def test_counts_equal_a_recount_however_the_sequence_grew(
    prompt: list[int], steps: list[list[int]]
) -> None:
    counts, token_ids = TokenCounts(), list(prompt)
    for step in [[], *steps]:
        token_ids += step
        counts.catch_up(token_ids, len(prompt))
        expected = Counter(token_ids[len(prompt) :])
        assert counts.ids().tolist() == list(dict.fromkeys(token_ids))
        assert counts.times().tolist() == [expected[token] for token in dict.fromkeys(token_ids)]


def test_only_distinct_tokens_take_room() -> None:
    counts = TokenCounts()
    counts.catch_up([1, 2, 3] * 1000, 3)
    assert counts.ids().numel() == counts.times().numel() == 3


def test_a_token_that_is_counted_is_not_looked_at_again() -> None:
    """What a step costs does not grow with the sequence."""
    counts, token_ids = TokenCounts(), [1, 2]
    counts.catch_up(token_ids, 1)
    counts.catch_up([-1, -1, 3], 1)
    assert counts.ids().tolist() == [1, 2, 3]
