"""What leaves the decode engine, and when. The runner is scripted; all else is real."""

from collections.abc import Callable, Sequence
from functools import partial

import pytest

from chassis.metrics import Metrics
from decode_svc.attempt import Attempt
from decode_svc.scheduler import DecodeScheduler
from decode_svc.stepper import DecodeEvents, DecodeStepper
from engine.batch import ModelRunnerOutput, Sample, SchedulerOutput
from engine.block_hash import hash_blocks
from engine.block_manager import BlockManager
from engine.errors import DeviceLost
from engine.sampling_params import SamplingParams
from kvtransfer.handoff import FirstSample
from worker.load import Load, LoadBoard
from worker.metrics import EngineMetrics

BLOCK_SIZE = 4
FIRST = (FirstSample(0, 50),)


class ScriptedRunner:
    """Draws 60, 61, ... one a step; fails the steps that a test names."""

    def __init__(self) -> None:
        self.ahead = False
        self.fails = False
        self.lands_badly = False
        self.loses_device = False
        self.copy_fails = False
        self._next = 60

    def launch(self, output: SchedulerOutput) -> Callable[[], ModelRunnerOutput]:
        if self.fails:
            raise RuntimeError("the kernel is broken")
        token_id, self._next = self._next, self._next + 1
        parts = output.scheduled
        result = ModelRunnerOutput(
            tuple((Sample(part.request.choices[0], token_id),) for part in parts)
        )
        return partial(self._land, result)

    def _land(self, result: ModelRunnerOutput) -> ModelRunnerOutput:
        if self.loses_device:
            raise DeviceLost("an illegal memory access")
        if self.lands_badly:
            raise RuntimeError("the kernel has failed")
        return result

    def runs_ahead(self, output: SchedulerOutput) -> bool:
        return self.ahead

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        if self.copy_fails:
            raise RuntimeError("the kernel is broken")


class Bench:
    """A stepper, what it delivered, and attempts by letter on sessions by number."""

    def __init__(self) -> None:
        self.blocks = BlockManager(32)
        self.runner = ScriptedRunner()
        self.events: list[DecodeEvents] = []
        scheduler = DecodeScheduler(
            self.blocks,
            block_size=BLOCK_SIZE,
            max_num_batched_tokens=16,
            max_num_seqs=8,
            max_arriving=8,
        )
        board = LoadBoard(Load(self.blocks.counts()))
        self.stepper = DecodeStepper(
            scheduler,
            self.blocks,
            self.runner,  # type: ignore[arg-type]  # computes nothing
            EngineMetrics(Metrics(), board),
            lambda count: None,
            self.events.append,
        )

    def join(
        self,
        name: str,
        session: int = 1,
        max_tokens: int = 100,
        first: tuple[FirstSample, ...] = FIRST,
    ) -> Attempt:
        tokens = [ord(name)] * 6
        attempt = Attempt(
            attempt_id=name.encode() * 16,
            session=session,
            handle=ord(name),
            token_ids=tokens,
            num_prompt_tokens=6,
            params=SamplingParams(max_tokens=max_tokens),
            choices=tuple(sample.choice for sample in first),
            cache_salt=b"",
            block_hashes=hash_blocks(tokens, BLOCK_SIZE),
        )
        self.stepper.add(attempt)
        self.stepper.step()
        self.stepper.join(attempt, first)
        return attempt

    def step(self) -> bool:
        computed = self.stepper.step()
        self.blocks.check()
        return computed

    def tokens(self, session: int = 1) -> list[int]:
        """What has left for a session so far."""
        steps = [each.outputs[session] for each in self.events if session in each.outputs]
        return [token_id for step in steps for token_id in step.token_ids]

    @property
    def finished(self) -> list[Attempt]:
        return [attempt for events in self.events for attempt in events.finished]


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
