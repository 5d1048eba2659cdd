import torch

from engine.ranking import best_tokens


def test_best_first_and_the_lower_id_among_equals() -> None:
    best, ids = best_tokens(torch.tensor([0.5, -1.0, 2.0, 0.5, -torch.inf, 2.0, -0.25]), 7)
    assert ids == [2, 5, 0, 3, 6, 1, 4]
    assert best == [2.0, 2.0, 0.5, 0.5, -0.25, -1.0, -torch.inf]


def test_the_order_does_not_depend_on_the_number() -> None:
    """Coarse values over a vocabulary that is no multiple of anything, its best at both ends."""
    values = torch.randn(901, generator=torch.Generator().manual_seed(0)).bfloat16().float()
    values[0] = values[-1] = 9.0
    best, ids = best_tokens(values, 901)
    assert ids[:2] == [0, 900]
    assert sorted(ids) == list(range(901))
    assert best == sorted(values.tolist(), reverse=True)
    for number in (0, 1, 2, 14, 15, 300):
        assert best_tokens(values, number) == (best[:number], ids[:number])
