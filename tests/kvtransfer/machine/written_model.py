"""A model whose KV and tokens follow from the tokens before them, so that a wrong one shows."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace

import torch

from engine.batch import ModelRunnerOutput, Sample, ScheduledRequest, SchedulerOutput
from engine.request import PENDING, Request

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

    def launch(self, output: SchedulerOutput) -> Callable[[], ModelRunnerOutput]:
        result = self.run(output)
        return lambda: result

    def runs_ahead(self, output: SchedulerOutput) -> bool:
        return False

    def runs_apart(self, output: SchedulerOutput) -> bool:
        return False

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        for source, destination in copies:
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


class LateRunner(WrittenRunner):
    """Computes a step as late as a device may: when somebody waits for it.

    Before that ``meanwhile`` is called, for all that goes on while the engine waits.
    """

    def __init__(self, num_blocks: int, meanwhile: Callable[[], None]) -> None:
        super().__init__(num_blocks)
        self._meanwhile = meanwhile
        self._drawn: dict[str, int] = {}

    def launch(self, output: SchedulerOutput) -> Callable[[], ModelRunnerOutput]:
        # What a device is told of a step does not change any more.
        seen = SchedulerOutput(
            tuple(
                ScheduledRequest(
                    replace(
                        part.request,
                        token_ids=list(part.request.token_ids),
                        block_table=list(part.request.block_table),
                    ),
                    part.num_new_tokens,
                )
                for part in output.scheduled
            )
        )

        def result() -> ModelRunnerOutput:
            self._meanwhile()
            for part in seen.scheduled:
                if part.request.token_ids[-1] == PENDING:
                    part.request.token_ids[-1] = self._drawn[part.request.request_id]
            drawn = self.run(seen)
            self._drawn = {
                part.request.request_id: samples[0].token_id
                for part, samples in zip(seen.scheduled, drawn.samples, strict=True)
                if samples
            }
            return drawn

        return result

    def runs_ahead(self, output: SchedulerOutput) -> bool:
        return True
