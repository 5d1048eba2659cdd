"""What the prefill engine tells the event loop. The runner is scripted; all else is real."""

from collections.abc import Callable

import pytest

from chassis.metrics import Metrics
from engine.batch import ModelRunnerOutput, Sample, SchedulerOutput
from engine.block_hash import hash_blocks
from engine.block_manager import BlockManager
from engine.request import Request
from engine.sampling_params import SamplingParams
from prefill_svc.prompt import Progress, Prompt
from prefill_svc.scheduler import PrefillScheduler
from prefill_svc.stepper import PrefillEvents, PrefillStepper
from worker.load import Load, LoadBoard
from worker.metrics import EngineMetrics

BLOCK_SIZE = 4
PLAIN = SamplingParams()


class ScriptedRunner:
    """Draws 60 wherever a prompt ends; fails while told to. ``log`` says what was asked of it."""

    def __init__(self, *, computes_apart: bool = False) -> None:
        self._computes_apart = computes_apart
        self.fails = False
        self.fails_late = False
        self.log: list[str] = []

    def runs_apart(self, output: SchedulerOutput) -> bool:
        return self._computes_apart and not any(
            part.request.params.presence_penalty for part in output.scheduled
        )

    def launch(self, output: SchedulerOutput) -> Callable[[], ModelRunnerOutput]:
        if self.fails:
            raise RuntimeError("the kernel is broken")
        tokens = "+".join(str(part.num_new_tokens) for part in output.scheduled)
        self.log.append(f"launch {tokens}")
        draws = [part.samples for part in output.scheduled]

        def result() -> ModelRunnerOutput:
            self.log.append(f"take in {tokens}")
            if self.fails_late:
                raise RuntimeError("the kernel was broken")
            return ModelRunnerOutput(tuple((Sample(0, 60),) if each else () for each in draws))

        return result


class Bench:
    """A stepper and what it delivered."""

    def __init__(self, *, computes_apart: bool = False, goes_ahead: bool = True) -> None:
        self.blocks = BlockManager(32)
        self.runner = ScriptedRunner(computes_apart=computes_apart)
        self.events: list[PrefillEvents] = []
        scheduler = PrefillScheduler(
            self.blocks,
            block_size=BLOCK_SIZE,
            max_num_batched_tokens=8,
            max_num_seqs=8,
            revoke_after=1.0,
        )
        board = LoadBoard(Load(self.blocks.counts()))
        self.stepper = PrefillStepper(
            scheduler,
            self.blocks,
            self.runner,  # type: ignore[arg-type]  # computes nothing
            EngineMetrics(Metrics(), board),
            self.events.append,
            goes_ahead=goes_ahead,
        )

    def add(
        self, name: str, num_tokens: int, *, text: str = "", params: SamplingParams = PLAIN
    ) -> Prompt:
        """Its tokens are all the letter ``text``, or its name."""
        tokens = [ord(text or name)] * num_tokens
        attempt_id = name.encode() * 16
        request = Request(
            attempt_id.hex(),
            tokens,
            num_tokens,
            params,
            block_hashes=hash_blocks(tokens, BLOCK_SIZE),
        )
        prompt = Prompt(attempt_id, request, hand_off=True)
        self.stepper.scheduler.add(prompt)
        return prompt

    @property
    def progress(self) -> list[Progress]:
        return [each for events in self.events for each in events.progress]

    def run(self) -> None:
        while self.stepper.step():
            pass


def test_the_begin_of_a_prompt_is_told_before_its_first_chunk_is_computed() -> None:
    bench = Bench()
    prompt = bench.add("a", 10)
    bench.runner.fails = True
    bench.stepper.step()
    begin, end = bench.events
    assert [admission.prompt for admission in begin.admissions] == [prompt]
    assert end.failed == (prompt,)


def test_chunks_are_told_once_a_step_and_the_samples_with_the_last() -> None:
    bench = Bench()
    bench.add("a", 10)
    bench.run()
    assert [each.num_new_tokens for each in bench.progress] == [8, 2]
    assert [each.samples for each in bench.progress] == [(), (Sample(0, 60),)]
    assert [events.step for events in bench.events if events.progress] == [1, 2]


