"""Which attempts get blocks, and which wait."""

import pytest

from tests.decode_svc.house import House


def test_an_attempt_with_room_is_granted_its_missing_blocks_as_reserved() -> None:
    house = House()
    attempt = house.add("a", range(10))
    (grant,) = house.scheduler.schedule().grants
    assert (grant.attempt, grant.cached_tokens, len(grant.block_ids)) == (attempt, 0, 3)
    assert house.blocks.counts().reserved == 3


def test_attempts_without_room_wait_and_nobody_overtakes() -> None:
    house = House(num_blocks=4)
    house.add("a", range(9))
    house.add("b", range(20, 35))
    house.add("c", [70])
    assert len(house.scheduler.schedule().grants) == 1
    assert house.scheduler.schedule().grants == ()
    assert house.scheduler.num_waiting == 2


def test_room_leaves_a_block_to_grow_for_every_active_choice() -> None:
    house = House(num_blocks=4)
    house.run("a", range(5))
    house.add("b", range(20, 25))
    assert house.scheduler.schedule().grants == ()


def test_prompts_on_their_way_take_half_of_the_pool_at_most() -> None:
    house = House(num_blocks=16)
    attempts = [house.add(name, range(50 * i, 50 * i + 14)) for i, name in enumerate("abc")]
    grants = house.scheduler.schedule().grants
    assert [grant.attempt for grant in grants] == attempts[:2]
    assert house.blocks.counts().reserved == 8
    house.join(attempts[0])
    assert [grant.attempt for grant in house.scheduler.schedule().grants] == attempts[2:]


def test_a_prompt_that_is_alone_on_its_way_may_have_more_than_half() -> None:
    house = House(num_blocks=16)
    long = house.add("a", range(60))
    house.add("b", [70])
    assert [grant.attempt for grant in house.scheduler.schedule().grants] == [long]
    house.scheduler.remove(long.attempt_id)
    assert len(house.scheduler.schedule().grants) == 1


@pytest.mark.parametrize("computes_prompt", [False, True], ids=["pulled", "computed here"])
def test_so_many_prompts_are_on_their_way_at_once(computes_prompt: bool) -> None:
    house = House(max_arriving=2)
    attempts = [house.add(name, [ord(name)] * 5, computes_prompt=computes_prompt) for name in "abc"]
    assert len(house.scheduler.schedule().grants) == 2
    assert house.scheduler.num_waiting == 1
    house.scheduler.remove(attempts[1].attempt_id)
    (grant,) = house.scheduler.schedule().grants
    assert grant.attempt is attempts[2]
