"""Draws against sampling written out over Python floats."""

import random
from collections import Counter

import pytest
import torch

from engine.draw import draw_tokens
from engine.philox import uniform
from engine.sampling_params import SamplingParams
from engine.truncation import truncate
from tests.engine.plain_sampling import kept_probabilities, plain_draw

# Float32 logits reach the plain code exactly; what differs is the rounding of float32 softmax.
MARGIN = 1e-5

PARAMS = {
    "plain": SamplingParams(),
    "cold": SamplingParams(temperature=0.3),
    "hot": SamplingParams(temperature=2.0),
    "top_k": SamplingParams(top_k=5),
    "top_k 1": SamplingParams(top_k=1),
    "top_k over the vocabulary": SamplingParams(top_k=5000),
    "top_p": SamplingParams(top_p=0.7),
    "top_p of nearly nothing": SamplingParams(top_p=1e-6),
    "top_p of nearly all": SamplingParams(top_p=0.999),
    "min_p": SamplingParams(min_p=0.1),
    "min_p 1": SamplingParams(min_p=1.0),
    "all together": SamplingParams(temperature=1.5, top_k=40, top_p=0.9, min_p=0.02),
    "top_k and min_p": SamplingParams(temperature=0.8, top_k=300, min_p=0.01),
}
EACH_PARAMS = pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())


def make_logits(vocab_size: int, scale: float = 3.0, seed: int = 0) -> torch.Tensor:
    return torch.randn(vocab_size, generator=torch.Generator().manual_seed(seed)) * scale


@EACH_PARAMS
@pytest.mark.parametrize("vocab_size", [3, 256, 1000], ids=lambda size: f"vocabulary {size}")
def test_draws_equal_plain_sampling(params: SamplingParams, vocab_size: int) -> None:
    numbers = random.Random(1)
    for row in range(20):
        logits = make_logits(vocab_size, seed=row)
        number = numbers.random()
        (token_id,) = draw_tokens(logits, params, [number])
        expected = plain_draw(logits.tolist(), params, number)
        assert token_id == expected.token_id or expected.margin < MARGIN


@EACH_PARAMS
@pytest.mark.parametrize("scale", [0.3, 1.0, 8.0], ids=["flat", "middling", "peaked"])
def test_truncation_keeps_what_plain_sampling_keeps(params: SamplingParams, scale: float) -> None:
    """But for rounding: of the token at the border, and of probabilities next to nothing."""
    logits = make_logits(3000, scale=scale)
    probabilities = (logits / params.temperature).softmax(dim=-1)
    before = probabilities.clone()
    truncate(probabilities, params)
    kept = (probabilities > 1e-30).nonzero()[:, 0].tolist()
    assert torch.equal(probabilities[kept], before[kept])
    exact = kept_probabilities(logits.tolist(), params)
    expected = {token for token in exact if before[token] > 1e-30}
    assert len(set(kept) ^ expected) <= 1


@pytest.mark.parametrize("number", [0.0, 1.0 - 2.0**-53], ids=["lowest", "highest"])
@EACH_PARAMS
def test_the_ends_of_the_unit_interval_draw_possible_tokens(
    params: SamplingParams, number: float
) -> None:
    """The vocabulary begins and ends with impossible tokens, which rounding must not reach."""
    logits = make_logits(700)
    logits[:300] = -torch.inf
    logits[400:] = -torch.inf
    (token_id,) = draw_tokens(logits, params, [number])
    assert token_id in kept_probabilities(logits.tolist(), params)


def test_among_equals_the_lower_ids_are_kept() -> None:
    numbers = [number / 40 for number in range(40)]
    for params in (SamplingParams(top_k=4), SamplingParams(top_p=4 / 600)):
        assert set(draw_tokens(torch.zeros(600), params, numbers)) == {0, 1, 2, 3}


@EACH_PARAMS
def test_frequencies_follow_the_distribution(params: SamplingParams) -> None:
    """Chi-square over the kept tokens, each expected 5 times or more; 4.5 sigma above its mean."""
    logits = make_logits(30, scale=1.0)
    num_draws = 3000
    numbers = [uniform(5, 0, position) for position in range(num_draws)]
    counts = Counter(draw_tokens(logits, params, numbers))
    expected = kept_probabilities(logits.tolist(), params)
    assert set(counts) <= set(expected)
    common = {token: p * num_draws for token, p in expected.items() if p * num_draws >= 5}
    chi_square = sum((counts[token] - count) ** 2 / count for token, count in common.items())
    assert chi_square < len(common) + 4.5 * (2 * len(common)) ** 0.5
