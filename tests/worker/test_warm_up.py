"""A worker that is told to stop while it warms up stops, and has not failed."""

import asyncio
import contextlib
import threading

from engine.loop import EngineLoop
from worker.warm_up import warm_up


class Stepper:
    """Never has anything to do."""

    def step(self) -> bool:
        return False


class SlowRunner:
    """Warms up until it is let go."""

    def __init__(self) -> None:
        self.started, self.may_end = threading.Event(), threading.Event()

    def warm_up(self) -> float:
        self.started.set()
        self.may_end.wait(10.0)
        return 1.0


async def test_a_warm_up_that_is_cancelled_is_no_failure() -> None:
    failures: list[BaseException] = []
    engine, runner = EngineLoop(Stepper(), on_failure=failures.append), SlowRunner()
    engine.start()
    task = asyncio.create_task(warm_up(engine, runner))  # type: ignore[arg-type]
    await asyncio.to_thread(runner.started.wait, 10.0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    runner.may_end.set()
    await asyncio.to_thread(engine.stop)
    assert task.cancelled()
    assert failures == []
