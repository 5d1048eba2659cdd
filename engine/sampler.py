"""Turns logits into tokens."""

from collections.abc import Iterator, Sequence

import torch

from engine.batch import Sample, TokenLogprobs
from engine.draw import Draw, draw_tokens
from engine.logit_adjustment import LogitAdjustment
from engine.ranking import best_tokens
from engine.request import Request


class Sampler:
    """Draws depend on (seed, choice, position) only, greedy takes the lowest id among equals.

    Log probabilities are of the distribution after penalties, bias and masks, before temperature.
    """

    def sample(self, logits: torch.Tensor, requests: Sequence[Request]) -> list[tuple[Sample, ...]]:
        """One sample per choice of each request, from its row of ``logits`` (requests, vocab).

        ``logits`` are float32 and change in place.
        """
        for row, request in enumerate(requests):
            adjustment = LogitAdjustment(request)
            if not adjustment.is_identity:
                adjustment.apply(logits[row])
        drawn = iter(draw_tokens(list(_draws(logits, requests))))
        return [
            samples_of(
                row,
                request,
                [_likeliest(row)] * len(request.choices)
                if request.params.temperature == 0.0
                else next(drawn),
            )
            for row, request in zip(logits, requests, strict=True)
        ]


def _draws(logits: torch.Tensor, requests: Sequence[Request]) -> Iterator[Draw]:
    """Of the requests that are not greedy."""
    for row, request in zip(logits, requests, strict=True):
        if request.params.temperature > 0.0:
            yield Draw(row, request.params, request.num_tokens, request.choices)


def _likeliest(logits: torch.Tensor) -> int:
    """The lowest id among equals. NumPy's is ten times as fast as torch's on a row."""
    return int(logits.numpy().argmax())


def samples_of(
    logits: torch.Tensor, request: Request, token_ids: Sequence[int]
) -> tuple[Sample, ...]:
    """With log probabilities where the request asks for them."""
    drawn = zip(request.choices, token_ids, strict=True)
    if request.params.logprobs is None:
        return tuple(Sample(choice, token_id) for choice, token_id in drawn)
    logprobs = logits.log_softmax(dim=-1).numpy()
    best = best_tokens(logprobs, request.params.logprobs)
    top = tuple(zip(best.tolist(), logprobs[best].tolist(), strict=True))
    return tuple(
        Sample(choice, token_id, TokenLogprobs(token_id, logprobs[token_id].item(), top))
        for choice, token_id in drawn
    )
