"""What leaves the decode engine, and when."""

from decode_svc.attempt import Attempt
from engine.batch import DeviceTime
from engine.block_hash import hash_blocks
from engine.sampling_params import SamplingParams
from kvtransfer.handoff import FirstSample
from tests.decode_svc.stepper_bench import BLOCK_SIZE, FIRST, Bench


def test_no_token_leaves_before_the_release_and_then_all_do_in_order() -> None:
    bench = Bench()
    attempt = bench.join("a")
    for _ in range(3):
        bench.step()
    assert bench.tokens() == []
    bench.stepper.release(attempt)
    bench.step()
    assert bench.tokens() == [60, 61, 62, 63]
    bench.step()
    assert bench.tokens()[-1] == 64


def test_what_a_release_sets_free_leaves_before_the_next_computation() -> None:
    bench = Bench()
    attempt = bench.join("a")
    bench.step()
    bench.stepper.release(attempt)
    bench.runner.fails = True
    bench.step()
    assert bench.tokens() == [60]


def test_an_attempt_that_ends_before_its_release_is_finished_by_it() -> None:
    bench = Bench()
    attempt = bench.join("a", max_tokens=3)
    bench.step()
    bench.step()
    assert (bench.tokens(), bench.finished) == ([], [])
    bench.stepper.release(attempt)
    assert bench.step() is False
    assert (bench.tokens(), bench.finished) == ([60, 61], [attempt])
    assert bench.blocks.num_available == bench.blocks.num_blocks


def test_an_attempt_removed_before_its_release_says_nothing_ever() -> None:
    bench = Bench()
    attempt = bench.join("a")
    bench.step()
    bench.stepper.remove(attempt, ())
    bench.stepper.release(attempt)
    bench.step()
    assert (bench.tokens(), bench.finished) == ([], [])


def test_sessions_get_one_message_a_step_with_their_own_rows() -> None:
    bench = Bench()
    for name, session in (("a", 1), ("b", 2), ("c", 1)):
        bench.stepper.release(bench.join(name, session))
    bench.events.clear()
    bench.step()
    (outputs,) = [events.outputs for events in bench.events if events.outputs]
    assert {session: list(step.handles) for session, step in outputs.items()} == {
        1: [ord("a"), ord("c")],
        2: [ord("b")],
    }


def test_the_last_token_and_the_end_travel_together() -> None:
    bench = Bench()
    attempt = bench.join("a", max_tokens=2)
    bench.stepper.release(attempt)
    bench.step()
    last = bench.events[-1]
    assert last.finished == (attempt,)
    assert [finish.row for finish in last.outputs[1].finishes] == [0]


def test_a_step_that_fails_ends_its_attempts_and_the_engine_goes_on() -> None:
    bench = Bench()
    attempt = bench.join("a")
    bench.stepper.release(attempt)
    bench.runner.fails = True
    bench.step()
    assert bench.events[-1].failed == (attempt,)
    assert bench.blocks.num_available == bench.blocks.num_blocks
    bench.runner.fails = False
    bench.stepper.release(bench.join("b"))
    bench.step()
    assert bench.tokens() == [60]


def test_what_runs_is_told_before_the_step_that_may_never_end() -> None:
    """Otherwise nobody would see that this engine has work (protocol 5.2)."""
    bench = Bench()
    bench.join("a")
    bench.runner.fails = True
    bench.step()
    before, after = bench.events[-2:]
    assert (before.load.running, before.failed) == (1, ())
    assert after.failed


def test_a_block_that_cannot_be_copied_ends_its_attempt_and_no_other() -> None:
    bench = Bench()
    bench.stepper.release(bench.join("a"))
    bench.runner.copy_fails = True
    broken = bench.join("b", first=(FirstSample(0, 50), FirstSample(1, 51)))
    assert bench.events[-1].failed == (broken,)
    bench.stepper.release(broken)
    bench.events.clear()
    bench.step()
    assert [list(events.outputs[1].handles) for events in bench.events] == [[ord("a")]]
    assert bench.blocks.counts().used == 2


def test_an_idle_engine_tells_only_what_changed() -> None:
    bench = Bench()
    bench.step()
    assert len(bench.events) == 1
    bench.step()
    assert len(bench.events) == 1


TWO = (FirstSample(0, 50), FirstSample(1, 51))


def test_a_dropped_choice_is_computed_no_further_and_the_other_one_is() -> None:
    bench = Bench()
    attempt = bench.join("a", max_tokens=3, first=TWO)
    bench.stepper.release(attempt)
    bench.step()
    bench.stepper.drop(attempt, [1])
    bench.stepper.drop(attempt, [1])
    bench.step()
    last = bench.events[-1].outputs[1]
    assert (list(last.choices), len(last.finishes)) == ([0], 1)
    assert bench.finished == [attempt]
    assert bench.blocks.num_available == bench.blocks.num_blocks


def test_an_attempt_ends_with_the_last_choice_that_is_dropped() -> None:
    bench = Bench()
    attempt = bench.join("a", first=TWO)
    bench.stepper.release(attempt)
    bench.step()
    for choice in (0, 1):
        bench.stepper.drop(attempt, [choice])
    assert not bench.step()
    assert bench.finished == [attempt]
    assert bench.blocks.num_available == bench.blocks.num_blocks


def test_a_choice_dropped_before_the_release_gives_its_blocks_back_at_the_release() -> None:
    bench = Bench()
    attempt = bench.join("a", first=TWO)
    bench.step()
    bench.stepper.drop(attempt, [0, 1])
    assert not bench.step()
    bench.stepper.release(attempt)
    bench.step()
    assert bench.finished == [attempt]
    assert bench.blocks.num_available == bench.blocks.num_blocks


def test_a_choice_dropped_before_its_prompt_has_arrived_never_runs() -> None:
    bench = Bench()
    attempt = Attempt(
        attempt_id=b"a" * 16,
        session=1,
        handle=1,
        token_ids=[9] * 6,
        num_prompt_tokens=6,
        params=SamplingParams(max_tokens=100),
        choices=(0, 1),
        cache_salt=b"",
        block_hashes=hash_blocks([9] * 6, BLOCK_SIZE),
    )
    bench.stepper.add(attempt)
    bench.stepper.drop(attempt, [0])
    bench.stepper.step()
    bench.stepper.join(attempt, TWO)
    bench.stepper.release(attempt)
    bench.step()
    assert list(bench.events[-1].outputs[1].choices) == [1]


def test_a_step_is_put_off_only_while_the_device_computes_and_a_prompt_may_arrive() -> None:
    now = 100.0
    bench = Bench(clock=lambda: now)
    bench.runner.ahead, bench.runner.device_time = True, DeviceTime(0.010, 0.0)
    bench.join("a")
    for _ in range(3):
        bench.step()
    assert bench.stepper.rest() <= 0
    late = bench.add("b")
    bench.step()
    assert 0 < bench.stepper.rest() < 0.010
    now += 0.010
    assert bench.stepper.rest() <= 0
    bench.step()
    assert bench.stepper.rest() > 0
    bench.stepper.join(late, FIRST)
    assert bench.stepper.rest() <= 0
    bench.add("c")
    bench.runner.ahead = False
    bench.step()
    assert bench.stepper.rest() <= 0


def test_a_step_is_not_put_off_where_nobody_knows_what_one_takes_the_device() -> None:
    bench = Bench()
    bench.runner.ahead = True
    bench.join("a")
    bench.step()
    bench.add("b")
    bench.step()
    bench.step()
    assert bench.stepper.rest() <= 0
