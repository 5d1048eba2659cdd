"""Draws tokens as a race: the distribution sets how fast each token is, random numbers its delay.

Token t wins by the highest logit / temperature + gumbel, where gumbel = -log(-log1p(-u)) and u is
uniform in (0, 1) by (seed, choice, position, t). Rounding of the logits can make another token win
only where the best two of these sums are that close. (To invert the cumulative distribution would
let it shift every border between tokens, and most tokens are narrower than such a shift.)

u has 32 bits, densest near 0 where winners come from. A token of probability p is drawn with
p * (1 - 1 / (24 * m**2)) for m = p * 2**32, and practically never for m under 0.1; no token's
probability is wrong by more than 3e-11.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad

from engine.philox import TOKENS_PER_GROUP, Words, token_words
from engine.sampling_params import SamplingParams
from engine.truncation import is_truncated, truncate

# Gumbels lie in (-3.14, 22.88): a token whose logit / temperature is 26.02 below the best loses.
# The rest makes up for rounding.
_REACH = 26.1
_ROUNDING = 1.001
_GROUPS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Race:
    """The tokens of one row that can win, in groups that share a Philox counter.

    ``slowness`` (4, groups) is the inverse of a token's weight, which is 1 for the best: it scales
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
        if is_truncated(params, logits.numel()):
            groups, slowness = _of_few(*truncate(logits, params))
        else:
            groups, slowness = _of_all(logits, params.temperature)
        return cls(logits.numpy(), params.temperature, groups, slowness)

    def winner(self, words: Words) -> int:
        """The token id that wins with these words (4, groups); the lowest among equals.

        Float32 finds the few that can win, because u <= -log1p(-u); float64 decides among them.
        """
        words, slowness = words.reshape(-1), self.slowness.reshape(-1)
        soonest = uniform(words.astype(np.float32))
        soonest *= slowness
        first = soonest.argmin()
        delay = -np.log1p(-uniform(words[first].astype(np.float64)))
        places = np.flatnonzero(soonest <= delay * slowness[first] * _ROUNDING)
        members, groups = np.divmod(places, self.groups.size)
        token_ids = self.groups[groups] * TOKENS_PER_GROUP + members
        scores = self.logits[token_ids].astype(np.float64)
        scores = (scores - scores.max()) / self.temperature + gumbel(words[places])
        return int(token_ids[scores == scores.max()].min())


def _of_few(
    ids: NDArray[np.int64], weights: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Groups and slowness where only ``ids`` (ascending) run."""
    group_of_each, members = np.divmod(ids, TOKENS_PER_GROUP)
    groups, places = np.unique(group_of_each, return_inverse=True)
    slowness = np.full((TOKENS_PER_GROUP, groups.size), np.inf, dtype=np.float32)
    slowness[members, places] = torch.from_numpy(weights).reciprocal().numpy()
    return groups, slowness


def _of_all(
    logits: torch.Tensor, temperature: float
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Groups and slowness where every token may run; most of them are out of reach."""
    if padding := -logits.numel() % TOKENS_PER_GROUP:
        logits = pad(logits, (0, padding), value=-torch.inf)
    row = logits.numpy()
    best = float(row.max())
    # Four booleans, seen as one integer, say whether any of a group's tokens is in reach.
    in_reach = row >= best - _REACH * temperature
    groups = np.flatnonzero(in_reach.view(np.uint32))
    grouped = torch.from_numpy(row.reshape(-1, TOKENS_PER_GROUP).take(groups, axis=0))
    slowness = (best - grouped.t().contiguous()).div_(temperature).exp_()
    return groups, slowness.numpy()


def uniform(words: NDArray[Any]) -> NDArray[Any]:
    """Numbers in the open unit interval: the middles of its 2**32 equal parts.

    Exact from words in float64; float32 rounds the highest to 1.
    """
    middles = words + 0.5
    middles *= 2.0**-32
    return middles


def gumbel(words: Words) -> NDArray[np.float64]:
    """Gumbel noise, highest for word 0."""
    delays: NDArray[np.float64] = -np.log1p(-uniform(words.astype(np.float64)))
    return -np.log(delays)


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """What to draw from one row of float32 logits (vocabulary,): a token for each of ``choices``.

    Needs a temperature above 0.
    """

    logits: torch.Tensor
    params: SamplingParams
    position: int
    choices: Sequence[int]


def draw_tokens(draws: Sequence[Draw]) -> list[list[int]]:
    """The token of each choice of each draw."""
    winners: dict[tuple[int, int], int] = {}
    for batch in _batches(_runs(draws)):
        for run, words in zip(batch, _words(batch), strict=True):
            winners[run.place, run.choice] = run.race.winner(words)
    return [[winners[place, choice] for choice in draw.choices] for place, draw in enumerate(draws)]


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """The race of one choice of the draw at ``place``."""

    race: Race
    place: int
    choice: int
    seed: int
    position: int


def _runs(draws: Sequence[Draw]) -> Iterator[_Run]:
    for place, draw in enumerate(draws):
        race = Race.of(draw.logits, draw.params)
        for choice in draw.choices:
            yield _Run(race, place, choice, draw.params.seed, draw.position)


def _batches(runs: Iterable[_Run]) -> Iterator[list[_Run]]:
    """Large races alone and at once, while they are in the cache; small ones together, because a
    call costs more than their words."""
    small: list[_Run] = []
    num_groups = 0
    for run in runs:
        if run.race.groups.size > _GROUPS_AT_ONCE:
            yield [run]
            continue
        small.append(run)
        num_groups += run.race.groups.size
        if num_groups > _GROUPS_AT_ONCE:
            yield small
            small, num_groups = [], 0
    if small:
        yield small


def _words(runs: Sequence[_Run]) -> list[Words]:
    """The words (4, groups) of each run."""
    sizes = [run.race.groups.size for run in runs]
    seeds, choices, positions = (
        np.array(values, dtype=np.uint64)
        for values in zip(*((run.seed, run.choice, run.position) for run in runs), strict=True)
    )
    if len(runs) > 1:
        seeds, choices, positions = (np.repeat(each, sizes) for each in (seeds, choices, positions))
    groups = np.concatenate([run.race.groups for run in runs])
    words = token_words(seeds, choices, positions, groups)
    return np.split(words, np.cumsum(sizes[:-1]), axis=1)
