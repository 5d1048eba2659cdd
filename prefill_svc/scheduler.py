"""Decides which prompts compute in a step, and which blocks they hold meanwhile."""

import time
from collections.abc import Callable, Iterable, Sequence

from engine.batch import ModelRunnerOutput, Sample, ScheduledRequest, SchedulerOutput
from engine.block_manager import BlockManager
from engine.errors import OutOfBlocks
from engine.request import Request, RequestStatus
from engine.step_under_way import PartUnderWay, StepUnderWay
from kvtransfer.checksums import no_checksums
from kvtransfer.handoff import Chunk
from prefill_svc.prompt import Admission, PrefillPlan, Progress, Prompt
from worker.waiting_line import WaitingLine


class PrefillScheduler:
    """Chunked prefill in order of arrival, started prompts first.

    A prompt is in exactly one of four stages, each in order of entry:

        waiting     no blocks; continuations first (protocol 5.4)
        computing   all its blocks, some tokens not computed yet or in a step under way
        computed    all its blocks, waits for its lease to end
        stopped     all its blocks, failed in a step, waits for its lease to end

    Belongs to the engine thread. Nothing here ends a lease: the event loop does and then calls
    ``remove``, so a block that a decode worker may still claim is never reused (protocol 4.1).
    """

    def __init__(
        self,
        blocks: BlockManager,
        *,
        block_size: int,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        revoke_after: float,
        checksum: Callable[[Sequence[int]], tuple[int, ...]] = no_checksums,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._blocks = blocks
        self._block_size = block_size
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_num_seqs = max_num_seqs
        self._revoke_after = revoke_after
        self._checksum = checksum
        self._clock = clock
        self._waiting: WaitingLine[Prompt] = WaitingLine()
        self._computing: dict[bytes, Prompt] = {}
        self._computed: dict[bytes, Prompt] = {}
        self._stopped: dict[bytes, Prompt] = {}

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_computing(self) -> int:
        return len(self._computing)

    @property
    def num_handing_off(self) -> int:
        return len(self._computed) + len(self._stopped)

    @property
    def num_pending_tokens(self) -> int:
        """Prompt tokens that no step has taken yet."""
        stages: Iterable[Prompt] = (*self._waiting.values(), *self._computing.values())
        return sum(prompt.request.num_uncomputed_tokens for prompt in stages)

    @property
    def fills_a_step(self) -> bool:
        """Whether the prompts under way leave no room in the next step."""
        pending = sum(prompt.request.num_uncomputed_tokens for prompt in self._computing.values())
        return pending >= self._max_num_batched_tokens

    def add(self, prompt: Prompt) -> None:
        """Queues a prompt whose blocks fit into the empty pool."""
        assert prompt.attempt_id not in self._waiting, prompt.attempt_id.hex()
        continues = prompt.request.num_output_tokens > 0
        self._waiting.add(prompt.attempt_id, prompt, continues=continues)

    def start(self, attempt_id: bytes) -> None:
        """The decode worker has room for this prompt; a no-op for one that is over."""
        for stage in (self._computing, self._computed):
            if (prompt := stage.get(attempt_id)) is not None:
                prompt.started = True

    def schedule(self, *, admits: bool = True) -> PrefillPlan:
        """Plans a step: prompts under way first, then as many waiting ones as have room.

        Without ``admits`` none of these, for a step that is launched before the last one is taken
        in: they might miss a prefix that it computes.
        """
        budget = self._max_num_batched_tokens
        parts: list[ScheduledRequest] = []
        unfinished = (
            each for each in self._computing.values() if each.request.num_uncomputed_tokens
        )
        under_way = sorted(unfinished, key=lambda prompt: not prompt.started)
        for prompt in under_way:
            budget -= self._plan(prompt, budget, parts)
        if not admits:
            return PrefillPlan(SchedulerOutput(tuple(parts)), (), None)
        # While no decode worker wants what is under way, one more prompt a step is admitted, so
        # that a prompt whose decode worker has room can overtake (protocol 3.3).
        overtaker = bool(under_way) and not under_way[0].started
        admissions: list[Admission] = []
        starved = False
        while self._waiting and len(self._computing) < self._max_num_seqs:
            if budget == 0 and not overtaker:
                break
            prompt = self._waiting.head
            if not self._reserve(prompt):
                starved = True
                break
            overtaker = False
            admissions.append(
                Admission(prompt, self._announce(prompt, prompt.request.num_computed_tokens))
            )
            budget -= self._plan(prompt, budget, parts)
        revoke = self._choose_revoked() if starved and not self._computing else None
        return PrefillPlan(SchedulerOutput(tuple(parts)), tuple(admissions), revoke)

    def advance(self, output: SchedulerOutput) -> StepUnderWay:
        """Counts the tokens of a launched step as computed: the next one may be scheduled."""
        return StepUnderWay(
            tuple(PartUnderWay.begin(part, draws=False) for part in output.scheduled)
        )

    def update(self, step: StepUnderWay, runner_output: ModelRunnerOutput) -> tuple[Progress, ...]:
        """Takes in a finished step; the blocks it filled may be shared and read from now on.

        Prompts that were stopped or removed meanwhile are left out.
        """
        return tuple(
            self._take_in(prompt, part, samples)
            for part, samples in zip(step.parts, runner_output.samples, strict=True)
            if (prompt := self._computing.get(_attempt_id(part.request))) is not None
        )

    def stop(self, requests: Iterable[Request]) -> tuple[Prompt, ...]:
        """Computes the prompts of a failed step no further; their blocks stay until ``remove``."""
        stopped = []
        for request in requests:
            if (prompt := self._computing.pop(_attempt_id(request), None)) is not None:
                self._stopped[prompt.attempt_id] = prompt
                stopped.append(prompt)
        return tuple(stopped)

    def remove(self, attempt_id: bytes) -> None:
        """Forgets a prompt in any stage and frees its blocks. Its lease must have ended."""
        self._waiting.pop(attempt_id)
        for stage in (self._computing, self._computed, self._stopped):
            if (prompt := stage.pop(attempt_id, None)) is not None:
                self._free(prompt)

    def _plan(self, prompt: Prompt, budget: int, parts: list[ScheduledRequest]) -> int:
        num_new_tokens = min(budget, prompt.request.num_uncomputed_tokens)
        if num_new_tokens > 0:
            parts.append(ScheduledRequest(prompt.request, num_new_tokens))
        return num_new_tokens

    def _reserve(self, prompt: Prompt) -> bool:
        """Takes every block the prompt needs, or none (protocol 3.3)."""
        request = prompt.request
        # The last token is always computed: its logits give the first output token.
        num_matchable = (request.num_tokens - 1) // self._block_size
        cached = self._blocks.match_prefix(request.block_hashes[:num_matchable])
        self._blocks.acquire(cached)
        num_blocks = -(-request.num_tokens // self._block_size)
        try:
            fresh = self._blocks.allocate(num_blocks - len(cached))
        except OutOfBlocks:
            self._blocks.release(cached)
            return False
        request.block_table = [*cached, *fresh]
        request.num_cached_tokens = request.num_computed_tokens = len(cached) * self._block_size
        request.status = RequestStatus.RUNNING
        self._waiting.pop(prompt.attempt_id)
        self._computing[prompt.attempt_id] = prompt
        return True

    def _take_in(self, prompt: Prompt, part: PartUnderWay, samples: tuple[Sample, ...]) -> Progress:
        request = prompt.request
        # Not what the request says: that may count the tokens of a later step already.
        first, end = part.first_token, part.end_token
        for index in range(first // self._block_size, end // self._block_size):
            self._blocks.register(request.block_table[index], request.block_hashes[index])
        chunk = self._announce(prompt, end)
        if end < request.num_tokens:
            return Progress(prompt, end - first, chunk)
        prompt.computed_time = self._clock()
        self._computed[prompt.attempt_id] = self._computing.pop(prompt.attempt_id)
        last_chunk = self._lease(prompt, request.num_tokens)
        return Progress(prompt, end - first, chunk, last_chunk, samples)

    def _announce(self, prompt: Prompt, num_computed: int) -> Chunk | None:
        """Leases the full blocks that became final; no later step writes them (protocol 4.2)."""
        return self._lease(prompt, num_computed // self._block_size * self._block_size)

    def _lease(self, prompt: Prompt, num_tokens: int) -> Chunk | None:
        first = prompt.num_announced_tokens
        if not prompt.hand_off or num_tokens == first:
            return None
        ids = self._blocks_of(prompt, first, num_tokens)
        self._blocks.lease(ids)
        prompt.num_announced_tokens = num_tokens
        return Chunk(first, num_tokens - first, tuple(ids), self._checksum(ids))

    def _blocks_of(self, prompt: Prompt, first_token: int, end_token: int) -> list[int]:
        first, end = first_token // self._block_size, -(-end_token // self._block_size)
        return prompt.request.block_table[first:end]

    def _free(self, prompt: Prompt) -> None:
        request = prompt.request
        self._blocks.end_lease(self._blocks_of(prompt, 0, prompt.num_announced_tokens))
        self._blocks.release(request.block_table)
        request.block_table = []

    def _choose_revoked(self) -> Prompt | None:
        """The youngest computed prompt that no decode worker wants yet, or None.

        Asked only when nothing computes, so that no block comes back by itself. While a started
        prompt is being read its blocks are about to come back; a prompt just computed is given
        time to be started, or prompts in a full house would revoke one another in turn.
        """
        if any(prompt.started or prompt.revoking for prompt in self._computed.values()):
            return None
        before = self._clock() - self._revoke_after
        for prompt in reversed(self._computed.values()):
            if prompt.hand_off and prompt.computed_time <= before:
                prompt.revoking = True
                return prompt
        return None


def _attempt_id(request: Request) -> bytes:
    return bytes.fromhex(request.request_id)
