"""The decode scheduler over a real BlockManager."""

import pytest

from engine.batch import ModelRunnerOutput, Sample
from engine.block_hash import hash_blocks
from engine.request import RequestStatus
from kvtransfer.handoff import FirstSample
from tests.decode_svc.house import BLOCK_SIZE, EOS, House, draw


def test_a_joined_attempt_is_in_the_very_next_step() -> None:
    house = House()
    attempt = house.add("a", range(10))
    house.scheduler.schedule()
    house.join(attempt)
    (row,) = house.step(token_id=61)
    assert (row.attempt, row.choice, row.index, row.sample.token_id) == (attempt, 0, 1, 61)
    assert house.blocks.counts().used == 3


def test_a_continued_attempt_counts_its_outputs_from_the_prompt() -> None:
    house = House()
    attempt = house.add("a", range(10))
    attempt.num_prompt_tokens = 6
    house.scheduler.schedule()
    house.join(attempt)
    assert house.step()[0].index == 5


def test_nothing_enters_the_prefix_cache_before_the_release() -> None:
    house = House()
    attempt = house.add("a", range(10), max_tokens=2)
    house.scheduler.schedule()
    house.join(attempt)
    (row,) = house.step()
    assert row.status is RequestStatus.FINISHED_LENGTH
    assert house.blocks.match_prefix(hash_blocks(range(10), BLOCK_SIZE)) == []
    assert house.blocks.counts().used == 3
    house.scheduler.release(attempt.attempt_id)
    assert len(house.blocks.match_prefix(hash_blocks(range(10), BLOCK_SIZE))) == 2
    assert house.is_empty


def test_an_attempt_removed_before_its_release_leaves_nothing_in_the_cache() -> None:
    house = House()
    attempt = house.add("a", range(10))
    house.scheduler.schedule()
    house.join(attempt)
    house.step()
    house.scheduler.remove(attempt.attempt_id)
    house.scheduler.release(attempt.attempt_id)
    assert house.is_empty
    assert house.blocks.counts().cached == 0


def test_generated_blocks_enter_the_cache_as_they_fill() -> None:
    house = House()
    house.run("a", range(6))
    for _ in range(2):
        house.step()
    known = hash_blocks([*range(6), 50, 60], BLOCK_SIZE)
    assert len(house.blocks.match_prefix(known)) == 2


def test_a_cached_prefix_is_pinned_and_only_the_tail_is_asked_for() -> None:
    house = House()
    house.scheduler.remove(house.run("a", range(10)).attempt_id)
    attempt = house.add("b", [*range(8), 90, 91])
    (grant,) = house.scheduler.schedule().grants
    assert (grant.cached_tokens, len(grant.block_ids)) == (8, 1)
    assert (house.blocks.counts().used, house.blocks.counts().reserved) == (2, 1)
    house.join(attempt)
    assert attempt.requests[0].block_table[:2] == house.blocks.match_prefix(attempt.block_hashes)


def test_a_prompt_cached_in_full_asks_for_nothing() -> None:
    house = House()
    house.scheduler.remove(house.run("a", range(8)).attempt_id)
    attempt = house.add("b", range(8))
    (grant,) = house.scheduler.schedule().grants
    assert (grant.cached_tokens, grant.block_ids) == (8, ())
    house.join(attempt)
    assert len(house.step()) == 1


def test_choices_share_full_blocks_and_copy_the_partial_one() -> None:
    house = House()
    attempt = house.add("a", range(6), choices=3)
    house.scheduler.schedule()
    copies = house.join(attempt)
    tables = [request.block_table for request in attempt.requests]
    assert len({table[0] for table in tables}) == 1
    assert len({table[1] for table in tables}) == 3
    assert copies == tuple((tables[0][1], table[1]) for table in tables[1:])
    assert [row.choice for row in house.step()] == [0, 1, 2]
    assert house.blocks.counts().used == 4


def test_choices_of_a_whole_block_prompt_copy_nothing_and_part_at_the_next_block() -> None:
    house = House()
    attempt = house.add("a", range(8), choices=2)
    house.scheduler.schedule()
    assert house.join(attempt) == ()
    house.step()
    first, second = (request.block_table for request in attempt.requests)
    assert first[:2] == second[:2]
    assert first[2] != second[2]


