"""Several sequences through a DecoderModel over one pool, any mix of their tokens in a step."""

import random
from collections.abc import Sequence
from dataclasses import replace

import torch

from engine.attention.select import create_attention
from engine.batch import ForwardBatch, ScheduledRequest, SchedulerOutput
from engine.forward_batch import build_forward_batch
from engine.kv_cache import KvCache
from engine.models import DecoderModel
from engine.request import Request
from engine.sampling_params import SamplingParams

BLOCK_SIZE = 16


class MixedSteps:
    """Owns a pool in float32 whose blocks are handed out in shuffled order."""

    def __init__(self, model: DecoderModel, *, num_blocks: int = 200, seed: int = 0) -> None:
        self._model = model
        self._kv_cache = KvCache(
            model.config, num_blocks=num_blocks, block_size=BLOCK_SIZE, dtype=torch.float32
        )
        self._attention = create_attention(self._kv_cache)
        self._free = random.Random(seed).sample(range(1, num_blocks + 1), num_blocks)

    def add(self, token_ids: Sequence[int], prefix: Request | None = None) -> Request:
        """A sequence whose tokens are known. It begins like ``prefix``, whose computed full blocks
        it reads."""
        table: list[int] = []
        if prefix is not None:
            num_cached = min(prefix.num_computed_tokens, len(token_ids) - 1) // BLOCK_SIZE
            table += prefix.block_table[:num_cached]
        num_cached_tokens = len(table) * BLOCK_SIZE
        table += [self._free.pop() for _ in range(-(-len(token_ids) // BLOCK_SIZE) - len(table))]
        return Request(
            request_id="",
            token_ids=list(token_ids),
            num_prompt_tokens=len(token_ids),
            params=SamplingParams(),
            block_table=table,
            num_computed_tokens=num_cached_tokens,
        )

    @torch.inference_mode()
    def step(self, parts: Sequence[tuple[Request, int]]) -> list[torch.Tensor]:
        """Computes so many next tokens of each; the logits of all of them, (tokens, vocabulary)."""
        batch = self._batch(parts)
        batch = replace(batch, logit_indices=torch.arange(len(batch.token_ids)))
        logits = self._model.compute_logits(self._compute(batch, parts))
        return list(torch.split(logits, [num_tokens for _, num_tokens in parts]))

    @torch.inference_mode()
    def draw(self, parts: Sequence[tuple[Request, int]]) -> torch.Tensor:
        """The same; logits of those sequences alone whose last known token is computed."""
        hidden = self._compute(self._batch(parts), parts)
        return self._model.compute_logits(hidden) if len(hidden) else hidden

    def _batch(self, parts: Sequence[tuple[Request, int]]) -> ForwardBatch:
        output = SchedulerOutput(tuple(ScheduledRequest(*part) for part in parts))
        return build_forward_batch(output, BLOCK_SIZE)

    def _compute(self, batch: ForwardBatch, parts: Sequence[tuple[Request, int]]) -> torch.Tensor:
        self._attention.plan(batch)
        hidden = self._model.forward(batch, self._kv_cache, self._attention)
        for request, num_tokens in parts:
            request.num_computed_tokens += num_tokens
        return hidden

    def alone(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Logits of a sequence by itself in one step."""
        (logits,) = self.step([(self.add(token_ids), len(token_ids))])
        return logits

    def mixed(self, requests: Sequence[Request], seed: int) -> list[torch.Tensor]:
        """Logits of all that is left of ``requests``, computed in random parts and company."""
        chance = random.Random(seed)
        pieces: list[list[torch.Tensor]] = [[] for _ in requests]
        while waiting := [place for place, each in enumerate(requests) if _num_left(each)]:
            company = chance.sample(waiting, chance.randint(1, len(waiting)))
            sizes = [chance.choice((1, 1, 3, 33, 150)) for _ in company]
            parts = [
                (requests[place], min(size, _num_left(requests[place])))
                for place, size in zip(company, sizes, strict=True)
            ]
            for place, logits in zip(company, self.step(parts), strict=True):
                pieces[place].append(logits)
        return [torch.cat(each) for each in pieces]


def _num_left(request: Request) -> int:
    return len(request.token_ids) - request.num_computed_tokens
