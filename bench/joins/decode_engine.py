"""A decode worker's engine, and hand-offs that arrive at random times."""

import asyncio
import itertools
import random
import time
from dataclasses import dataclass, field
from functools import partial

from bench.joins.sleeping_device import SleepingDevice
from chassis.metrics import Metrics
from decode_svc.attempt import Attempt
from decode_svc.events import DecodeEvents
from decode_svc.launch_time import LaunchTime, TimedStep
from decode_svc.scheduler import DecodeScheduler
from decode_svc.stepper import DecodeStepper
from engine.batch import DeviceTime
from engine.block_hash import hash_blocks
from engine.block_manager import BlockManager
from engine.gpu.model_runner import GpuModelRunner
from engine.loop import EngineLoop
from engine.sampling_params import SamplingParams
from kvtransfer.handoff import FirstSample
from worker.load import Load, LoadBoard
from worker.metrics import EngineMetrics

NUM_RUNNING, CONTEXT = 64, 900
# Hand-offs a second, and tokens of their answers.
RATE, NUM_TOKENS = 24.0, 60
BLOCK_SIZE, MAX_STEP_TOKENS, MAX_SEQUENCES = 16, 2048, 96
FIRST = (FirstSample(0, 50),)


@dataclass(frozen=True, slots=True)
class Joins:
    """What a variant showed.

    ``waits`` are those of the hand-offs, from the last byte to the start of their first step, in
    their median steps, in order. The rest is of the steps while hand-offs came: how many they were,
    put off, and put off for too long; seconds from one to the next, and the share of these in which
    the device computed nothing, both by its own clock.
    """

    waits: tuple[float, ...]
    num_steps: int
    num_put_off: int
    num_device_waits: int
    step_seconds: float
    idle: float

    def percentile(self, percent: int) -> float:
        """Of ``waits``."""
        return self.waits[len(self.waits) * percent // 100]


@dataclass(slots=True, eq=False)
class HandOff:
    attempt: Attempt
    granted: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class WatchedLaunchTime(LaunchTime):
    """Keeps what it hears of steps. The engine thread adds to ``steps``."""

    def __init__(self, metrics: Metrics) -> None:
        super().__init__(metrics)
        self.steps: list[tuple[TimedStep, DeviceTime]] = []

    def landed(self, step: TimedStep, device_time: DeviceTime | None, now: float) -> None:
        super().landed(step, device_time, now)
        assert device_time is not None, "every step here is a captured one"
        self.steps.append((step, device_time))


class DecodeEngine:
    """A decode worker's engine on its thread, driven from the event loop as a worker drives it."""

    def __init__(
        self, runner: GpuModelRunner | SleepingDevice, num_blocks: int, *, late: bool
    ) -> None:
        self._metrics = Metrics()
        self._launch_time = WatchedLaunchTime(self._metrics)
        # As after hours of service: blocks of a sequence lie anywhere.
        blocks = BlockManager(num_blocks, free_list_seed=1)
        scheduler = DecodeScheduler(
            blocks,
            block_size=BLOCK_SIZE,
            max_num_batched_tokens=MAX_STEP_TOKENS,
            max_num_seqs=MAX_SEQUENCES,
            max_arriving=64,
        )
        self._loop = asyncio.get_running_loop()
        self._stepper = DecodeStepper(
            scheduler,
            blocks,
            runner,  # type: ignore[arg-type]  # what sleeps computes nothing
            EngineMetrics(self._metrics, LoadBoard(Load(blocks.counts()))),
            lambda count: None,
            self._deliver,
            self._launch_time,
        )
        self._engine = EngineLoop(
            self._stepper,
            on_failure=self._on_failure,
            rest=self._stepper.rest if late else _no_rest,
        )
        self._hand_offs: dict[int, HandOff] = {}
        self._handles = itertools.count(1)
        self._task = asyncio.current_task()
        self._error: BaseException | None = None

    async def measure(self, pull: float | None, seconds: float) -> Joins:
        """Hand-offs whose KV takes ``pull`` seconds arrive for ``seconds``, while others run.

        Called once, by the task that made the engine. Raises what ended the engine.
        """
        self._engine.start()
        try:
            await self._fill()
            return await self._watch(pull, seconds)
        except asyncio.CancelledError:
            if self._error is not None:
                raise self._error from None
            raise
        finally:
            self._engine.stop()

    async def _fill(self) -> None:
        """Until the sequences of the whole measurement run, and for one hand-off more."""
        running = [self._new_hand_off(max_tokens=1 << 20) for _ in range(NUM_RUNNING)]
        for each in running:
            await each.granted.wait()
        for each in running:
            self._join(each)
        await self._hand_off(at=0.0, pull=0.0)

    async def _watch(self, pull: float | None, seconds: float) -> Joins:
        first, waits_before = len(self._launch_time.steps), self._num_device_waits()
        async with asyncio.TaskGroup() as group:
            hand_offs = [
                group.create_task(self._hand_off(*each)) for each in draw_hand_offs(pull, seconds)
            ]
            await asyncio.sleep(seconds)
            # Steps after that have ever fewer sequences.
            steps = self._launch_time.steps[first:]
            num_device_waits = self._num_device_waits() - waits_before
        idle = sum(device.idle for _, device in steps)
        total = idle + sum(device.computing for _, device in steps)
        return Joins(
            waits=tuple(sorted(each.result() for each in hand_offs)),
            num_steps=len(steps),
            num_put_off=sum(step.put_off for step, _ in steps),
            num_device_waits=num_device_waits,
            step_seconds=total / len(steps),
            idle=idle / total,
        )

    async def _hand_off(self, at: float, pull: float) -> float:
        """How long it waited for its first step, in its median steps."""
        await asyncio.sleep(at)
        hand_off = self._new_hand_off(NUM_TOKENS)
        await hand_off.granted.wait()
        await asyncio.sleep(pull)
        arrived = time.monotonic()
        self._join(hand_off)
        await hand_off.ended.wait()
        pace = hand_off.attempt.pace
        return (pace.began_at - arrived) / pace.percentiles()["p50"]

    def _new_hand_off(self, max_tokens: int) -> HandOff:
        handle = next(self._handles)
        # No two begin alike, so that none finds another's blocks.
        token_ids = [handle] * CONTEXT
        attempt = Attempt(
            attempt_id=handle.to_bytes(16, "big"),
            session=1,
            handle=handle,
            token_ids=token_ids,
            num_prompt_tokens=CONTEXT,
            params=SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True),
            choices=(0,),
            cache_salt=b"",
            block_hashes=hash_blocks(token_ids, BLOCK_SIZE),
        )
        hand_off = self._hand_offs[handle] = HandOff(attempt)
        self._engine.post(partial(self._stepper.add, attempt))
        return hand_off

    def _join(self, hand_off: HandOff) -> None:
        self._engine.post(partial(self._stepper.join, hand_off.attempt, FIRST))
        self._engine.post(partial(self._stepper.release, hand_off.attempt))

    def _deliver(self, events: DecodeEvents) -> None:
        self._loop.call_soon_threadsafe(self._hear, events)

    def _on_failure(self, error: BaseException) -> None:
        self._loop.call_soon_threadsafe(self._fail, error)

    def _hear(self, events: DecodeEvents) -> None:
        for step in events.outputs.values():
            # As for the stream to a gateway.
            step.SerializeToString()
        for grant in events.grants:
            self._hand_offs[grant.attempt.handle].granted.set()
        for attempt in events.finished:
            self._hand_offs.pop(attempt.handle).ended.set()
        if lost := (*events.failed, *events.preempted):
            self._fail(RuntimeError(f"{len(lost)} sequences could not be computed"))

    def _fail(self, error: BaseException) -> None:
        assert self._task is not None, "made by a task"
        self._error = self._error or error
        self._task.cancel()

    def _num_device_waits(self) -> int:
        return int(self._metrics.registry.get_sample_value("baton_device_waits_total") or 0)


def _no_rest() -> float:
    return 0.0


def draw_hand_offs(pull: float | None, seconds: float) -> list[tuple[float, float]]:
    """When each arrives, and how long its KV takes, within half of ``pull`` more or less: the same
    whenever asked. None: there are none."""
    if pull is None:
        return []
    generator = random.Random(3)
    hand_offs: list[tuple[float, float]] = []
    at = generator.expovariate(RATE)
    while at < seconds:
        hand_offs.append((at, pull * generator.uniform(0.5, 1.5)))
        at += generator.expovariate(RATE)
    return hand_offs


def measure(
    runner: GpuModelRunner | SleepingDevice,
    num_blocks: int,
    pull: float | None,
    seconds: float,
    *,
    late: bool,
) -> Joins:
    """Of a fresh engine over blocks that nobody else uses."""

    async def run() -> Joins:
        return await DecodeEngine(runner, num_blocks, late=late).measure(pull, seconds)

    return asyncio.run(run())
