"""Draws tokens by inverting the cumulative distribution in the order of token ids."""

from collections.abc import Sequence

import torch

from engine.sampling_params import SamplingParams
from engine.truncation import truncate

# The vocabulary is summed in segments first; only one of them is accumulated token by token.
SEGMENT = 256
BELOW_ONE = 1.0 - 2.0**-53


def draw_tokens(
    logits: torch.Tensor, params: SamplingParams, numbers: Sequence[float]
) -> list[int]:
    """One token id per uniform number in [0, 1), from one row of float32 logits (vocabulary,).

    Temperature (above 0) comes first, then truncation. A row at a time, because a row stays in the
    processor's cache from one operation to the next and many do not.
    """
    vocab_size = logits.numel()
    padded = logits.new_zeros(-(-vocab_size // SEGMENT) * SEGMENT)
    probabilities = padded[:vocab_size]
    torch.softmax(logits / params.temperature, dim=-1, out=probabilities)
    truncate(probabilities, params)
    segments = padded.view(-1, SEGMENT)
    ends = segments.sum(dim=-1).double().cumsum(0)
    return [_invert(segments, ends, number) for number in numbers]


def _invert(segments: torch.Tensor, ends: torch.Tensor, number: float) -> int:
    target = number * ends[-1].item()
    segment = _first_above(ends, target)
    before = ends[segment - 1].item() if segment > 0 else 0.0
    within = segments[segment].double().cumsum(0)
    return segment * SEGMENT + _first_above(within, target - before)


def _first_above(ends: torch.Tensor, target: float) -> int:
    """The first place whose value is above the target: never one of probability 0.

    Rounding may put a target on or over the last value; it then stands for the one just below.
    """
    target = min(target, ends[-1].item() * BELOW_ONE)
    return int(torch.searchsorted(ends, target, right=True))
