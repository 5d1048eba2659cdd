"""The decode scheduler over a real BlockManager; no model, so a step is one call to `step`."""

from collections.abc import Sequence
from typing import Any

from decode_svc.attempt import Attempt, DecodePlan, DecodeProgress, Row
from decode_svc.scheduler import DecodeScheduler
from engine.batch import ModelRunnerOutput, Sample
from engine.block_hash import hash_blocks
from engine.block_manager import BlockManager
from engine.sampling_params import SamplingParams
from kvtransfer.handoff import FirstSample

BLOCK_SIZE = 4
EOS = 1


class House:
    """A scheduler with its pool; attempts are named by one letter."""

    def __init__(
        self, num_blocks: int = 32, max_num_seqs: int = 16, max_arriving: int = 16
    ) -> None:
        self.blocks = BlockManager(num_blocks)
        self.scheduler = DecodeScheduler(
            self.blocks,
            block_size=BLOCK_SIZE,
            max_num_batched_tokens=16,
            max_num_seqs=max_num_seqs,
            max_arriving=max_arriving,
        )

    def add(
        self,
        name: str,
        token_ids: Sequence[int],
        *,
        choices: int = 1,
        max_tokens: int = 100,
        known: int = 0,
        computes_prompt: bool = False,
    ) -> Attempt:
        """``known`` of the tokens are output of an earlier attempt."""
        attempt = Attempt(
            attempt_id=name.encode() * 16,
            session=1,
            handle=ord(name),
            token_ids=list(token_ids),
            num_prompt_tokens=len(token_ids) - known,
            params=SamplingParams(max_tokens=max_tokens, eos_token_ids=frozenset({EOS})),
            choices=tuple(range(choices)),
            cache_salt=b"",
            block_hashes=hash_blocks(token_ids, BLOCK_SIZE),
            computes_prompt=computes_prompt,
        )
        self.scheduler.add(attempt)
        return attempt

    def run(self, name: str, token_ids: Sequence[int], **options: Any) -> Attempt:
        """An attempt that has joined and is released."""
        attempt = self.add(name, token_ids, **options)
        self.scheduler.schedule()
        self.join(attempt)
        self.scheduler.release(attempt.attempt_id)
        return attempt

    def join(self, attempt: Attempt, token_id: int = 50) -> tuple[tuple[int, int], ...]:
        first = [FirstSample(choice, token_id, False) for choice in attempt.choices]
        return self.scheduler.join(attempt.attempt_id, first)

    def step(self, token_id: int = 60) -> tuple[Row, ...]:
        plan = self.scheduler.schedule()
        rows = self.update(plan, draw(plan, token_id)).rows
        self.blocks.check()
        return rows

    def update(self, plan: DecodePlan, output: ModelRunnerOutput) -> DecodeProgress:
        return self.scheduler.update(plan, self.scheduler.advance(plan), output)

    @property
    def is_empty(self) -> bool:
        self.blocks.check()
        return self.blocks.num_available == self.blocks.num_blocks


def draw(plan: DecodePlan, token_id: int) -> ModelRunnerOutput:
    return ModelRunnerOutput(
        tuple(
            tuple(Sample(choice, token_id) for choice in part.request.choices if part.samples)
            for part in plan.output.scheduled
        )
    )
