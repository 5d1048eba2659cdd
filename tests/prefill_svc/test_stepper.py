"""What the prefill engine tells the event loop. The runner is scripted; all else is real."""

from chassis.metrics import Metrics
from engine.batch import ModelRunnerOutput, Sample, SchedulerOutput
from engine.block_hash import hash_blocks
from engine.block_manager import BlockManager
from engine.request import Request
from engine.sampling_params import SamplingParams
from prefill_svc.prompt import Prompt
from prefill_svc.scheduler import PrefillScheduler
from prefill_svc.stepper import PrefillEvents, PrefillStepper
from worker.load import Load, LoadBoard
from worker.metrics import EngineMetrics

BLOCK_SIZE = 4


class ScriptedRunner:
    """Draws 60 wherever a prompt ends; fails while told to."""

    def __init__(self) -> None:
        self.fails = False

    def run(self, output: SchedulerOutput) -> ModelRunnerOutput:
        if self.fails:
            raise RuntimeError("the kernel is broken")
        return ModelRunnerOutput(
            tuple((Sample(0, 60),) if part.samples else () for part in output.scheduled)
        )


class Bench:
    """A stepper and what it delivered."""

    def __init__(self) -> None:
        self.blocks = BlockManager(32)
        self.runner = ScriptedRunner()
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
        )

    def add(self, name: str, num_tokens: int) -> Prompt:
        tokens = [ord(name)] * num_tokens
        attempt_id = name.encode() * 16
        request = Request(
            attempt_id.hex(),
            tokens,
            num_tokens,
            SamplingParams(),
            block_hashes=hash_blocks(tokens, BLOCK_SIZE),
        )
        prompt = Prompt(attempt_id, request, hand_off=True)
        self.stepper.scheduler.add(prompt)
        return prompt


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
    while bench.stepper.step():
        pass
    progress = [each for events in bench.events for each in events.progress]
    assert [each.num_new_tokens for each in progress] == [8, 2]
    assert [each.samples for each in progress] == [(), (Sample(0, 60),)]
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
