"""Sampling written out over Python numbers, for comparison; and how close a draw was to another."""

import math
from dataclasses import dataclass

from engine.sampling_params import SamplingParams

MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class PlainDraw:
    """``margin``: how far the second of the race was behind, in units of logit / temperature."""

    token_id: int
    margin: float


def kept_probabilities(logits: list[float], params: SamplingParams) -> dict[int, float]:
    """What temperature, top_k, top_p and min_p leave, by token id, summing to 1."""
    scaled = [logit / params.temperature for logit in logits]
    highest = max(scaled)
    weights = {token: math.exp(value - highest) for token, value in enumerate(scaled)}
    ranked = sorted(weights, key=lambda token: (-weights[token], token))
    if params.top_k:
        ranked = ranked[: params.top_k]
    nucleus = params.top_p * math.fsum(weights[token] for token in ranked)
    kept, before = [], 0.0
    for token in ranked:
        if params.top_p < 1.0 and before >= nucleus:
            break
        kept.append(token)
        before += weights[token]
    kept = [token for token in kept if weights[token] >= params.min_p * weights[ranked[0]]]
    total = math.fsum(weights[token] for token in kept)
    return {token: weights[token] / total for token in sorted(kept)}


def plain_philox(
    counter: tuple[int, int, int, int], key: tuple[int, int]
) -> tuple[int, int, int, int]:
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c0, 1 << 32)
        high1, low1 = divmod(0xCD9E8D57 * c2, 1 << 32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) % (1 << 32), (k1 + 0xBB67AE85) % (1 << 32)
    return c0, c1, c2, c3


def plain_gumbel(seed: int, choice: int, position: int, token_id: int) -> float:
    high, low = divmod(seed, 1 << 32)
    words = plain_philox((token_id // 4, position, choice, 0), (low, high))
    return gumbel_of_word(words[token_id % 4])


def gumbel_of_word(word: int) -> float:
    return -math.log(-math.log1p(-(word + 0.5) / 2**32))


def plain_draw(
    logits: list[float], params: SamplingParams, choice: int, position: int
) -> PlainDraw:
    """Over the tokens that truncation keeps."""
    gumbels = {
        token: plain_gumbel(params.seed, choice, position, token)
        for token in kept_probabilities(logits, params)
    }
    return plain_race(logits, params.temperature, gumbels)


def plain_race(logits: list[float], temperature: float, gumbels: dict[int, float]) -> PlainDraw:
    """The highest sum of logit / temperature and gumbel; the lowest token id among equals."""
    sums = {token: logits[token] / temperature + gumbel for token, gumbel in gumbels.items()}
    first, *others = sorted(sums, key=lambda token: (-sums[token], token))
    return PlainDraw(first, sums[first] - sums[others[0]] if others else math.inf)