def test_a_step_that_fails_stops_its_prompts_and_the_engine_goes_on() -> None:
    bench = Bench()
    broken = bench.add("a", 6)
    bench.runner.fails = True
    bench.stepper.step()
    bench.runner.fails = False
    assert bench.stepper.step() is False
    bench.stepper.scheduler.remove(broken.attempt_id)
    bench.add("b", 6)
    assert bench.stepper.step() is True
    assert bench.events[-1].progress[0].samples == (Sample(0, 60),)


def test_the_load_counts_prompts_by_stage_and_tokens_to_come() -> None:
    bench = Bench()
    bench.add("a", 10)
    bench.add("b", 6)
    bench.stepper.step()
    load = bench.events[-1].load
    assert (load.waiting, load.running, load.handing_off) == (1, 1, 0)
    assert (load.pending_tokens, load.steps) == (8, 1)
    assert load.rate > 0


def test_a_full_step_is_launched_while_the_one_before_is_computed() -> None:
    bench = Bench(computes_apart=True)
    bench.add("a", 18)
    bench.run()
    assert bench.runner.log == [
        *("launch 8", "launch 8", "take in 8"),
        # The last one is not full: who comes during the second may join it.
        *("take in 8", "launch 2", "take in 2"),
    ]
    assert [each.chunk.first_token for each in bench.progress if each.chunk] == [0, 8]
    assert bench.progress[-1].samples == (Sample(0, 60),)


def test_a_prompt_that_comes_during_a_step_joins_the_next_one_that_is_not_full() -> None:
    bench = Bench(computes_apart=True)
    bench.add("a", 10)
    bench.stepper.step()
    bench.add("b", 4)
    bench.run()
    assert bench.runner.log == ["launch 8", "take in 8", "launch 2+4", "take in 2+4"]


def test_a_prompt_that_is_removed_while_its_step_is_under_way_is_told_of_no_more() -> None:
    bench = Bench(computes_apart=True)
    gone = bench.add("a", 16)
    bench.stepper.step()
    bench.stepper.scheduler.remove(gone.attempt_id)
    bench.add("b", 8)
    bench.run()
    assert [each.prompt.attempt_id for each in bench.progress] == [b"b" * 16]
    bench.blocks.check()
    assert bench.blocks.counts().used + bench.blocks.counts().leased == 2


@pytest.mark.parametrize("late", [False, True], ids=["launched", "computed"])
def test_a_step_that_fails_ahead_of_another_costs_its_own_prompts(late: bool) -> None:
    bench = Bench(computes_apart=True)
    broken, whole = bench.add("a", 16), bench.add("b", 8)
    bench.stepper.step()
    bench.runner.fails, bench.runner.fails_late = not late, late
    bench.stepper.step()
    bench.runner.fails = bench.runner.fails_late = False
    bench.run()
    assert [prompt for events in bench.events for prompt in events.failed] == [broken]
    assert [each.prompt for each in bench.progress if each.samples] == [whole]


def test_waiting_prompts_fill_no_step_that_is_launched_ahead() -> None:
    bench = Bench(computes_apart=True)
    bench.add("a", 8)
    bench.stepper.step()
    bench.add("x", 14)
    bench.run()
    assert bench.runner.log[:2] == ["launch 8", "take in 8"]


def test_a_prompt_that_waits_finds_what_the_step_before_it_computes() -> None:
    bench = Bench(computes_apart=True)
    bench.add("s", 12, text="p")
    later = bench.add("t", 17, text="p")
    bench.run()
    assert later.request.num_cached_tokens == 8


def test_a_step_that_keeps_the_host_is_not_launched_ahead() -> None:
    bench = Bench(computes_apart=True)
    bench.add("a", 16, params=SamplingParams(presence_penalty=1.0))
    bench.run()
    assert bench.runner.log == ["launch 8", "take in 8"] * 2


def test_nothing_is_launched_ahead_where_that_is_not_wanted() -> None:
    bench = Bench(computes_apart=True, goes_ahead=False)
    bench.add("a", 16)
    bench.run()
    assert bench.runner.log == ["launch 8", "take in 8"] * 2


def test_launched_tokens_are_pending_until_they_are_taken_in() -> None:
    bench = Bench(computes_apart=True)
    bench.add("a", 24)
    pending = []
    while bench.stepper.step():
        pending.append(bench.stepper.load().pending_tokens)
    assert pending == [24, 16, 8, 0]