def test_a_choice_that_ended_on_prefill_gives_its_spare_block_back() -> None:
    house = House()
    attempt = house.add("a", range(6), choices=3)
    house.scheduler.schedule()
    first = [FirstSample(0, EOS, True), FirstSample(1, 50, False), FirstSample(2, EOS, True)]
    house.scheduler.join(attempt.attempt_id, first)
    assert [row.choice for row in house.step()] == [1]
    assert house.blocks.counts().used == 2


def test_an_attempt_that_ended_on_prefill_is_forgotten_when_released() -> None:
    house = House()
    attempt = house.add("a", range(6))
    house.scheduler.schedule()
    house.scheduler.join(attempt.attempt_id, [FirstSample(0, EOS, True)])
    assert house.step() == ()
    house.scheduler.release(attempt.attempt_id)
    assert house.scheduler.num_running == 0
    assert house.is_empty


def test_a_finished_choice_frees_its_blocks_while_the_others_go_on() -> None:
    house = House()
    attempt = house.run("a", range(6), choices=2)
    plan = house.scheduler.schedule()
    samples = ((Sample(0, EOS),), (Sample(1, 60),))
    rows = house.update(plan, ModelRunnerOutput(samples)).rows
    assert [row.status for row in rows] == [RequestStatus.FINISHED_EOS, RequestStatus.RUNNING]
    assert house.blocks.counts().used == 2
    assert [row.choice for row in house.step()] == [1]
    assert not attempt.is_finished


def test_the_youngest_attempt_is_preempted_when_blocks_run_out() -> None:
    house = House(num_blocks=6)
    old = house.run("a", range(7))
    young = house.run("b", range(20, 28))
    seen = [house.scheduler.schedule()]
    while not seen[-1].preempted:
        house.update(seen[-1], draw(seen[-1], 60))
        seen.append(house.scheduler.schedule())
    assert seen[-1].preempted == (young,)
    assert [part.request for part in seen[-1].output.scheduled] == old.requests
    assert young.requests[0].status is RequestStatus.PREEMPTED
    house.blocks.check()


def test_an_attempt_that_outgrows_the_pool_alone_is_preempted_itself() -> None:
    house = House(num_blocks=4)
    attempt = house.run("a", range(6), choices=2)
    plan = house.scheduler.schedule()
    while not plan.preempted:
        house.update(plan, draw(plan, 60))
        plan = house.scheduler.schedule()
    assert plan.preempted == (attempt,)
    assert plan.output.scheduled == ()
    assert house.is_empty


def test_a_step_takes_no_more_choices_than_the_batch_has_seats() -> None:
    house = House(max_num_seqs=2)
    house.run("a", range(5), choices=2)
    house.add("b", range(20, 25))
    plan = house.scheduler.schedule()
    assert len(plan.output.scheduled) == 2
    assert plan.grants == ()


@pytest.mark.parametrize("stage", ["waiting", "pulling", "unreleased", "running"])
def test_removing_an_attempt_in_any_stage_gives_every_block_back(stage: str) -> None:
    house = House()
    attempt = house.add("a", range(10), choices=2)
    if stage != "waiting":
        house.scheduler.schedule()
    if stage in ("unreleased", "running"):
        house.join(attempt)
    if stage == "running":
        house.scheduler.release(attempt.attempt_id)
        house.step()
    house.scheduler.remove(attempt.attempt_id)
    house.scheduler.remove(attempt.attempt_id)
    assert house.is_empty
    assert house.scheduler.schedule().output.scheduled == ()


def test_a_block_that_a_read_may_still_write_is_not_reused_until_its_fence_lifts() -> None:
    house = House(num_blocks=4)
    attempt = house.add("a", range(10))
    (grant,) = house.scheduler.schedule().grants
    house.scheduler.remove(attempt.attempt_id, still_written=grant.block_ids[:2])
    assert (house.blocks.counts().fenced, house.blocks.num_available) == (2, 2)
    house.add("b", range(20, 30))
    assert house.scheduler.schedule().grants == ()
    house.scheduler.lift_fence(grant.block_ids[:2])
    assert len(house.scheduler.schedule().grants) == 1


def test_what_continues_an_answer_gets_room_before_those_that_wait_longer() -> None:
    house = House(num_blocks=6)
    running = house.run("a", range(16))
    for name, known in (("b", 0), ("c", 2), ("d", 1)):
        house.add(name, range(100, 112), known=known)
    assert house.scheduler.schedule().grants == ()
    house.scheduler.remove(running.attempt_id)
    for expected in "cd":
        (grant,) = house.scheduler.schedule().grants
        assert grant.attempt.handle == ord(expected)
        house.scheduler.remove(grant.attempt.attempt_id)
