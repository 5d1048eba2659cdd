"""top_k, top_p and min_p on one row of logits, without sorting the vocabulary."""

import math

import numpy as np
import torch
from numpy.typing import NDArray

from engine.ranking import best_tokens
from engine.sampling_params import SamplingParams

# Rounding must not put a token below a bound that only spares work.
_SLACK = 1e-3


def is_truncated(params: SamplingParams, vocab_size: int) -> bool:
    """Whether the parameters may drop anything."""
    return 0 < params.top_k < vocab_size or params.top_p < 1.0 or params.min_p > 0.0


def truncate(
    logits: torch.Tensor, params: SamplingParams
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Ids, ascending, that the parameters keep of a row (vocabulary,), and their weights.

    Weights are what softmax has before it divides by their sum: 1 for the best. Each of the three
    parameters works on what the one before left. Among equals the lower ids are kept.
    """
    row = logits.numpy()
    best = float(row.max())
    if 0 < params.top_k < row.size:
        ids = np.sort(best_tokens(row, params.top_k))
        row = row[ids]
    elif params.top_p < 1.0:
        ids = np.arange(row.size)
    else:
        ids = np.flatnonzero(row >= best + (math.log(params.min_p) - _SLACK) * params.temperature)
        row = row[ids]
    weights = (torch.from_numpy(row) - best).div_(params.temperature).exp_().numpy()
    if params.top_p < 1.0:
        kept = _nucleus(weights, params.top_p)
        ids, weights = ids[kept], weights[kept]
    if params.min_p > 0.0:
        kept = np.flatnonzero(weights >= params.min_p)
        ids, weights = ids[kept], weights[kept]
    return ids, weights


def _nucleus(weights: NDArray[np.float32], top_p: float) -> NDArray[np.int64]:
    """Places, ascending, of the fewest that make ``top_p`` of the whole weight."""
    total = weights.sum(dtype=np.float64)
    # All that weigh no more than this make no more than 1 - top_p of it together.
    negligible = (1.0 - top_p) * total / weights.size
    places = np.flatnonzero(weights > float(negligible) * (1.0 - _SLACK))
    weights = weights[places]
    ordered = np.sort(weights)[::-1]
    reached = ordered.cumsum(dtype=np.float64)
    # The first place where enough is reached; rounding may leave even the last one short of it.
    last = min(int(np.searchsorted(reached, top_p * total)), ordered.size - 1)
    kept: NDArray[np.bool_] = weights > ordered[last]
    ties = np.flatnonzero(weights == ordered[last])
    kept[ties[: last + 1 - np.count_nonzero(kept)]] = True
    chosen: NDArray[np.int64] = places[kept]
    return chosen
