"""Draws tokens from truncated distributions, one uniform number each.

The order is temperature, top_k, top_p, min_p, each on what the one before left. Then the inverse
of the cumulative distribution in the order of token ids, so that a draw depends on nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.ranking import best_tokens
from engine.sampling_params import SamplingParams

# Candidates looked at first where only top_p limits them: sorting the whole vocabulary costs more.
NUM_CANDIDATES = 256
# The vocabulary is summed in segments first; only one of them is accumulated token by token.
SEGMENT = 256
BELOW_ONE = 1.0 - 2.0**-53


@dataclass(frozen=True, slots=True)
class Draw:
    """One token to draw: from which row of the logits, how, and the uniform number in [0, 1)."""

    row: int
    params: SamplingParams
    uniform: float

    @property
    def is_ranked(self) -> bool:
        """Whether truncation needs the order of the probabilities."""
        return self.params.top_k > 0 or self.params.top_p < 1.0


def draw_tokens(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """One token id per draw; ``logits`` are (rows, vocabulary) float32, temperatures above 0."""
    token_ids = [0] * len(draws)
    ranked = [index for index, draw in enumerate(draws) if draw.is_ranked]
    plain = [index for index, draw in enumerate(draws) if not draw.is_ranked]
    for indices, function in ((plain, _draw_plain), (ranked, _draw_ranked)):
        if indices:
            drawn = function(logits, [draws[index] for index in indices])
            for index, token_id in zip(indices, drawn, strict=True):
                token_ids[index] = token_id
    return token_ids


def _probabilities(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    rows = logits[torch.tensor([draw.row for draw in draws])]
    return rows.div_(_column([draw.params.temperature for draw in draws])).softmax(dim=-1)


def _draw_plain(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    probabilities = _probabilities(logits, draws)
    if any(draw.params.min_p > 0.0 for draw in draws):
        floor = probabilities.amax(dim=-1, keepdim=True)
        floor *= _column([draw.params.min_p for draw in draws])
        probabilities.masked_fill_(probabilities < floor, 0.0)
    vocab_size = probabilities.shape[1]
    padded = torch.nn.functional.pad(probabilities, (0, -vocab_size % SEGMENT))
    segments = padded.view(len(draws), -1, SEGMENT)
    ends = segments.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    targets = ends[:, -1:] * _uniforms(draws)
    segment = _first_above(ends, targets)
    # What is left of the target within its segment.
    before = torch.where(segment > 0, ends.gather(1, (segment - 1).clamp(min=0)), 0.0)
    within = segments[torch.arange(len(draws)), segment[:, 0]].double().cumsum(dim=-1)
    token_ids = segment * SEGMENT + _first_above(within, targets - before)
    return [int(token_id) for token_id in token_ids[:, 0].tolist()]


def _draw_ranked(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    probabilities = _probabilities(logits, draws)
    vocab_size = probabilities.shape[1]
    width = max(draw.params.top_k or NUM_CANDIDATES for draw in draws)
    token_ids = _draw_best(probabilities, draws, min(width, vocab_size))
    missed = [index for index, token_id in enumerate(token_ids) if token_id is None]
    if missed:
        again = _draw_best(probabilities[missed], [draws[index] for index in missed], vocab_size)
        for index, token_id in zip(missed, again, strict=True):
            token_ids[index] = token_id
    assert None not in token_ids, token_ids
    return [token_id for token_id in token_ids if token_id is not None]


def _draw_best(probabilities: torch.Tensor, draws: Sequence[Draw], width: int) -> list[int | None]:
    """Draws from the ``width`` likeliest tokens; None where more of them belong to the nucleus."""
    vocab_size = probabilities.shape[1]
    best, ids = best_tokens(probabilities, width)
    best = best.double()
    top_k = _column([draw.params.top_k or vocab_size for draw in draws])
    best.masked_fill_(torch.arange(width) >= top_k, 0.0)
    # What top_p is a share of: all that top_k left, of which ``best`` may hold only a part.
    limited = best.sum(dim=-1, keepdim=True)
    whole = probabilities.sum(dim=-1, keepdim=True, dtype=torch.float64)
    mass = torch.where(top_k <= width, limited, whole)
    nucleus = _column([draw.params.top_p for draw in draws]) * mass
    covered = (limited >= nucleus) | (width == vocab_size) | (top_k <= width)
    best.masked_fill_(best.cumsum(dim=-1) - best >= nucleus, 0.0)
    best.masked_fill_(best < best[:, :1] * _column([draw.params.min_p for draw in draws]), 0.0)
    ids, order = ids.sort(dim=-1)
    ends = best.gather(1, order).cumsum(dim=-1)
    drawn = ids.gather(1, _first_above(ends, ends[:, -1:] * _uniforms(draws)))
    return [
        int(token_id) if is_covered else None
        for (token_id,), (is_covered,) in zip(drawn.tolist(), covered.tolist(), strict=True)
    ]


def _first_above(ends: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """First column of each row whose value is above the target: never one of probability 0.

    Rounding may put a target on or over the last value; it then stands for the one just below.
    """
    targets = torch.minimum(targets, ends[:, -1:] * BELOW_ONE)
    return torch.searchsorted(ends, targets, right=True).clamp_(max=ends.shape[1] - 1)


def _uniforms(draws: Sequence[Draw]) -> torch.Tensor:
    return _column([draw.uniform for draw in draws])


def _column(values: Sequence[float]) -> torch.Tensor:
    """(rows, 1), float64 unless all are integers."""
    integers = all(isinstance(value, int) for value in values)
    return torch.tensor(values, dtype=torch.int64 if integers else torch.float64)[:, None]
