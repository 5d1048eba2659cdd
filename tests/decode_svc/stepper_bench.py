"""A decode stepper whose runner is scripted; all else is real."""

import time
from collections.abc import Callable, Sequence
from functools import partial

from chassis.metrics import Metrics
from decode_svc.attempt import Attempt
from decode_svc.events import DecodeEvents
from decode_svc.launch_time import LaunchTime
from decode_svc.scheduler import DecodeScheduler
from decode_svc.stepper import DecodeStepper
from engine.batch import DeviceTime, ModelRunnerOutput, Sample, SchedulerOutput
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
        self.device_time: DeviceTime | None = None
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
            tuple((Sample(part.request.choices[0], token_id),) for part in parts),
            self.device_time,
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

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
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
            LaunchTime(Metrics()),
            clock,
        )

    def join(
        self,
        name: str,
        session: int = 1,
        max_tokens: int = 100,
        first: tuple[FirstSample, ...] = FIRST,
    ) -> Attempt:
        attempt = self.add(name, session, max_tokens, first)
        self.stepper.step()
        self.stepper.join(attempt, first)
        return attempt

    def add(
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
