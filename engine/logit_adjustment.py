"""What a request's parameters do to its logits before anything is drawn from them."""

from collections import Counter

import torch

from engine.request import Request


class LogitAdjustment:
    """Penalties, bias and the mask of tokens that may not come yet, for one request."""

    def __init__(self, request: Request, eos_token_ids: frozenset[int]) -> None:
        self._request = request
        self._params = request.params
        self._forbidden = _forbidden_token_ids(request, eos_token_ids)

    @property
    def is_identity(self) -> bool:
        params = self._params
        return (
            params.repetition_penalty == 1.0
            and params.presence_penalty == 0.0
            and params.frequency_penalty == 0.0
            and not params.logit_bias
            and not self._forbidden
        )

    def apply(self, logits: torch.Tensor) -> None:
        """Changes one row (vocabulary,) in place."""
        if self._params.repetition_penalty != 1.0:
            self._penalize_repetition(logits)
        if self._params.presence_penalty or self._params.frequency_penalty:
            self._penalize_output(logits)
        if self._params.logit_bias:
            ids = torch.tensor(list(self._params.logit_bias))
            logits[ids] += torch.tensor(list(self._params.logit_bias.values()))
        if self._forbidden:
            logits[torch.tensor(sorted(self._forbidden))] = -torch.inf

    def _penalize_repetition(self, logits: torch.Tensor) -> None:
        ids = torch.tensor(list(set(self._request.token_ids)))
        seen = logits[ids]
        penalty = self._params.repetition_penalty
        penalized = torch.where(seen > 0, seen / penalty, seen * penalty)
        # A tiny penalty divides to infinity, and infinite logits have no distribution.
        logits[ids] = penalized.clamp_(max=torch.finfo(penalized.dtype).max)

    def _penalize_output(self, logits: torch.Tensor) -> None:
        counts = Counter(self._request.output_token_ids)
        if not counts:
            return
        times = torch.tensor(list(counts.values()), dtype=torch.float32)
        logits[torch.tensor(list(counts))] -= (
            self._params.presence_penalty + self._params.frequency_penalty * times
        )


def _forbidden_token_ids(request: Request, eos_token_ids: frozenset[int]) -> frozenset[int]:
    """Tokens that would end the request, while the token to draw is still before min_tokens."""
    params = request.params
    if request.num_output_tokens + 1 >= params.min_tokens:
        return frozenset()
    return params.stop_token_ids if params.ignore_eos else params.stop_token_ids | eos_token_ids
