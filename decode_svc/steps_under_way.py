"""Steps that the device may still be computing, and what they may still write."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from decode_svc.attempt import DecodePlan
from engine.block_manager import BlockManager
from engine.request import Request
from engine.step_under_way import PartUnderWay, StepUnderWay


@dataclass(frozen=True, slots=True)
class _Launched:
    """``written`` are the blocks that the step writes; ``fenced`` those of them that were given
    back meanwhile."""

    step: StepUnderWay
    written: frozenset[int]
    fenced: list[int] = field(default_factory=list)


class StepsUnderWay:
    """Two at most, the older one first.

    A block that was given back could become the destination of a read while a step that was
    launched before still writes to it: until that step is over the block is fenced (protocol 4.4).
    """

    def __init__(self, blocks: BlockManager, block_size: int) -> None:
        self._blocks = blocks
        self._block_size = block_size
        self._launched: deque[_Launched] = deque()

    def begin(self, plan: DecodePlan) -> StepUnderWay:
        """Counts a step as computed that was just launched.

        A prompt's first tokens are not expected: its choices only begin with them.
        """
        step = StepUnderWay(
            tuple(
                PartUnderWay.begin(part, draws=part.samples and part.request is not attempt.prompt)
                for part, attempt in zip(plan.output.scheduled, plan.attempts, strict=True)
            )
        )
        written = frozenset(block for part in step.parts for block in self._written(part))
        self._launched.append(_Launched(step, written))
        return step

    def end(self) -> None:
        """The oldest step is over, well or not."""
        self._blocks.lift_fence(self._launched.popleft().fenced)

    def give_back(self, block_ids: Sequence[int]) -> None:
        """Releases blocks; those that a step still writes come back when it is over."""
        for launched in self._launched:
            still_written = [block for block in block_ids if block in launched.written]
            self._blocks.fence(still_written)
            launched.fenced.extend(still_written)
        self._blocks.release(block_ids)

    def num_written_tokens(self, request: Request) -> int:
        """Tokens of ``request`` whose KV is there, whatever is still being computed."""
        parts = (part for launched in self._launched for part in launched.step.parts)
        return min(
            (part.first_token for part in parts if part.request is request),
            default=request.num_computed_tokens,
        )

    def _written(self, part: PartUnderWay) -> list[int]:
        first, end = part.first_token // self._block_size, -(-part.end_token // self._block_size)
        return part.request.block_table[first:end]
