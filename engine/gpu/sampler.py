"""Draws on the GPU for requests of any parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.batch import Sample, TokenLogprobs
from engine.gpu.adjusted_requests import AdjustedRequests
from engine.gpu.ranking import Ranking
from engine.gpu.request_rows import sampling_numbers
from engine.gpu.staging import send
from engine.gpu.token_table import TokenTable
from engine.kernels.cuda.adjust_logits import BiasPairs, PenaltyRows, adjust_logits
from engine.kernels.cuda.rank_logprobs import rank_logprobs, words_a_row
from engine.kernels.cuda.sample import SamplingRows, sample
from engine.logit_adjustment import forbidden_token_ids, has_penalties
from engine.request import Request

# Of adjusted logits that lie in memory at once, and of requests whose tokens stay counted: 64 MiB
# and 128 MiB for 128 K tokens. More of either take their turns.
_MAX_ROWS = 128
_MAX_SLOTS = 256


@dataclass(frozen=True, slots=True)
class AdjustedDraw:
    """A draw of ``choice`` from row ``source`` of the logits, adjusted, for ``place`` among the
    tokens that the step draws."""

    request: Request
    choice: int
    source: int
    place: int


def is_plain(request: Request) -> bool:
    """Whether the request's logits are drawn from as they are, and nothing else is asked for."""
    params = request.params
    return (
        params.logprobs is None
        and not params.logit_bias
        and not has_penalties(params)
        and not forbidden_token_ids(request)
    )


def adjusted_draws(requests: Sequence[Request]) -> list[AdjustedDraw]:
    """Those of requests that are not plain, of a step that draws for ``requests``."""
    draws: list[AdjustedDraw] = []
    place = 0
    for source, request in enumerate(requests):
        if not is_plain(request):
            draws += [
                AdjustedDraw(request, choice, source, place + number)
                for number, choice in enumerate(request.choices)
            ]
        place += len(request.choices)
    return draws


