"""The prefill scheduler over a real BlockManager; no model, so a step is one call to `compute`."""

from collections.abc import Sequence

import pytest

from engine.batch import ModelRunnerOutput, Sample
from engine.block_hash import hash_blocks
from engine.block_manager import BlockManager
from engine.request import Request
from engine.sampling_params import SamplingParams
from kvtransfer.handoff import Chunk
from prefill_svc.prompt import PrefillPlan, Progress, Prompt
from prefill_svc.scheduler import PrefillScheduler

BLOCK_SIZE = 4


class House:
    """A scheduler with its pool, a clock that stands still, and prompts named by one letter."""

    def __init__(self, num_blocks: int = 32, budget: int = 8, max_num_seqs: int = 16) -> None:
        self.now = 100.0
        self.blocks = BlockManager(num_blocks)
        self.scheduler = PrefillScheduler(
            self.blocks,
            block_size=BLOCK_SIZE,
            max_num_batched_tokens=budget,
            max_num_seqs=max_num_seqs,
            revoke_after=2.0,
            clock=lambda: self.now,
        )

    def add(
        self,
        name: str,
        token_ids: Sequence[int],
        *,
        hand_off: bool = True,
        choices: int = 1,
        known: int = 0,
    ) -> Prompt:
        """``known`` of the tokens are output of an earlier attempt."""
        attempt_id = name.encode() * 16
        request = Request(
            request_id=attempt_id.hex(),
            token_ids=list(token_ids),
            num_prompt_tokens=len(token_ids) - known,
            params=SamplingParams(),
            choices=tuple(range(choices)),
            block_hashes=hash_blocks(token_ids, BLOCK_SIZE),
        )
        prompt = Prompt(attempt_id, request, hand_off)
        self.scheduler.add(prompt)
        return prompt

    def compute(self, plan: PrefillPlan) -> tuple[Progress, ...]:
        samples = tuple(
            tuple(Sample(choice, 7) for choice in part.request.choices) if part.samples else ()
            for part in plan.output.scheduled
        )
        step = self.scheduler.advance(plan.output)
        progress = self.scheduler.update(step, ModelRunnerOutput(samples))
        self.blocks.check()
        return progress

    def step(self) -> tuple[Progress, ...]:
        return self.compute(self.scheduler.schedule())


def sizes(plan: PrefillPlan) -> list[int]:
    return [part.num_new_tokens for part in plan.output.scheduled]


def names(plan: PrefillPlan) -> list[str]:
    return [part.request.request_id for part in plan.output.scheduled]


def ids(*prompts: Prompt) -> list[str]:
    return [prompt.request.request_id for prompt in prompts]


def test_a_long_prompt_is_cut_into_chunks_of_the_budget_and_holds_all_its_blocks_at_once() -> None:
    house = House(budget=8)
    prompt = house.add("a", range(21))
    plan = house.scheduler.schedule()
    assert sizes(plan) == [8]
    assert [admission.prompt for admission in plan.admissions] == [prompt]
    assert house.blocks.counts().used == 6
    house.compute(plan)
    assert [sizes(house.scheduler.schedule()) for _ in range(1)] == [[8]]
    house.step()
    assert sizes(house.scheduler.schedule()) == [5]


def test_only_full_blocks_are_announced_until_the_prompt_is_done() -> None:
    house = House(budget=6)
    prompt = house.add("a", range(10))
    plan = house.scheduler.schedule()
    (first,) = house.compute(plan)
    table = tuple(prompt.request.block_table)
    assert first.chunk == Chunk(0, 4, table[:1])
    assert (first.samples, first.last_chunk) == ((), None)
    (second,) = house.step()
    assert second.chunk == Chunk(4, 4, table[1:2])
    assert second.last_chunk == Chunk(8, 2, table[2:])
    assert [sample.token_id for sample in second.samples] == [7]
    assert house.blocks.counts().leased == 3


def test_a_prompt_of_whole_blocks_has_no_partial_chunk() -> None:
    house = House()
    house.add("a", range(8))
    (progress,) = house.step()
    assert progress.chunk is not None
    assert progress.chunk.num_tokens == 8
    assert progress.last_chunk is None


def test_several_prompts_share_a_step_and_the_last_one_gets_what_is_left() -> None:
    house = House(budget=8)
    a, b, c = house.add("a", range(3)), house.add("b", range(10, 14)), house.add("c", range(20, 29))
    plan = house.scheduler.schedule()
    assert names(plan) == ids(a, b, c)
    assert sizes(plan) == [3, 4, 1]


def test_a_prompt_is_admitted_only_when_its_first_chunk_fits_the_step() -> None:
    house = House(budget=8)
    house.add("a", range(8))
    late = house.add("b", range(10, 14))
    assert late not in [admission.prompt for admission in house.scheduler.schedule().admissions]
    assert house.scheduler.num_waiting == 1


def test_a_started_prompt_overtakes_one_that_no_decode_worker_wants_yet() -> None:
    house = House(budget=8)
    a, b, c = (house.add(name, range(ord(name), ord(name) + 40)) for name in "abc")
    assert names(house.scheduler.schedule()) == ids(a)
    plan = house.scheduler.schedule()
    assert names(plan) == ids(a)
    assert [admission.prompt for admission in plan.admissions] == [b]
    house.scheduler.start(b.attempt_id)
    plan = house.scheduler.schedule()
    assert names(plan) == ids(b)
    assert c not in [admission.prompt for admission in plan.admissions]


