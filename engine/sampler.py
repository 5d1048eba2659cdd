"""Turns logits into tokens."""

from collections.abc import Sequence

import torch

from engine.batch import Sample, TokenLogprobs
from engine.draw import draw_tokens
from engine.logit_adjustment import LogitAdjustment
from engine.ranking import best_tokens
from engine.request import Request


class Sampler:
    """Draws depend on (seed, choice, position) only, greedy takes the lowest id among equals.

    Log probabilities are of the distribution after penalties, bias and masks, before temperature.
    """

    def __init__(self, eos_token_ids: frozenset[int]) -> None:
        self._eos_token_ids = eos_token_ids

    def sample(self, logits: torch.Tensor, requests: Sequence[Request]) -> list[tuple[Sample, ...]]:
        """One sample per choice of each request, from its row of ``logits`` (requests, vocab).

        ``logits`` are float32 and change in place.
        """
        for row, request in enumerate(requests):
            adjustment = LogitAdjustment(request, self._eos_token_ids)
            if not adjustment.is_identity:
                adjustment.apply(logits[row])
        greedy: list[int] = []
        if any(request.params.temperature == 0.0 for request in requests):
            greedy = logits.argmax(dim=-1).tolist()
        samples = []
        for row, request in enumerate(requests):
            if request.params.temperature == 0.0:
                token_ids = [greedy[row]] * len(request.choices)
            else:
                token_ids = draw_tokens(
                    logits[row], request.params, request.num_tokens, request.choices
                )
            samples.append(_samples(logits[row], request, token_ids))
        return samples


def _samples(
    logits: torch.Tensor, request: Request, token_ids: Sequence[int]
) -> tuple[Sample, ...]:
    """With log probabilities where the request asks for them."""
    drawn = zip(request.choices, token_ids, strict=True)
    if request.params.logprobs is None:
        return tuple(Sample(choice, token_id) for choice, token_id in drawn)
    logprobs = logits.log_softmax(dim=-1)
    best, ids = best_tokens(logprobs, min(request.params.logprobs, logits.numel()))
    top = tuple(zip(ids, best, strict=True))
    return tuple(
        Sample(choice, token_id, TokenLogprobs(token_id, logprobs[token_id].item(), top))
        for choice, token_id in drawn
    )
