"""Continuous batching in one engine: decoding sequences first, prompts in what budget is left."""

from collections import deque
from collections.abc import Sequence

from engine.batch import ModelRunnerOutput, Sample, ScheduledRequest, SchedulerOutput
from engine.block_manager import BlockManager
from engine.errors import OutOfBlocks
from engine.prefixes import Prefixes
from engine.request import Request, RequestStatus
from engine.step_under_way import PartUnderWay, StepUnderWay

# A block to copy before the next step: (source, destination).
BlockCopy = tuple[int, int]


class MixedScheduler:
    """Decides what an unsplit engine computes in a step.

    A request is ``waiting`` without blocks, or ``running`` with blocks for all tokens it knew when
    it was admitted. When a running one finds no block to grow into, the youngest loses its blocks
    and waits again, in front; it is resumed by computing its prompt and output again.
    """

    def __init__(
        self,
        blocks: BlockManager,
        *,
        block_size: int,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        enable_prefix_cache: bool,
    ) -> None:
        self._blocks = blocks
        self._block_size = block_size
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_num_seqs = max_num_seqs
        self._prefixes = Prefixes(blocks, block_size) if enable_prefix_cache else None
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self.num_preemptions = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_decoding(self) -> int:
        return sum(
            request.num_computed_tokens >= request.num_prompt_tokens for request in self._running
        )

    def add(self, request: Request) -> None:
        """Queues a request that fits into the empty pool, output included."""
        self._waiting.append(request)

    def schedule(self) -> SchedulerOutput:
        parts: list[ScheduledRequest] = []
        budget = self._max_num_batched_tokens
        num_preemptions = self.num_preemptions
        for request in list(self._running):
            if request.awaits_its_end:
                continue
            num_new_tokens = min(budget, request.num_uncomputed_tokens)
            if num_new_tokens == 0 or len(parts) == self._max_num_seqs:
                break
            if self._make_room(request):
                parts.append(ScheduledRequest(request, num_new_tokens))
                budget -= num_new_tokens
        # Who was just preempted must not come straight back for the blocks it gave up.
        if self.num_preemptions == num_preemptions:
            self._admit(parts, budget)
        return SchedulerOutput(tuple(parts))

    def advance(self, output: SchedulerOutput) -> StepUnderWay:
        """Counts a step as computed as soon as it is launched, so that the next can be scheduled
        while the device works. ``update`` must follow for each step, in order; where a step draws
        for several choices, before the next ``schedule``."""
        return StepUnderWay(
            tuple(
                PartUnderWay.begin(part, draws=part.samples and len(part.request.choices) == 1)
                for part in output.scheduled
            )
        )

    def update(
        self, step: StepUnderWay, runner_output: ModelRunnerOutput
    ) -> tuple[list[Request], list[BlockCopy]]:
        """Takes in a finished step; returns what finished and the copies that forks need.

        Blocks of what finished are free at once, even where a later step is under way that writes
        to them: whatever writes there next is queued on the device behind it.
        """
        finished: list[Request] = []
        copies: list[BlockCopy] = []
        for part, samples in zip(step.parts, runner_output.samples, strict=True):
            request = part.request
            if request.status.is_finished:
                continue
            if self._prefixes is not None and request.status is RequestStatus.RUNNING:
                self._prefixes.publish(request, part.first_token, part.end_token)
            if part.place is not None:
                request.resolve(part.place, samples[0].token_id)
                if request.status.is_finished:
                    self._drop(request)
                    finished.append(request)
            elif samples:
                finished += self._split_choices(request, samples, copies)
        return finished, copies

    def _drop(self, request: Request) -> None:
        """One that finished while it ran, or after the next step had preempted it already."""
        if request in self._running:
            self._running.remove(request)
        else:
            self._waiting.remove(request)
        self._release(request)

    def _make_room(self, request: Request) -> bool:
        """Blocks for every token of ``request``; False where it had to give way itself."""
        while request.status is RequestStatus.RUNNING:
            missing = -(-request.num_tokens // self._block_size) - len(request.block_table)
            try:
                request.block_table += self._blocks.allocate(missing)
            except OutOfBlocks:
                self._preempt(self._running.pop())
            else:
                return True
        return False

    def _preempt(self, request: Request) -> None:
        self.num_preemptions += 1
        self._release(request)
        request.num_computed_tokens = 0
        request.status = RequestStatus.PREEMPTED
        self._waiting.appendleft(request)

    def _admit(self, parts: list[ScheduledRequest], budget: int) -> None:
        while self._waiting and budget > 0:
            request = self._waiting[0]
            num_seqs = sum(len(each.choices) for each in self._running) + len(request.choices)
            if self._running and num_seqs > self._max_num_seqs:
                return
            if not self._place(request):
                return
            self._running.append(self._waiting.popleft())
            num_new_tokens = min(budget, request.num_uncomputed_tokens)
            parts.append(ScheduledRequest(request, num_new_tokens))
            budget -= num_new_tokens

    def _place(self, request: Request) -> bool:
        """Cached blocks for the known prefix and fresh ones for the rest, or nothing and False."""
        cached = []
        if self._prefixes is not None:
            self._prefixes.extend_hashes(request, request.num_tokens)
            # The last token is always computed: its logits are what the next one is drawn from.
            num_matchable = (request.num_tokens - 1) // self._block_size
            cached = self._blocks.match_prefix(request.block_hashes[:num_matchable])
        self._blocks.acquire(cached)
        missing = -(-request.num_tokens // self._block_size) - len(cached)
        # Every running sequence may want a block soon; who is admitted into the last ones would
        # be the first to be preempted.
        if missing + len(self._running) > self._blocks.num_available:
            self._blocks.release(cached)
            return False
        request.block_table = [*cached, *self._blocks.allocate(missing)]
        request.num_computed_tokens = len(cached) * self._block_size
        if request.status is RequestStatus.WAITING:
            request.num_cached_tokens = request.num_computed_tokens
        request.status = RequestStatus.RUNNING
        return True

    def _split_choices(
        self, request: Request, samples: Sequence[Sample], copies: list[BlockCopy]
    ) -> list[Request]:
        """One new request per choice in place of ``request``; returns those that end at once."""
        self._running.remove(request)
        finished = []
        for sample in samples:
            child = _choose(request, sample.choice)
            child.append(sample.token_id)
            if child.status.is_finished:
                finished.append(child)
            else:
                self._fork(request, child, copies)
        # Only now: until then its blocks are what the children share and copy.
        self._release(request)
        return finished

    def _fork(self, parent: Request, child: Request, copies: list[BlockCopy]) -> None:
        """Shares the full blocks and copies the partial one; a child without room waits."""
        num_full = parent.num_tokens // self._block_size
        shared, partial = parent.block_table[:num_full], parent.block_table[num_full:]
        try:
            private = self._blocks.allocate(len(partial))
        except OutOfBlocks:
            child.num_computed_tokens = 0
            child.status = RequestStatus.PREEMPTED
            self._waiting.appendleft(child)
            return
        self._blocks.acquire(shared)
        child.block_table = [*shared, *private]
        copies += zip(partial, private, strict=True)
        self._running.append(child)

    def _release(self, request: Request) -> None:
        self._blocks.release(request.block_table)
        request.block_table = []


def _choose(parent: Request, choice: int) -> Request:
    """One choice of a request whose prompt is computed, still without blocks."""
    return Request(
        request_id=parent.request_id,
        token_ids=list(parent.token_ids),
        num_prompt_tokens=parent.num_prompt_tokens,
        params=parent.params,
        choices=(choice,),
        cache_salt=parent.cache_salt,
        status=RequestStatus.RUNNING,
        num_computed_tokens=parent.num_computed_tokens,
        num_cached_tokens=parent.num_cached_tokens,
        block_hashes=list(parent.block_hashes),
    )
