"""Prompts that a decode worker computes itself (protocol 5.5), in its scheduler."""

from decode_svc.attempt import DecodePlan, DecodeProgress
from engine.batch import ModelRunnerOutput, Sample
from engine.request import RequestStatus
from tests.decode_svc.house import BLOCK_SIZE, EOS, House, draw


def advance(house: House, token_id: int = 60) -> tuple[DecodePlan, DecodeProgress]:
    plan = house.scheduler.schedule()
    progress = house.update(plan, draw(plan, token_id))
    house.blocks.check()
    return plan, progress


def test_a_prompt_is_computed_in_chunks_of_what_a_step_may_hold() -> None:
    house = House()
    attempt = house.add("a", range(40), computes_prompt=True)
    chunks: list[int] = []
    while attempt.prompt is not None or not chunks:
        plan, progress = advance(house)
        chunks.append(plan.output.num_tokens)
    assert chunks == [16, 16, 8]
    assert [prompted.attempt for prompted in progress.prompted] == [attempt]
    assert [(row.choice, row.index, row.sample.token_id) for row in progress.rows] == [(0, 0, 60)]


def test_the_choices_go_on_from_their_first_tokens_each_with_a_block_of_its_own() -> None:
    house = House()
    attempt = house.add("a", range(6), choices=3, computes_prompt=True)
    _, progress = advance(house)
    assert [row.choice for row in progress.rows] == [0, 1, 2]
    source = attempt.requests[0].block_table[-1]
    assert progress.prompted[0].copies == tuple(
        (source, request.block_table[-1]) for request in attempt.requests[1:]
    )
    _, progress = advance(house)
    assert [(row.choice, row.index) for row in progress.rows] == [(0, 1), (1, 1), (2, 1)]


def test_a_prompt_that_ends_on_its_first_token_gives_all_blocks_back() -> None:
    house = House()
    house.add("a", range(6), computes_prompt=True)
    _, progress = advance(house, token_id=EOS)
    assert [row.status for row in progress.rows] == [RequestStatus.FINISHED_EOS]
    assert house.is_empty
    assert house.scheduler.num_running == 0


def test_running_choices_come_first_and_prompts_take_the_rest_of_the_step() -> None:
    house = House()
    running = house.run("a", range(4), choices=3)
    house.add("b", range(20), computes_prompt=True)
    plan, _ = advance(house)
    assert [part.num_new_tokens for part in plan.output.scheduled] == [1, 1, 1, 13]
    assert plan.attempts[:3] == (running,) * 3


def test_full_steps_of_running_choices_do_not_stop_a_prompt() -> None:
    house = House(num_blocks=64, max_num_seqs=17)
    house.run("a", range(4), choices=16)
    attempt = house.add("b", range(8), computes_prompt=True)
    plan, _ = advance(house)
    assert plan.output.scheduled[-1].num_new_tokens == BLOCK_SIZE
    advance(house)
    assert attempt.prompt is None


def test_a_cached_prefix_is_not_computed_again_but_the_last_token_always_is() -> None:
    house = House()
    first = house.add("a", range(8), computes_prompt=True)
    advance(house)
    house.scheduler.remove(first.attempt_id)
    house.add("b", range(8), computes_prompt=True)
    plan = house.scheduler.schedule()
    assert [grant.cached_tokens for grant in plan.grants] == [4]
    assert plan.output.num_tokens == 4


def test_a_prompt_that_is_given_up_halfway_gives_all_blocks_back() -> None:
    house = House()
    attempt = house.add("a", range(40), choices=2, computes_prompt=True)
    advance(house)
    house.scheduler.remove(attempt.attempt_id)
    assert house.is_empty


def test_a_continuation_counts_its_output_from_where_it_began() -> None:
    house = House()
    attempt = house.add("a", range(10), max_tokens=4, computes_prompt=True)
    attempt.num_prompt_tokens = 8
    plan = house.scheduler.schedule()
    samples = ((Sample(0, 60),),)
    rows = house.update(plan, ModelRunnerOutput(samples)).rows
    assert [(row.index, row.status) for row in rows] == [(2, RequestStatus.RUNNING)]
    _, progress = advance(house)
    assert [row.status for row in progress.rows] == [RequestStatus.FINISHED_LENGTH]
    assert house.is_empty
