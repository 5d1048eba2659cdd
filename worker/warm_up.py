"""The last thing before a worker takes work."""

import asyncio
import gc
from concurrent.futures import Future

from engine.loop import EngineLoop
from engine.model_runner import ModelRunner


async def warm_up(engine: EngineLoop, runner: ModelRunner) -> float:
    """Runs every shape once, on the engine thread; raises what that raises.

    Returns the seconds that the longest step should take.
    """
    done: Future[float] = Future()

    def run() -> None:
        # From here on a shutdown cannot cancel it: an outcome nobody waits for is no failure.
        if not done.set_running_or_notify_cancel():
            return
        try:
            seconds = runner.warm_up()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(seconds)

    engine.post(run)
    seconds = await asyncio.wrap_future(done)
    # What is here now stays for good. Left to the collector, the half million objects of torch
    # would be looked through in the middle of a step, time and again.
    gc.freeze()
    return seconds