class GpuSampler:
    """Launches draws, and never waits for the device.

    A step draws for all its requests as if they were plain; those that are not are drawn again.
    """

    def __init__(self, vocab_size: int, max_sequences: int, device: torch.device) -> None:
        """``max_sequences``: of a step, usually."""
        self._vocab_size = vocab_size
        self._device = device
        num_slots = min(max_sequences, _MAX_SLOTS)
        num_rows = min(max_sequences, _MAX_ROWS)
        self._requests = AdjustedRequests(num_slots, vocab_size)
        self._table = TokenTable(num_slots, vocab_size, device)
        self._adjusted = torch.empty(num_rows, vocab_size, device=device)

    def draw(self, logits: torch.Tensor, requests: Sequence[Request]) -> torch.Tensor:
        """Int32 token ids of every choice of every request, in order, from the rows of ``logits``
        (requests, vocabulary) as they are."""
        owners = [row for row, each in enumerate(requests) for _ in each.choices]
        output = torch.empty(len(owners), dtype=torch.int32, device=self._device)
        if not owners:
            return output
        choices = [choice for each in requests for choice in each.choices]
        numbers = np.stack([sampling_numbers(requests[row].params) for row in owners], axis=1)
        positions = [requests[row].num_tokens for row in owners]
        sources, *words = send(
            [np.array(owners), *numbers, *np.array([choices, positions], np.int32)], self._device
        )
        if len(owners) > len(requests):
            logits = logits[sources]
        sample(logits.contiguous(), _sampling_rows(words), output)
        return output

    def redraw(
        self,
        logits: torch.Tensor,
        last_tokens: torch.Tensor,
        draws: Sequence[AdjustedDraw],
        token_ids: torch.Tensor,
    ) -> Ranking | None:
        """Puts what ``draws`` draw in its places in ``token_ids``. None where no log probabilities
        are asked for.

        ``last_tokens``: int32, the token of each row of ``logits`` that the step computed last.
        """
        logits = logits.contiguous()
        ranked = [each for each in draws if each.request.params.logprobs is not None]
        numbers = [each.request.params.logprobs or 0 for each in ranked]
        width = min(max(numbers, default=0), self._vocab_size)
        shape = len(ranked), words_a_row(width)
        found = torch.empty(shape, dtype=torch.int32, device=self._device)
        num_rows, first = len(self._adjusted), 0
        for start in range(0, len(draws), num_rows):
            some = draws[start : start + num_rows]
            rows = [
                row for row, each in enumerate(some) if each.request.params.logprobs is not None
            ]
            self._redraw(
                logits, last_tokens, some, token_ids, rows, width, found[first:][: len(rows)]
            )
            first += len(rows)
        return Ranking(found, width, [each.place for each in ranked], numbers) if ranked else None

    def _redraw(
        self,
        logits: torch.Tensor,
        last_tokens: torch.Tensor,
        draws: Sequence[AdjustedDraw],
        token_ids: torch.Tensor,
        ranked: Sequence[int],
        width: int,
        found: torch.Tensor,
    ) -> None:
        slots = self._requests.update([each.request for each in draws])
        counted_in, counts_last = self._count(draws, slots)
        fields = [
            [each.source for each in draws],
            counted_in,
            counts_last,
            [each.choice for each in draws],
            [each.request.num_tokens for each in draws],
            ranked,
        ]
        sources, penalized, adds_last, choices, positions, rows, places, *rest = send(
            [
                *(np.array(each, dtype=np.int32) for each in fields),
                np.array([each.place for each in draws], dtype=np.int64),
                *self._biases(draws),
                *self._requests.numbers[:, slots],
            ],
            self._device,
        )
        pairs, sampling, penalties = BiasPairs(*rest[:3]), rest[3:9], rest[9:]
        adjusted = self._adjusted[: len(draws)]
        adjust_logits(
            logits,
            PenaltyRows(
                sources, penalized, adds_last, *(each.view(torch.float32) for each in penalties)
            ),
            last_tokens,
            self._table.counts,
            pairs,
            adjusted,
        )
        drawn = torch.empty(len(draws), dtype=torch.int32, device=self._device)
        sample(adjusted, _sampling_rows([*sampling, choices, positions]), drawn)
        token_ids.index_copy_(0, places, drawn)
        if ranked:
            rank_logprobs(adjusted, rows, drawn, width, found)

    def _count(
        self, draws: Sequence[AdjustedDraw], slots: Sequence[int]
    ) -> tuple[list[int], list[bool]]:
        """For each row the slot of its counts, and whether its last token is to be counted."""
        counted_in, counts_last = [-1] * len(draws), [False] * len(draws)
        for row, (draw, slot) in enumerate(zip(draws, slots, strict=True)):
            if has_penalties(draw.request.params):
                counted_in[row] = slot
                counts_last[row] = self._table.catch_up(slot, draw.request)
        return counted_in, counts_last

    def _biases(
        self, draws: Sequence[AdjustedDraw]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]:
        """Rows, tokens and values of BiasPairs."""
        biases = [self._requests.bias(each.request) for each in draws]
        rows = np.repeat(
            np.arange(len(draws), dtype=np.int32), [len(each.values) for each in biases]
        )
        return (
            rows,
            np.concatenate([each.token_ids for each in biases]),
            np.concatenate([each.values for each in biases]),
        )


def samples(
    requests: Sequence[Request], token_ids: Sequence[int], logprobs: Mapping[int, TokenLogprobs]
) -> list[tuple[Sample, ...]]:
    """The drawn tokens by request; ``logprobs`` are by place among them."""
    result = []
    place = 0
    for request in requests:
        own = enumerate(request.choices, place)
        result.append(
            tuple([Sample(choice, token_ids[at], logprobs.get(at)) for at, choice in own])
        )
        place += len(request.choices)
    return result


def _sampling_rows(words: Sequence[torch.Tensor]) -> SamplingRows:
    """Of those of ``sampling_numbers``, then choices and positions; int32, one entry a row."""
    return SamplingRows(
        temperatures=words[0].view(torch.float32),
        top_ps=words[1].view(torch.float32),
        min_ps=words[2].view(torch.float32),
        top_ks=words[3],
        seed_lows=words[4],
        seed_highs=words[5],
        choices=words[6],
        positions=words[7],
    )
