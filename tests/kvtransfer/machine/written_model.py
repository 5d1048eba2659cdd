"""A model whose KV and tokens follow from the tokens before them, so that a wrong one shows."""

import zlib
from collections.abc import Sequence
from types import SimpleNamespace

import torch

from engine.batch import ModelRunnerOutput, Sample, SchedulerOutput
from engine.request import Request

BLOCK_SIZE = 4
VOCAB_SIZE = 1 << 16
WRONG = VOCAB_SIZE - 1
"""Drawn where the KV of an earlier token is not what it must be."""


def kv_of(token_ids: Sequence[int]) -> int:
    """The KV of the last of these tokens; 31 bits, never 0."""
    return zlib.crc32(b",".join(b"%d" % token for token in token_ids)) >> 1 | 1


def next_token(token_ids: Sequence[int]) -> int:
    """What follows; never an id that prompts are made of."""
    return 100 + kv_of(token_ids) % 1000


def answer(token_ids: Sequence[int], num_tokens: int) -> list[int]:
    """The tokens that any worker must give."""
    tokens = list(token_ids)
    for _ in range(num_tokens):
        tokens.append(next_token(tokens))
    return tokens[len(token_ids) :]


class WrittenRunner:
    """Stands for ModelRunner: writes the KV of what is scheduled, after a look at what is there."""

    def __init__(self, num_blocks: int) -> None:
        self.kv_cache = self
        self.num_blocks = num_blocks
        self.tensor = torch.zeros((num_blocks + 1, BLOCK_SIZE), dtype=torch.int32)
        self.model_config = SimpleNamespace(eos_token_ids=frozenset())

    def run(self, output: SchedulerOutput) -> ModelRunnerOutput:
        return ModelRunnerOutput(
            tuple(self._run(part.request, part.num_new_tokens) for part in output.scheduled)
        )

    def copy_block(self, source: int, destination: int) -> None:
        self.tensor[destination] = self.tensor[source]

    def _run(self, request: Request, num_new_tokens: int) -> tuple[Sample, ...]:
        end = request.num_computed_tokens + num_new_tokens
        tokens = request.token_ids
        right = all(
            self._slot(request, position).item() == kv_of(tokens[: position + 1])
            for position in range(request.num_computed_tokens)
        )
        for position in range(request.num_computed_tokens, end):
            self._slot(request, position).fill_(kv_of(tokens[: position + 1]))
        if end < request.num_tokens:
            return ()
        token = next_token(tokens) if right else WRONG
        return tuple(Sample(choice, token) for choice in request.choices)

    def _slot(self, request: Request, position: int) -> torch.Tensor:
        block = request.block_table[position // BLOCK_SIZE]
        return self.tensor[block, position % BLOCK_SIZE]
