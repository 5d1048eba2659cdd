"""What a request's parameters do to its logits before anything is drawn from them."""

import torch

from engine.request import Request
from engine.sampling_params import SamplingParams


class LogitAdjustment:
    """Penalties, bias and the mask of tokens that may not come yet, for one request."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._params = request.params
        self._forbidden = forbidden_token_ids(request)

    @property
    def is_identity(self) -> bool:
        return not (has_penalties(self._params) or self._params.logit_bias or self._forbidden)

    def apply(self, logits: torch.Tensor) -> None:
        """Changes one row (vocabulary,) in place."""
        if has_penalties(self._params):
            self._penalize(logits)
        if self._params.logit_bias:
            ids = torch.tensor(list(self._params.logit_bias))
            logits[ids] += torch.tensor(list(self._params.logit_bias.values()))
        # Where none but forbidden tokens exist, they may come: one must.
        if 0 < len(self._forbidden) < logits.numel():
            logits[torch.tensor(sorted(self._forbidden))] = -torch.inf

    def _penalize(self, logits: torch.Tensor) -> None:
        """Repetition counts prompt and output, the other two output alone."""
        params, counts = self._params, self._request.token_counts
        counts.catch_up(self._request.token_ids, self._request.num_prompt_tokens)
        ids, times = counts.ids(), counts.times()
        seen = logits[ids]
        if params.repetition_penalty != 1.0:
            penalty = params.repetition_penalty
            seen = torch.where(seen > 0, seen / penalty, seen * penalty)
            # A tiny penalty divides to infinity, and infinite logits have no distribution.
            seen.clamp_(max=torch.finfo(seen.dtype).max)
        seen -= params.presence_penalty * (times > 0) + params.frequency_penalty * times
        logits[ids] = seen


def has_penalties(params: SamplingParams) -> bool:
    """Whether what a request said changes its logits."""
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )


def forbidden_token_ids(request: Request) -> frozenset[int]:
    """Tokens that would end the request, while the token to draw is still before min_tokens."""
    params = request.params
    if request.num_output_tokens + 1 >= params.min_tokens:
        return frozenset()
    if params.ignore_eos:
        return params.stop_token_ids
    return params.stop_token_ids | params.eos_token_ids
