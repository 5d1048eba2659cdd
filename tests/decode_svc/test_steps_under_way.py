"""A step is launched before the tokens of the last one are known."""

import pytest

from engine.block_hash import hash_blocks
from engine.errors import DeviceLost
from tests.decode_svc.stepper_bench import BLOCK_SIZE, Bench


def test_a_step_ahead_is_launched_before_the_tokens_of_the_last_one_leave() -> None:
    bench = Bench()
    bench.runner.ahead = True
    attempt = bench.join("a", max_tokens=4)
    bench.stepper.release(attempt)
    bench.step()
    assert bench.tokens() == []
    bench.step()
    assert bench.tokens() == [60]
    while bench.step():
        pass
    assert (bench.tokens(), bench.finished) == ([60, 61, 62], [attempt])
    assert bench.blocks.num_available == bench.blocks.num_blocks


def test_what_a_cancelled_step_under_way_still_writes_is_fenced_until_it_is_over() -> None:
    bench = Bench()
    bench.runner.ahead = True
    attempt = bench.join("a")
    bench.step()
    bench.stepper.remove(attempt, ())
    counts = bench.blocks.counts()
    assert (counts.fenced, counts.used) == (1, 0)
    bench.step()
    assert bench.blocks.counts().fenced == 0
    assert bench.blocks.num_available == bench.blocks.num_blocks


def test_a_release_shares_no_block_that_a_step_under_way_is_still_to_fill() -> None:
    bench = Bench()
    bench.runner.ahead = True
    attempt = bench.join("a")
    bench.step()
    bench.step()
    # Seven tokens are computed, and the eighth, which fills the second block, is under way.
    known = [ord("a")] * 6 + [50, 60]
    bench.stepper.release(attempt)
    hashes = hash_blocks(known, BLOCK_SIZE)
    assert len(bench.blocks.match_prefix(hashes)) == 1
    bench.step()
    assert len(bench.blocks.match_prefix(hashes)) == 2


def test_a_step_that_fails_on_the_device_ends_its_attempts_though_the_next_is_under_way() -> None:
    bench = Bench()
    bench.runner.ahead = True
    attempt = bench.join("a")
    bench.stepper.release(attempt)
    bench.step()
    bench.runner.lands_badly = True
    bench.step()
    assert bench.events[-1].failed == (attempt,)
    bench.runner.lands_badly = False
    while bench.step():
        pass
    assert bench.tokens() == []
    assert bench.blocks.num_available == bench.blocks.num_blocks


def test_a_lost_device_is_no_failure_of_a_step() -> None:
    """The engine ends with it, and with the engine the process."""
    bench = Bench()
    bench.join("a")
    bench.runner.loses_device = True
    with pytest.raises(DeviceLost):
        bench.step()
