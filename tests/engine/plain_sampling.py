"""Sampling written out over Python floats, for comparison; and how close a draw was to another."""

import math
from dataclasses import dataclass

from engine.sampling_params import SamplingParams


@dataclass(frozen=True)
class PlainDraw:
    """``margin``: by how much the uniform number may move before another token is drawn."""

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


def plain_draw(logits: list[float], params: SamplingParams, number: float) -> PlainDraw:
    end = 0.0
    for token, probability in kept_probabilities(logits, params).items():
        start, end = end, end + probability
        if number < end:
            return PlainDraw(token, min(number - start, end - number))
    return PlainDraw(token, number - start)
