"""The GPU's sampler against sampling written out over Python numbers."""

import math

import pytest
import torch

from engine.kernels.cuda.sample import SamplingRows, sample
from engine.sampling_params import SamplingParams
from tests.engine.plain_sampling import plain_draw

VOCAB_SIZE = 5003
# Scores this close may come in another order in float32.
NEAR_TIE = 2e-5

CASES = {
    "greedy": SamplingParams(temperature=0.0),
    "plain": SamplingParams(temperature=1.0),
    "hot": SamplingParams(temperature=3.0),
    "cold": SamplingParams(temperature=0.05),
    "top_k": SamplingParams(temperature=1.0, top_k=5),
    "top_k of one": SamplingParams(temperature=1.0, top_k=1),
    "top_k of all": SamplingParams(temperature=1.0, top_k=VOCAB_SIZE + 1),
    "top_p": SamplingParams(temperature=1.0, top_p=0.7),
    "top_p near 0": SamplingParams(temperature=1.0, top_p=1e-6),
    "min_p": SamplingParams(temperature=1.5, min_p=0.05),
    "all": SamplingParams(temperature=1.3, top_k=40, top_p=0.8, min_p=0.02),
    "high seed": SamplingParams(temperature=1.0, seed=(1 << 64) - 3),
}


def make_rows(params: list[SamplingParams], choice: int, device: torch.device) -> SamplingRows:
    """Row i draws for position 100 + i."""

    def floats(name: str) -> torch.Tensor:
        return torch.tensor([getattr(each, name) for each in params], device=device)

    def words(values: list[int]) -> torch.Tensor:
        unsigned = torch.tensor(values, dtype=torch.int64)
        return unsigned.to(torch.int32).to(device)

    return SamplingRows(
        temperatures=floats("temperature"),
        top_ps=floats("top_p"),
        min_ps=floats("min_p"),
        top_ks=words([each.top_k for each in params]),
        choices=words([choice] * len(params)),
        positions=words([100 + row for row in range(len(params))]),
        seed_lows=words([each.seed & 0xFFFFFFFF for each in params]),
        seed_highs=words([each.seed >> 32 for each in params]),
    )


def draw(logits: torch.Tensor, params: list[SamplingParams], device: torch.device) -> list[int]:
    output = torch.full((len(params),), -1, dtype=torch.int32, device=device)
    sample(logits.to(device), make_rows(params, 2, device), output)
    return output.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("params", CASES.values(), ids=CASES.keys())
def test_draws_equal_the_rule(
    params: SamplingParams, dtype: torch.dtype, device: torch.device
) -> None:
    """bfloat16 logits tie often, so that the border of truncation falls among equals."""
    logits = torch.randn(4, VOCAB_SIZE, generator=torch.Generator().manual_seed(3)) * 3
    logits = logits.to(dtype)
    tokens = draw(logits, [params] * 4, device)
    for row, token in enumerate(tokens):
        values = logits[row].float().tolist()
        if params.temperature == 0.0:
            assert token == values.index(max(values))
            continue
        expected = plain_draw(values, params, 2, 100 + row)
        assert token == expected.token_id or expected.margin < NEAR_TIE


def test_rows_of_a_batch_do_not_depend_on_one_another(device: torch.device) -> None:
    logits = torch.randn(1, VOCAB_SIZE, generator=torch.Generator().manual_seed(4))
    params = list(CASES.values())
    together = draw(logits.repeat(len(params), 1), params, device)
    for row, (each, token) in enumerate(zip(params, together, strict=True)):
        padded = [params[0]] * row + [each]
        assert draw(logits.repeat(row + 1, 1), padded, device)[row] == token


def test_greedy_takes_the_lowest_id_among_equals(device: torch.device) -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, [4999, 77, 4097]] = 1.0
    assert draw(logits, [SamplingParams(temperature=0.0)], device) == [77]


def test_top_k_keeps_the_lowest_ids_among_equals(device: torch.device) -> None:
    """All logits equal: whatever is drawn is among the first 3."""
    params = [SamplingParams(temperature=1.0, top_k=3, seed=seed) for seed in range(16)]
    tokens = draw(torch.zeros(16, VOCAB_SIZE), params, device)
    assert set(tokens) <= {0, 1, 2}
    assert len(set(tokens)) > 1


def test_forbidden_tokens_are_never_drawn(device: torch.device) -> None:
    logits = torch.full((8, VOCAB_SIZE), -math.inf)
    logits[:, [11, 4500]] = 0.0
    params = [SamplingParams(temperature=1.0, top_p=0.99, seed=seed) for seed in range(8)]
    assert set(draw(logits, params, device)) <= {11, 4500}
