"""The decode stepper over a device, a host and arrivals in virtual time."""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from chassis.metrics import Metrics
from decode_svc.attempt import Attempt
from decode_svc.events import DecodeEvents
from decode_svc.launch_time import LaunchTime
from decode_svc.scheduler import DecodeScheduler
from decode_svc.stepper import DecodeStepper
from engine.batch import DeviceTime, ModelRunnerOutput, Sample, SchedulerOutput
from engine.block_hash import hash_blocks
from engine.block_manager import BlockManager
from engine.request import Request
from engine.sampling_params import SamplingParams
from kvtransfer.handoff import FirstSample
from worker.load import Load, LoadBoard
from worker.metrics import EngineMetrics

FIRST = (FirstSample(0, 50),)


@dataclass(slots=True)
class World:
    """Seconds of what happens; a test changes them on the way. ``late``: by how much a rest ends
    too late, at most."""

    step: float = 0.020
    launch: float = 0.001
    late: float = 0.0002
    between_arrivals: float = 0.040
    pull: float = 0.060


@dataclass(slots=True)
class Told:
    """What a stretch of the simulation was like; ``waits`` are in steps."""

    began: float
    seconds: float = 0.0
    idle: float = 0.0
    rests: int = 0
    waits: list[float] = field(default_factory=list)


class Simulation:
    """Stands for the device, as a ModelRunner, and for the EngineLoop with what is posted to it."""

    def __init__(self, world: World, *, rests: bool = True) -> None:
        """Without ``rests`` every step is launched at once."""
        self.world = world
        self.metrics = Metrics()
        self._rests = rests
        self._random = random.Random(5)
        self._now = 100.0
        self._free_at = 0.0
        self._told = Told(self._now)
        self._names = count(1)
        self._posted: list[tuple[float, int, Callable[[], None]]] = []
        self._joined: dict[Request, float] = {}
        blocks = BlockManager(1 << 15)
        scheduler = DecodeScheduler(
            blocks, block_size=4, max_num_batched_tokens=64, max_num_seqs=64, max_arriving=64
        )
        self._stepper = DecodeStepper(
            scheduler,
            blocks,
            self,  # type: ignore[arg-type]  # computes nothing
            EngineMetrics(self.metrics, LoadBoard(Load(blocks.counts()))),
            lambda count: None,
            self._hear,
            LaunchTime(self.metrics),
            lambda: self._now,
        )
        for _ in range(8):
            self._add(max_tokens=1 << 20)
        self._post(world.between_arrivals, self._arrive)

    def run(self, num_steps: int) -> Told:
        """Of these steps alone."""
        self._told = Told(self._now)
        steps = 0
        while steps < num_steps:
            while self._posted and self._posted[0][0] <= self._now:
                heapq.heappop(self._posted)[2]()
            rest = self._stepper.rest() if self._rests else 0.0
            if rest > 0:
                self._told.rests += 1
                end = self._now + rest + self._random.uniform(0.0, self.world.late)
                self._now = min([end, *(at for at, *_ in self._posted[:1])])
            elif self._stepper.step():
                steps += 1
            else:
                self._now = self._posted[0][0]
        self._told.seconds = self._now - self._told.began
        return self._told

    # The device.

    def launch(self, output: SchedulerOutput) -> Callable[[], ModelRunnerOutput]:
        self._now += self.world.launch * self._random.uniform(0.6, 1.0)
        began, free_at = max(self._now, self._free_at), self._free_at or self._now
        computing = self.world.step * self._random.uniform(0.97, 1.03)
        self._free_at = began + computing
        self._told.idle += began - free_at
        for request in {part.request for part in output.scheduled} & self._joined.keys():
            self._told.waits.append((began - self._joined.pop(request)) / computing)
        samples = tuple((Sample(0, 60),) for _ in output.scheduled)
        return lambda: self._land(
            began + computing,
            ModelRunnerOutput(samples, DeviceTime(computing, began - free_at)),
        )

    def _land(self, at: float, result: ModelRunnerOutput) -> ModelRunnerOutput:
        self._now = max(self._now, at) + self._random.uniform(0.0, 0.0001)
        return result

    def runs_ahead(self, output: SchedulerOutput) -> bool:
        return True

    def copy_blocks(self, copies: object) -> None:
        pass

    # Others.

    def _post(self, seconds: float, function: Callable[[], None]) -> None:
        heapq.heappush(self._posted, (self._now + seconds, next(self._names), function))

    def _arrive(self) -> None:
        self._add(max_tokens=20)
        self._post(self._random.expovariate(1 / self.world.between_arrivals), self._arrive)

    def _add(self, max_tokens: int) -> None:
        tokens = [next(self._names)] * 6
        self._stepper.add(
            Attempt(
                attempt_id=tokens[0].to_bytes(16, "big"),
                session=1,
                handle=tokens[0],
                token_ids=tokens,
                num_prompt_tokens=6,
                params=SamplingParams(max_tokens=max_tokens),
                choices=(0,),
                cache_salt=b"",
                block_hashes=hash_blocks(tokens, 4),
            )
        )

    def _hear(self, events: DecodeEvents) -> None:
        for grant in events.grants:
            seconds = self._random.uniform(0.5, 1.5) * self.world.pull
            self._post(seconds, partial(self._join, grant.attempt, self._now + seconds))

    def _join(self, attempt: Attempt, at: float) -> None:
        self._stepper.join(attempt, FIRST)
        self._stepper.release(attempt)
        self._joined[attempt.requests[0]] = at
