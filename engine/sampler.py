"""Turns logits into tokens."""

from collections.abc import Sequence

import torch

from engine.batch import Sample, TokenLogprobs
from engine.draw import Draw, draw_tokens
from engine.logit_adjustment import LogitAdjustment
from engine.philox import uniform
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
        places = [(row, choice) for row, each in enumerate(requests) for choice in each.choices]
        token_ids = self._choose(logits, requests, places)
        logprobs = self._logprobs(logits, requests, places, token_ids)
        samples: list[list[Sample]] = [[] for _ in requests]
        for (row, choice), token_id, entry in zip(places, token_ids, logprobs, strict=True):
            samples[row].append(Sample(choice, token_id, entry))
        return [tuple(row) for row in samples]

    def _choose(
        self,
        logits: torch.Tensor,
        requests: Sequence[Request],
        places: Sequence[tuple[int, int]],
    ) -> list[int]:
        draws: dict[int, Draw] = {}
        for index, (row, choice) in enumerate(places):
            request = requests[row]
            if request.params.temperature > 0.0:
                number = uniform(request.params.seed, choice, request.num_tokens)
                draws[index] = Draw(row, request.params, number)
        greedy: list[int] = logits.argmax(dim=-1).tolist() if len(draws) < len(places) else []
        drawn = dict(zip(draws, draw_tokens(logits, list(draws.values())), strict=True))
        return [
            drawn[index] if index in drawn else greedy[row] for index, (row, _) in enumerate(places)
        ]

    def _logprobs(
        self,
        logits: torch.Tensor,
        requests: Sequence[Request],
        places: Sequence[tuple[int, int]],
        token_ids: Sequence[int],
    ) -> list[TokenLogprobs | None]:
        entries: list[TokenLogprobs | None] = [None] * len(places)
        wanted = [requests[row].params.logprobs for row, _ in places]
        indices = [index for index, number in enumerate(wanted) if number is not None]
        if not indices:
            return entries
        rows = torch.tensor([places[index][0] for index in indices])
        logprobs = logits[rows].log_softmax(dim=-1)
        chosen = logprobs.gather(1, torch.tensor([[token_ids[index]] for index in indices]))
        width = min(max(wanted[index] or 0 for index in indices), logits.shape[1])
        top, top_ids = best_tokens(logprobs, width)
        for index, value, best, ids in zip(
            indices, chosen[:, 0].tolist(), top.tolist(), top_ids.tolist(), strict=True
        ):
            pairs = tuple(zip(ids, best, strict=True))[: wanted[index]]
            entries[index] = TokenLogprobs(token_ids[index], value, pairs)
        return entries
