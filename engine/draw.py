"""Draws tokens as a race: the distribution sets how fast each token is, random numbers its delay.

Token t wins by the highest logit / temperature + gumbel, where gumbel = -log(-log1p(-u)) and u is
uniform in (0, 1) by (seed, choice, position, t). Rounding of the logits can make another token win
only where the best two of these sums are that close. (To invert the cumulative distribution would
let it shift every border between tokens, and most tokens are narrower than such a shift.)

u has 32 bits, densest near 0 where winners come from. A token of probability p is drawn with
p * (1 - 1 / (24 * m**2)) for m = p * 2**32, and practically never for m under 0.1; no token's
probability is wrong by more than 3e-11.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.philox import TOKENS_PER_GROUP, token_words
from engine.sampling_params import SamplingParams
from engine.truncation import truncate

# Gumbels lie in (-3.14, 22.88): a token whose logit / temperature is 26.02 below the best loses.
# The rest makes up for rounding.
_REACH = 26.1
_ROUNDING = 1.001


@dataclass(frozen=True, slots=True, eq=False)
class Race:
    """The tokens of one row that can win, in groups that share a Philox counter.

    ``slowness`` (groups, 4) is the inverse of a token's weight, which is 1 for the best: it scales
    the token's exponential delay -log1p(-u), and is infinite for a token that is out of the race.
    """

    logits: NDArray[np.float32]
    temperature: float
    groups: NDArray[np.int64]
    slowness: NDArray[np.float32]

    @classmethod
    def of(cls, logits: torch.Tensor, params: SamplingParams) -> "Race":
        """From one row of float32 logits (vocabulary,); temperature comes before truncation.

        A row at a time, because a row stays in the processor's cache from one operation to the
        next and many do not.
        """
        vocab_size = logits.numel()
        padded = logits.new_zeros(-(-vocab_size // TOKENS_PER_GROUP) * TOKENS_PER_GROUP)
        weights = padded[:vocab_size]
        torch.sub(logits, logits.max(), out=weights)
        weights.div_(params.temperature).exp_()
        truncate(weights, params)
        in_reach = padded > math.exp(-_REACH)
        # Four booleans, seen as one integer, say whether any of a group's tokens is in reach.
        groups = np.flatnonzero(in_reach.numpy().view(np.uint32))
        slowness = padded.view(-1, TOKENS_PER_GROUP).index_select(0, torch.from_numpy(groups))
        slowness.reciprocal_()
        return cls(logits.numpy(), params.temperature, groups, slowness.numpy())

    def winner(self, words: NDArray[np.uint32]) -> int:
        """The token id that wins with these words (groups, 4); the lowest among equals.

        Float32 finds the few that can win, because u <= -log1p(-u); float64 decides among them.
        """
        words, slowness = words.reshape(-1), self.slowness.reshape(-1)
        soonest = uniform(words.astype(np.float32)) * slowness
        first = soonest.argmin()
        delay = -np.log1p(-uniform(words[first].astype(np.float64)))
        places = np.flatnonzero(soonest <= delay * slowness[first] * _ROUNDING)
        token_ids = self._token_ids(places)
        scores = self.logits[token_ids].astype(np.float64)
        scores = (scores - scores.max()) / self.temperature + gumbel(words[places])
        return int(token_ids[scores.argmax()])

    def _token_ids(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        groups, members = np.divmod(places, TOKENS_PER_GROUP)
        return self.groups[groups] * TOKENS_PER_GROUP + members


def uniform(words: NDArray[Any]) -> NDArray[Any]:
    """Numbers in the open unit interval: the middles of its 2**32 equal parts.

    Exact from words in float64; float32 rounds the highest to 1.
    """
    return (words + 0.5) * 2.0**-32


def gumbel(words: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Gumbel noise, highest for word 0."""
    delays: NDArray[np.float64] = -np.log1p(-uniform(words.astype(np.float64)))
    return -np.log(delays)


def draw_tokens(
    logits: torch.Tensor, params: SamplingParams, position: int, choices: Sequence[int]
) -> list[int]:
    """The token at ``position`` of each choice, from one row of float32 logits (vocabulary,).

    Needs a temperature above 0.
    """
    race = Race.of(logits, params)
    return [
        race.winner(token_words(params.seed, choice, position, race.groups)) for choice in choices
    ]
