"""top_k, top_p and min_p on one row of probabilities, without sorting the vocabulary."""

import torch

from engine.sampling_params import SamplingParams

# A bin holds the probabilities that share exponent and 4 bits of mantissa: positive floats order
# like the integers with the same bits, so bins do too, and only one of them must be sorted.
_BIN_SHIFT = 19


def truncate(probabilities: torch.Tensor, params: SamplingParams) -> None:
    """Sets what the parameters drop to 0, in place; float32 (vocabulary,).

    Each of the three works on what the one before left. Among equal probabilities the lower ids
    are kept.
    """
    if 0 < params.top_k < probabilities.numel():
        each = torch.ones_like(probabilities, dtype=torch.float64)
        _keep_best(probabilities, each, float(params.top_k))
    if params.top_p < 1.0:
        mass = probabilities.double()
        _keep_best(probabilities, mass, params.top_p * mass.sum().item())
    if params.min_p > 0.0:
        floor = params.min_p * probabilities.max()
        probabilities.masked_fill_(probabilities < floor, 0.0)


def _keep_best(probabilities: torch.Tensor, weights: torch.Tensor, enough: float) -> None:
    """Keeps the likeliest tokens until their weights add up to ``enough``."""
    bins = probabilities.view(torch.int32) >> _BIN_SHIFT
    from_top = torch.bincount(bins, weights=weights).flip(0).cumsum(0)
    # The first place where enough is reached; rounding may leave even the last one short of it.
    place = min(int(torch.searchsorted(from_top, enough)), from_top.numel() - 1)
    before = from_top[place - 1].item() if place > 0 else 0.0
    border = from_top.numel() - 1 - place
    ids = (bins == border).nonzero()[:, 0]
    values, order = probabilities[ids].sort(descending=True, stable=True)
    reached = weights[ids][order].cumsum(0) + before
    num_kept = int(torch.searchsorted(reached, enough)) + 1
    probabilities.masked_fill_(bins <= border, 0.0)
    probabilities[ids[order[:num_kept]]] = values[:num_kept]
