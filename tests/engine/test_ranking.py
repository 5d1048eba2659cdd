import torch

from engine.ranking import best_tokens


def test_best_first_and_the_lower_id_among_equals() -> None:
    values = torch.tensor([[0.5, -1.0, 2.0, 0.5, -torch.inf, 2.0, -0.25]])
    best, ids = best_tokens(values, 7)
    assert ids.tolist() == [[2, 5, 0, 3, 6, 1, 4]]
    assert best.tolist() == [[2.0, 2.0, 0.5, 0.5, -0.25, -1.0, -torch.inf]]


def test_the_order_does_not_depend_on_the_width() -> None:
    values = torch.randn(3, 900, generator=torch.Generator().manual_seed(0)).bfloat16().float()
    _, ids = best_tokens(values, 900)
    assert all(torch.equal(best_tokens(values, width)[1], ids[:, :width]) for width in (1, 7, 300))
    assert torch.equal(values.gather(1, ids), values.sort(dim=-1, descending=True).values)
