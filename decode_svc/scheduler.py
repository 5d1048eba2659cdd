"""Decides which choices compute in a step, and which blocks attempts hold meanwhile."""

from collections.abc import Collection, Iterable, Sequence

from decode_svc.attempt import Attempt, DecodePlan, DecodeProgress, Grant, Prompted, Row
from decode_svc.room import Room
from decode_svc.sequences import choice_request, prompt_request
from decode_svc.steps_under_way import StepsUnderWay
from engine.batch import ModelRunnerOutput, Sample, ScheduledRequest, SchedulerOutput
from engine.block_manager import BlockManager
from engine.errors import OutOfBlocks
from engine.prefixes import Prefixes
from engine.request import Request, RequestStatus
from engine.step_under_way import PartUnderWay, StepUnderWay
from kvtransfer.handoff import FirstSample
from worker.waiting_line import WaitingLine


class DecodeScheduler:
    """Continuous batching of attempts whose KV arrives from elsewhere, or is computed here.

    Engine thread only. An attempt is in exactly one of four stages, each in order of entry:

        waiting    no blocks; continuations first, else nobody overtakes (protocol 5.4)
        pulling    its cached prefix pinned, the rest of its prompt reserved
        computing  instead of pulling: its prompt takes what the running ones leave of a step
        running    in every step, until its choices have finished and it is released
    """

    def __init__(
        self,
        blocks: BlockManager,
        *,
        block_size: int,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        max_arriving: int,
    ) -> None:
        """``max_arriving``: attempts whose prompts may be on their way at once."""
        self._blocks = blocks
        self._block_size = block_size
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_num_seqs = max_num_seqs
        self._room = Room(
            blocks, block_size=block_size, max_num_seqs=max_num_seqs, max_arriving=max_arriving
        )
        self._waiting: WaitingLine[Attempt] = WaitingLine()
        self._pulling: dict[bytes, Attempt] = {}
        self._computing: dict[bytes, Attempt] = {}
        self._running: dict[bytes, Attempt] = {}
        self._under_way = StepsUnderWay(blocks, block_size)
        self._prefixes = Prefixes(blocks, block_size)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_pulling(self) -> int:
        return len(self._pulling)

    @property
    def num_running(self) -> int:
        return len(self._computing) + len(self._running)

    @property
    def awaits_joins(self) -> bool:
        """Whether a prompt may arrive at any moment, while none is computed here."""
        return bool(self._pulling) and not self._computing

    def add(self, attempt: Attempt) -> None:
        """Queues an attempt for room; its prompt must be computing on the prefill worker."""
        self._waiting.add(attempt.attempt_id, attempt, continues=attempt.continues)

    def join(
        self, attempt_id: bytes, first_samples: Sequence[FirstSample]
    ) -> tuple[tuple[int, int], ...]:
        """The whole prompt has arrived: its unfinished choices run from the next step on.

        Answers which blocks to copy, as (source, destination), before that step.
        """
        attempt = self._pulling.pop(attempt_id)
        self._blocks.activate(attempt.prompt_blocks[attempt.num_cached_blocks :])
        return self._go_on(attempt, first_samples)

    def release(self, attempt_id: bytes) -> None:
        """The lease was alive until every byte had arrived: tokens may leave, blocks be shared."""
        if (attempt := self._running.get(attempt_id)) is None:
            return
        attempt.released = True
        for request in attempt.requests:
            self._prefixes.publish(request, 0, self._under_way.num_written_tokens(request))
        self._let_go(attempt)

    def drop(self, attempt: Attempt, choices: Collection[int]) -> None:
        """Computes these choices no further; legal in every stage, also for choices that ended."""
        attempt.drop(choices)
        if attempt.released:
            self._let_go(attempt)

    def schedule(self) -> DecodePlan:
        """Plans a step and hands out room. Who finds none preempts the youngest (maybe itself)."""
        parts: list[ScheduledRequest] = []
        attempts: list[Attempt] = []
        preempted: list[Attempt] = []
        for attempt in list(self._running.values()):
            requests = attempt.going_on[: self._max_num_seqs - len(parts)]
            while attempt.attempt_id in self._running and not self._grow(requests):
                preempted.append(self._preempt_youngest())
            if attempt.attempt_id in self._running:
                parts += [ScheduledRequest(each, each.num_uncomputed_tokens) for each in requests]
                attempts += [attempt] * len(requests)
        grants = self._grant()
        self._plan_prompts(parts, attempts)
        return DecodePlan(SchedulerOutput(tuple(parts)), tuple(attempts), grants, tuple(preempted))

    def advance(self, plan: DecodePlan) -> StepUnderWay:
        """Counts a step as computed that was just launched. ``update`` or ``abandon`` must follow,
        in order; where a step ends a prompt, before the next ``schedule``."""
        return self._under_way.begin(plan)

    def abandon(self) -> None:
        """The oldest step under way has failed: its attempts are to be removed."""
        self._under_way.end()

    def update(
        self, plan: DecodePlan, step: StepUnderWay, runner_output: ModelRunnerOutput
    ) -> DecodeProgress:
        """Takes in the oldest step; frees what finished, as soon as it is released.

        What ended, or was preempted, after the step was launched draws nothing any more.
        """
        self._under_way.end()
        rows: list[Row] = []
        prompted: list[Prompted] = []
        drawn = zip(step.parts, plan.attempts, runner_output.samples, strict=True)
        for part, attempt, samples in drawn:
            if part.request is attempt.prompt and attempt.attempt_id in self._computing:
                self._prefixes.publish(part.request, part.first_token, part.end_token)
                if samples:
                    first_rows, copies = self._end_prompt(attempt, samples)
                    rows += first_rows
                    prompted.append(Prompted(attempt, copies))
            elif attempt.attempt_id in self._running and part.request.is_running:
                rows.append(self._advance(part, attempt, samples[0]))
        return DecodeProgress(tuple(rows), tuple(prompted))

    def remove(self, attempt_id: bytes, still_written: Sequence[int] = ()) -> None:
        """Forgets an attempt in any stage and frees its blocks.

        ``still_written`` are blocks that a read may still write to; they stay fenced until
        ``lift_fence`` (protocol 4.1). An unknown attempt is no error.
        """
        self._waiting.pop(attempt_id)
        self._blocks.fence(still_written)
        for stage in (self._pulling, self._computing):
            if (attempt := stage.pop(attempt_id, None)) is not None:
                self._under_way.give_back(attempt.prompt_blocks)
                self._blocks.release(attempt.spare_blocks)
                attempt.prompt_blocks, attempt.spare_blocks = [], []
        if (attempt := self._running.pop(attempt_id, None)) is not None:
            self._free(attempt.requests)

    def lift_fence(self, block_ids: Sequence[int]) -> None:
        self._blocks.lift_fence(block_ids)

    def _plan_prompts(self, parts: list[ScheduledRequest], attempts: list[Attempt]) -> None:
        """Adds what fits of the prompts that are computed here, oldest first."""
        # Full batches of running choices slow prompts down, but do not stop them.
        budget = max(self._max_num_batched_tokens - len(parts), self._block_size)
        for attempt in self._computing.values():
            assert attempt.prompt is not None, "a prompt that is computed here is a request"
            if num_new_tokens := min(budget, attempt.prompt.num_uncomputed_tokens):
                parts.append(ScheduledRequest(attempt.prompt, num_new_tokens))
                attempts.append(attempt)
                budget -= num_new_tokens

    def _grant(self) -> tuple[Grant, ...]:
        grants = []
        while self._waiting:
            attempt = self._waiting.head
            arriving = (*self._pulling.values(), *self._computing.values())
            if not self._room.reserve(attempt, arriving, self._running.values()):
                break
            self._waiting.pop(attempt.attempt_id)
            missing = attempt.prompt_blocks[attempt.num_cached_blocks :]
            cached_tokens = attempt.num_cached_blocks * self._block_size
            if attempt.computes_prompt:
                self._blocks.activate(missing)
                attempt.prompt = prompt_request(attempt, cached_tokens)
                attempt.released = True
                self._computing[attempt.attempt_id] = attempt
            else:
                self._pulling[attempt.attempt_id] = attempt
            grants.append(Grant(attempt, cached_tokens, tuple(missing)))
        return tuple(grants)

    def _go_on(
        self, attempt: Attempt, first_samples: Sequence[FirstSample]
    ) -> tuple[tuple[int, int], ...]:
        """Makes the prompt's blocks those of the choices that its first tokens did not end."""
        self._running[attempt.attempt_id] = attempt
        self._blocks.activate(attempt.spare_blocks)
        going_on = [first for first in first_samples if attempt.wants(first)]
        copies = []
        for first in going_on[1:]:
            table, copy = self._fork(attempt)
            attempt.requests.append(choice_request(attempt, first, table))
            copies += copy
        if going_on:
            attempt.requests.insert(0, choice_request(attempt, going_on[0], attempt.prompt_blocks))
        else:
            self._blocks.release(attempt.prompt_blocks)
        self._blocks.release(attempt.spare_blocks)
        attempt.prompt_blocks, attempt.spare_blocks = [], []
        return tuple(copies)

    def _fork(self, attempt: Attempt) -> tuple[list[int], list[tuple[int, int]]]:
        """A block table that shares the prompt's full blocks, and the copy it needs."""
        num_full = attempt.num_tokens // self._block_size
        table = attempt.prompt_blocks[:num_full]
        self._blocks.acquire(table)
        if num_full == len(attempt.prompt_blocks):
            return table, []
        private = attempt.spare_blocks.pop()
        return [*table, private], [(attempt.prompt_blocks[num_full], private)]

    def _grow(self, requests: Sequence[Request]) -> bool:
        """Gives each request a block for every token to compute, or some of them and False."""
        try:
            for request in requests:
                num_missing = -(-request.num_tokens // self._block_size) - len(request.block_table)
                if num_missing:
                    request.block_table += self._blocks.allocate(num_missing)
        except OutOfBlocks:
            return False
        return True

    def _preempt_youngest(self) -> Attempt:
        _, attempt = self._running.popitem()
        for request in attempt.requests:
            if not request.status.is_finished:
                request.status = RequestStatus.PREEMPTED
        self._free(attempt.requests)
        return attempt

    def _advance(self, part: PartUnderWay, attempt: Attempt, sample: Sample) -> Row:
        request, place = part.request, part.place
        assert place is not None, "a choice draws in every step"
        request.resolve(place, sample.token_id)
        if attempt.released:
            self._prefixes.publish(part.request, part.first_token, part.end_token)
            if request.status.is_finished:
                self._let_go(attempt)
        index = place - request.num_prompt_tokens
        return Row(attempt, sample.choice, index, sample, request.status)

    def _end_prompt(
        self, attempt: Attempt, samples: Sequence[Sample]
    ) -> tuple[list[Row], tuple[tuple[int, int], ...]]:
        """The choices leave the prompt with their first tokens, as after a hand-off."""
        assert attempt.prompt is not None, "it was in the step"
        prompt, attempt.prompt = attempt.prompt, None
        del self._computing[attempt.attempt_id]
        index = prompt.num_output_tokens
        rows, firsts = [], []
        for sample in samples:
            finish = prompt.finish_on(sample.token_id, index + 1)
            rows.append(Row(attempt, sample.choice, index, sample, finish or RequestStatus.RUNNING))
            firsts.append(FirstSample(sample.choice, sample.token_id, finish is not None))
        copies = self._go_on(attempt, firsts)
        self._let_go(attempt)
        return rows, copies

    def _let_go(self, attempt: Attempt) -> None:
        """Frees the choices that have finished, and forgets the attempt with the last one."""
        self._free(request for request in attempt.requests if request.status.is_finished)
        if attempt.is_finished:
            self._running.pop(attempt.attempt_id, None)

    def _free(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._under_way.give_back(request.block_table)
            request.block_table = []
