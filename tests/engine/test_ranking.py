import numpy as np

from engine.ranking import best_tokens


def test_best_first_and_the_lower_id_among_equals() -> None:
    values = np.array([0.5, -1.0, 2.0, 0.5, -np.inf, 2.0, -0.25], dtype=np.float32)
    assert best_tokens(values, 7).tolist() == [2, 5, 0, 3, 6, 1, 4]


def test_the_order_does_not_depend_on_the_number() -> None:
    """Coarse values over a vocabulary that is no multiple of anything, its best at both ends."""
    values = np.random.default_rng(0).normal(size=901).round(2).astype(np.float32)
    values[0] = values[-1] = 9.0
    ids = best_tokens(values, 901).tolist()
    assert ids[:2] == [0, 900]
    assert sorted(ids) == list(range(901))
    assert values[ids].tolist() == sorted(values.tolist(), reverse=True)
    for number in (0, 1, 2, 14, 15, 300):
        assert best_tokens(values, number).tolist() == ids[:number]


def test_there_are_no_more_than_all() -> None:
    assert best_tokens(np.zeros(3, dtype=np.float32), 20).tolist() == [0, 1, 2]
