"""Log probabilities without a sort, against the twin that sorts."""

import math

import pytest
import torch

from engine.kernels.cuda.rank_logprobs import rank_logprobs, rank_logprobs_torch, words_a_row

# Three pieces, the last of them nearly empty.
VOCAB_SIZE = 2 * 4096 + 9
# Sums of exponentials in another order, in float32.
TOLERANCE = 2e-6


def make_logits(kind: str) -> torch.Tensor:
    logits = torch.randn(5, VOCAB_SIZE, generator=torch.Generator().manual_seed(2)) * 4
    if kind == "ties":
        logits = logits.round()
        logits[logits == 0.0] = -0.0
        logits[0] = 0.0
    elif kind == "masked":
        logits[:, :4099] = -math.inf
        logits[1] = -math.inf
        logits[1, [7, 4500, 8200]] = torch.tensor([1.0, -3.0, 1.0])
    elif kind == "huge":
        logits *= 1e30
    return logits


@pytest.mark.parametrize("width", [0, 1, 5, 20])
@pytest.mark.parametrize("kind", ["plain", "ties", "masked", "huge"])
def test_the_best_and_the_drawn_equal_the_twin(kind: str, width: int, device: torch.device) -> None:
    logits = make_logits(kind)
    rows = torch.tensor([4, 1, 0], dtype=torch.int32)
    tokens = torch.tensor([0, 4500, 11, 12, 8200], dtype=torch.int32)
    expected = torch.zeros(3, words_a_row(width), dtype=torch.int32)
    actual = expected.clone().to(device)
    rank_logprobs_torch(logits, rows, tokens, width, expected)
    rank_logprobs(logits.to(device), rows.to(device), tokens.to(device), width, actual)
    actual = actual.cpu()
    torch.testing.assert_close(
        actual[:, : 1 + width].view(torch.float32),
        expected[:, : 1 + width].view(torch.float32),
        atol=TOLERANCE,
        rtol=TOLERANCE,
    )
    assert torch.equal(actual[:, 1 + width : 1 + 2 * width], expected[:, 1 + width : 1 + 2 * width])


def test_a_small_vocabulary_is_ranked_as_a_whole(device: torch.device) -> None:
    logits = torch.tensor([[0.5, -1.0, 2.0, 0.5, -math.inf, 2.0, -0.25]], device=device)
    found = torch.zeros(1, words_a_row(7), dtype=torch.int32, device=device)
    zero = torch.zeros(1, dtype=torch.int32, device=device)
    rank_logprobs(logits, zero, zero, 7, found)
    assert found[0, 8:15].tolist() == [2, 5, 0, 3, 6, 1, 4]
    logprobs = found[0, :8].view(torch.float32)
    assert logprobs[7] == -math.inf
    assert math.isclose(logprobs[1:].exp().sum().item(), 1.0, rel_tol=TOLERANCE)