def test_a_cached_prefix_is_announced_at_once_and_not_computed_again() -> None:
    house = House(budget=64)
    first = house.add("a", range(10))
    house.step()
    house.scheduler.remove(first.attempt_id)
    second = house.add("b", [*range(8), 50, 51])
    plan = house.scheduler.schedule()
    assert sizes(plan) == [2]
    assert second.request.num_cached_tokens == 8
    assert plan.admissions[0].chunk == Chunk(0, 8, tuple(second.request.block_table[:2]))


def test_the_last_token_is_computed_even_when_the_whole_prompt_is_cached() -> None:
    house = House(budget=64)
    house.scheduler.remove(_computed(house, house.add("a", range(8))))
    again = house.add("b", range(8))
    assert sizes(house.scheduler.schedule()) == [4]
    assert again.request.num_cached_tokens == 4


def test_a_prompt_without_hand_off_announces_and_leases_nothing() -> None:
    house = House(budget=64)
    prompt = house.add("a", range(10), hand_off=False)
    (progress,) = house.step()
    assert (progress.chunk, progress.last_chunk) == (None, None)
    assert house.blocks.counts().leased == 0
    house.scheduler.remove(prompt.attempt_id)
    assert house.blocks.num_available == house.blocks.num_blocks


def test_each_choice_gets_its_own_first_token() -> None:
    house = House(budget=64)
    house.add("a", range(6), choices=3)
    (progress,) = house.step()
    assert [sample.choice for sample in progress.samples] == [0, 1, 2]


@pytest.mark.parametrize("num_steps", [0, 1, 3], ids=["waiting", "computing", "computed"])
def test_removing_a_prompt_in_any_stage_gives_every_block_back(num_steps: int) -> None:
    house = House(budget=4)
    prompt = house.add("a", range(10))
    for _ in range(num_steps):
        house.step()
    house.scheduler.remove(prompt.attempt_id)
    house.scheduler.remove(prompt.attempt_id)
    house.blocks.check()
    assert house.blocks.num_available == house.blocks.num_blocks
    assert house.scheduler.schedule().output.scheduled == ()


def test_a_stopped_prompt_keeps_its_blocks_until_its_lease_ended() -> None:
    house = House(budget=4)
    prompt = house.add("a", range(10))
    house.step()
    assert house.scheduler.stop([prompt.request]) == (prompt,)
    assert house.scheduler.schedule().output.scheduled == ()
    assert house.blocks.counts().leased == 1
    house.scheduler.remove(prompt.attempt_id)
    assert house.blocks.num_available == house.blocks.num_blocks


def test_a_prompt_without_room_waits_and_holds_nothing() -> None:
    house = House(num_blocks=4, budget=64)
    a, b = house.add("a", range(9)), house.add("b", range(20, 29))
    assert names(house.scheduler.schedule()) == ids(a)
    assert house.blocks.counts().used == 3
    assert b.request.block_table == []


def test_a_waiting_prompt_revokes_the_youngest_one_nobody_pulls() -> None:
    house = House(num_blocks=6, budget=64)
    _, young = _computed(house, house.add("a", range(9))), house.add("b", range(20, 29))
    house.step()
    house.add("c", range(40, 49))
    assert house.scheduler.schedule().revoke is None
    house.now += 3.0
    assert house.scheduler.schedule().revoke is young
    assert house.scheduler.schedule().revoke is None
    assert house.blocks.num_available == 0
    house.scheduler.remove(young.attempt_id)
    assert len(house.scheduler.schedule().admissions) == 1


def test_nobody_is_revoked_while_a_started_prompt_is_about_to_give_its_blocks_back() -> None:
    house = House(num_blocks=6, budget=64)
    started = _computed(house, house.add("a", range(9)))
    _computed(house, house.add("b", range(20, 29)))
    house.scheduler.start(started)
    house.add("c", range(40, 49))
    house.now += 60.0
    assert house.scheduler.schedule().revoke is None


def test_pending_tokens_count_what_is_not_computed_yet() -> None:
    house = House(budget=8)
    house.add("a", range(10))
    house.add("b", range(20, 25))
    assert house.scheduler.num_pending_tokens == 15
    house.step()
    assert house.scheduler.num_pending_tokens == 7


def _computed(house: House, prompt: Prompt) -> bytes:
    house.step()
    assert prompt.request.num_uncomputed_tokens == 0
    return prompt.attempt_id


def test_what_continues_an_answer_is_computed_before_those_that_wait_longer() -> None:
    house = House(num_blocks=4, budget=16)
    running = house.add("a", range(16), hand_off=False)
    house.step()
    for name, known in (("b", 0), ("c", 2), ("d", 1)):
        house.add(name, range(100, 112), known=known)
    house.scheduler.remove(running.attempt_id)
    assert names(house.scheduler.schedule())[0] == (b"c" * 16).hex()
    house.scheduler.remove(b"c" * 16)
    assert names(house.scheduler.schedule()) == [(b"d" * 16).hex()]
