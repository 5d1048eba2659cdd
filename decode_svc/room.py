"""Which waiting attempt gets blocks of the pool."""

from collections.abc import Collection

from decode_svc.attempt import Attempt
from engine.block_manager import BlockManager


class Room:
    """Reserves all that a prompt needs, or nothing. Engine thread only.

    At most ``max_num_seqs`` choices hold blocks, and at most ``max_arriving`` prompts are on their
    way at once, into half of the pool at most: a burst of long ones would otherwise take what the
    running choices need to grow. A choice, or a prompt, that is alone may have more.
    """

    def __init__(
        self, blocks: BlockManager, *, block_size: int, max_num_seqs: int, max_arriving: int
    ) -> None:
        self._blocks = blocks
        self._block_size = block_size
        self._max_num_seqs = max_num_seqs
        self._max_arriving = max_arriving

    def reserve(
        self, attempt: Attempt, arriving: Collection[Attempt], running: Collection[Attempt]
    ) -> bool:
        """Takes every block the prompt and its copies need, or none.

        ``arriving`` are the attempts whose prompts are not here yet, ``running`` those whose are.
        """
        num_sharing = len(attempt.choices)
        num_active = sum(len(each.requests) or len(each.choices) for each in (*arriving, *running))
        if num_active and num_active + num_sharing > self._max_num_seqs:
            return False
        # A last token that is computed here always is: its logits give the first output token.
        num_matchable = (attempt.num_tokens - attempt.computes_prompt) // self._block_size
        cached = self._blocks.match_prefix(attempt.block_hashes[:num_matchable])
        self._blocks.acquire(cached)
        num_missing = -(-attempt.num_tokens // self._block_size) - len(cached)
        is_partial = attempt.num_tokens % self._block_size > 0
        num_spare = num_sharing - 1 if is_partial else 0
        # Every active choice may want a block soon, and so does each of the newcomer's where no
        # partial block is left to grow into. Without this margin the newcomer would be the first
        # to be preempted.
        margin = num_active + (0 if is_partial else num_sharing)
        has_room = num_missing + num_spare + margin <= self._blocks.num_available
        if not has_room or not self._may_arrive(num_missing + num_spare, arriving):
            self._blocks.release(cached)
            return False
        attempt.prompt_blocks = [*cached, *self._blocks.reserve(num_missing)]
        attempt.num_cached_blocks = len(cached)
        attempt.spare_blocks = self._blocks.reserve(num_spare)
        return True

    def _may_arrive(self, num_blocks: int, arriving: Collection[Attempt]) -> bool:
        num_held = sum(each.num_missing_blocks for each in arriving)
        return not arriving or (
            len(arriving) < self._max_arriving
            and num_held + num_blocks <= self._blocks.num_blocks // 2
        )
