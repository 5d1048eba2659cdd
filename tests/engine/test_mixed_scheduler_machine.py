"""Random walks of a scheduler over the real block manager, beside a pool that knows its content.

The KV of a token stands for all tokens up to it, as in a model: a sequence that reads a block of
another text, or one that was handed out again, is found out.
"""

from collections.abc import Iterator

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.batch import ModelRunnerOutput, Sample, ScheduledRequest
from engine.block_manager import BlockManager
from engine.mixed_scheduler import MixedScheduler
from engine.request import Request
from engine.sampling_params import SamplingParams

NUM_BLOCKS, BLOCK_SIZE = 12, 4
MAX_PROMPT, MAX_OUTPUT = 26, 14
# Of two tokens, so that prompts and outputs often begin alike.
PROMPTS = st.lists(st.integers(1, 2), min_size=1, max_size=MAX_PROMPT)


class MixedSchedulerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = BlockManager(NUM_BLOCKS, free_list_seed=3)
        self.pool: dict[tuple[int, int], tuple[int, ...]] = {}
        self.requests: dict[str, Request] = {}
        self.finished: dict[tuple[str, int], list[int]] = {}
        self.make_scheduler(budget=64, prefix_cache=True)

    def make_scheduler(self, budget: int, prefix_cache: bool) -> None:
        self.scheduler = MixedScheduler(
            self.blocks,
            block_size=BLOCK_SIZE,
            max_num_batched_tokens=budget,
            max_num_seqs=6,
            enable_prefix_cache=prefix_cache,
        )

    @precondition(lambda self: not self.requests)
    @rule(budget=st.sampled_from([1, 5, 64]), prefix_cache=st.booleans())
    def choose_settings(self, budget: int, prefix_cache: bool) -> None:
        self.make_scheduler(budget, prefix_cache)

    @rule(
        prompt=PROMPTS,
        max_tokens=st.integers(1, MAX_OUTPUT),
        num_choices=st.integers(1, 3),
        salt=st.sampled_from([b"", b"other"]),
    )
    def add(self, prompt: list[int], max_tokens: int, num_choices: int, salt: bytes) -> None:
        request = Request(
            request_id=str(len(self.requests)),
            token_ids=list(prompt),
            num_prompt_tokens=len(prompt),
            params=SamplingParams(max_tokens=max_tokens),
            choices=tuple(range(num_choices)),
            cache_salt=salt,
        )
        self.requests[request.request_id] = request
        self.scheduler.add(request)

    @rule()
    def step(self) -> None:
        output = self.scheduler.schedule()
        assert output.scheduled or not self.scheduler.num_waiting, "nothing runs and some wait"
        self.check_references([part.request for part in output.scheduled])
        for part in output.scheduled:
            self.compute(part)
        samples = tuple(tuple(draws(part)) for part in output.scheduled)
        under_way = self.scheduler.advance(output)
        finished, copies = self.scheduler.update(under_way, ModelRunnerOutput(samples))
        for source, destination in copies:
            for offset in range(BLOCK_SIZE):
                self.pool[destination, offset] = self.pool.get((source, offset), ())
        for request in finished:
            (choice,) = request.choices
            self.finished[request.request_id, choice] = request.token_ids

    @rule()
    def several_steps(self) -> None:
        for _ in range(8):
            self.step()

    @invariant()
    def every_block_is_in_one_state(self) -> None:
        self.blocks.check()

    def teardown(self) -> None:
        """Everything comes to its end, whoever had to give way on the way there."""
        while self.scheduler.num_waiting or self.scheduler.num_running:
            self.step()
        assert self.finished.keys() == {
            (name, choice) for name, request in self.requests.items() for choice in request.choices
        }
        for (name, choice), token_ids in self.finished.items():
            request = self.requests[name]
            expected = token_ids[: request.num_prompt_tokens]
            while len(expected) < len(token_ids):
                expected.append(draw(choice, len(expected)))
            assert token_ids == expected
            assert len(token_ids) == request.num_prompt_tokens + request.params.max_tokens
        counts = self.blocks.counts()
        assert counts.cached + counts.free == counts.total == NUM_BLOCKS

    def check_references(self, scheduled: list[Request]) -> None:
        """Blocks are used by those who run, and by nobody else."""
        if len(scheduled) == self.scheduler.num_running:
            held = {block for request in scheduled for block in request.block_table}
            assert self.blocks.counts().used == len(held)

    def compute(self, part: ScheduledRequest) -> None:
        """Reads the KV of all tokens before and writes that of the new ones."""
        request, first = part.request, part.request.num_computed_tokens
        salted = (len(request.cache_salt), *request.token_ids)
        for position in range(first + part.num_new_tokens):
            slot = request.block_table[position // BLOCK_SIZE], position % BLOCK_SIZE
            kv = salted[: position + 2]
            if position >= first:
                self.pool[slot] = kv
            assert self.pool[slot] == kv, (request, position)


def draws(part: ScheduledRequest) -> Iterator[Sample]:
    if part.samples:
        for choice in part.request.choices:
            yield Sample(choice, draw(choice, part.request.num_tokens))


def draw(choice: int, position: int) -> int:
    """The same in every attempt, and often the same for two choices."""
    return 1 + (position // (3 + choice)) % 2


TestMixedSchedulerMachine = MixedSchedulerMachine.TestCase
TestMixedSchedulerMachine.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None
)
