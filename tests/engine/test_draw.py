"""Draws against sampling written out over Python numbers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.draw import Draw, Race, draw_tokens
from engine.philox import TOKENS_PER_GROUP
from engine.sampling_params import SamplingParams
from engine.truncation import is_truncated, truncate
from tests.engine.plain_sampling import (
    gumbel_of_word,
    kept_probabilities,
    plain_draw,
    plain_gumbel,
    plain_race,
)

# Both compute scores in float64 from the same float32 logits.
MARGIN = 1e-9
# A logit of up to 15 moves by up to 1e-6 of itself, and two of them may move apart.
ROUNDING = 1e-6
GAP_TOLERANCE = 3e-5
# The words at either end of a token's noise, which Philox gives once in four billion.
EXTREME_WORDS = [0, 1, 0xFFFFFFFE, 0xFFFFFFFF]

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


def draw(
    logits: torch.Tensor, params: SamplingParams, position: int, choices: Sequence[int]
) -> list[int]:
    (token_ids,) = draw_tokens([Draw(logits, params, position, choices)])
    return token_ids


def make_logits(vocab_size: int, scale: float = 3.0, seed: int = 0) -> torch.Tensor:
    return torch.randn(vocab_size, generator=torch.Generator().manual_seed(seed)) * scale


@EACH_PARAMS
@pytest.mark.parametrize("vocab_size", [3, 256, 1000], ids=lambda size: f"vocabulary {size}")
def test_draws_equal_plain_sampling(params: SamplingParams, vocab_size: int) -> None:
    for row in range(20):
        logits = make_logits(vocab_size, seed=row)
        seeded = replace(params, seed=row << 30)
        token_ids = draw(logits, seeded, 7 + row, (0, 3))
        for choice, token_id in zip((0, 3), token_ids, strict=True):
            expected = plain_draw(logits.tolist(), seeded, choice, 7 + row)
            assert token_id == expected.token_id or expected.margin < MARGIN


@pytest.mark.parametrize("share_of_extremes", [0.01, 0.5, 1.0])
@pytest.mark.parametrize("scale", [0.1, 3.0, 12.0], ids=["flat", "middling", "peaked"])
def test_the_winner_is_that_of_a_race_which_leaves_no_token_out(
    scale: float, share_of_extremes: float
) -> None:
    random = np.random.default_rng(4)
    for row in range(20):
        logits = make_logits(800, scale=scale, seed=row)
        words = random.integers(0, 1 << 32, 800, dtype=np.uint32)
        is_extreme = random.random(800) < share_of_extremes
        words[is_extreme] = random.choice(EXTREME_WORDS, is_extreme.sum())
        gumbels = {token: gumbel_of_word(word) for token, word in enumerate(words.tolist())}
        for temperature in (0.3, 1.0, 2.0):
            race = Race.of(logits, SamplingParams(temperature=temperature))
            winner = race.winner(
                words.astype(np.uint64).reshape(-1, TOKENS_PER_GROUP).T[:, race.groups]
            )
            expected = plain_race(logits.tolist(), temperature, gumbels)
            assert winner == expected.token_id or expected.margin < MARGIN


def test_draws_together_equal_each_alone() -> None:
    """Large races and small, with one choice and with many."""
    draws = [
        Draw(make_logits(5000, scale, seed=row), replace(params, seed=row), row, choices)
        for scale in (0.3, 8.0)
        for choices in ([0], range(3))
        for row, params in enumerate(PARAMS.values())
    ]
    together = draw_tokens(draws)
    assert together == [draw_tokens([each])[0] for each in draws]
    assert draw_tokens([]) == []


def test_a_peaked_distribution_leaves_few_in_the_race() -> None:
    assert Race.of(make_logits(49152, scale=12.0), SamplingParams()).groups.size < 1000


@pytest.mark.parametrize(
    "params",
    [params for params in PARAMS.values() if is_truncated(params, 3000)],
    ids=[name for name, params in PARAMS.items() if is_truncated(params, 3000)],
)
@pytest.mark.parametrize("scale", [0.3, 1.0, 8.0], ids=["flat", "middling", "peaked"])
def test_truncation_keeps_what_plain_sampling_keeps(params: SamplingParams, scale: float) -> None:
    """But for rounding: of the token at the border, and of probabilities next to nothing."""
    logits = make_logits(3000, scale=scale)
    ids, weights = truncate(logits, params)
    assert ids.tolist() == sorted(ids.tolist())
    before = ((logits - logits.max()) / params.temperature).exp()
    assert np.array_equal(weights, before[torch.from_numpy(ids)].numpy())
    exact = kept_probabilities(logits.tolist(), params)
    kept = {token for token in ids.tolist() if before[token] > 1e-30}
    expected = {token for token in exact if before[token] > 1e-30}
    assert len(kept ^ expected) <= 1


@pytest.mark.parametrize("word", [0, 0xFFFFFFFF], ids=["soonest", "latest"])
@EACH_PARAMS
def test_the_ends_of_the_random_words_draw_possible_tokens(
    params: SamplingParams, word: int
) -> None:
    """The vocabulary begins and ends with impossible tokens, which rounding must not reach."""
    logits = make_logits(700)
    logits[:300] = -torch.inf
    logits[400:] = -torch.inf
    race = Race.of(logits, params)
    words = np.full((TOKENS_PER_GROUP, race.groups.size), word, dtype=np.uint64)
    assert race.winner(words) == logits.argmax()
    (token_id,) = draw(logits, params, 0, [0])
    assert token_id in kept_probabilities(logits.tolist(), params)


def test_among_equals_the_lower_ids_are_kept() -> None:
    for params in (SamplingParams(top_k=4), SamplingParams(top_p=4 / 600)):
        drawn = draw(torch.zeros(600), params, 0, range(60))
        assert set(drawn) == {0, 1, 2, 3}


def test_among_equal_scores_the_lowest_id_wins() -> None:
    race = Race.of(torch.zeros(600), SamplingParams())
    assert race.winner(np.full((TOKENS_PER_GROUP, 150), 12345, dtype=np.uint64)) == 0


@EACH_PARAMS
def test_frequencies_follow_the_distribution(params: SamplingParams) -> None:
    """Chi-square over the kept tokens, each expected 5 times or more; 4.5 sigma above its mean."""
    logits = make_logits(30, scale=1.0)
    num_draws = 3000
    counts = Counter(draw(logits, replace(params, seed=5), 0, range(num_draws)))
    expected = kept_probabilities(logits.tolist(), params)
    assert set(counts) <= set(expected)
    common = {token: p * num_draws for token, p in expected.items() if p * num_draws >= 5}
    chi_square = sum((counts[token] - count) ** 2 / count for token, count in common.items())
    assert chi_square < len(common) + 4.5 * (2 * len(common)) ** 0.5


def test_rounding_of_logits_changes_a_draw_only_at_a_near_tie() -> None:
    """What batch shape does to float32 logits, over a whole vocabulary without truncation."""
    params = SamplingParams(seed=11)
    logits = make_logits(49152)
    assert logits.abs().max() < 15.0
    noise = torch.rand(49152, generator=torch.Generator().manual_seed(1)) * 2.0 - 1.0
    moved = logits * (1.0 + ROUNDING * noise)
    assert not torch.equal(moved, logits)
    drawn, drawn_of_moved = (draw(row, params, 7, range(2000)) for row in (logits, moved))
    pairs = enumerate(zip(drawn, drawn_of_moved, strict=True))
    changed = [(choice, pair) for choice, pair in pairs if pair[0] != pair[1]]
    assert all(score_gap(logits, params, *each) < GAP_TOLERANCE for each in changed)
    assert len(changed) <= 2


def score_gap(
    logits: torch.Tensor, params: SamplingParams, choice: int, pair: tuple[int, int]
) -> float:
    """How far the first of two tokens is before the second."""
    first, second = (
        logits[token].item() + plain_gumbel(params.seed, choice, 7, token) for token in pair
    )
    return first - second
