"""Runs something on the engine thread and waits for it on the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future

from engine.loop import EngineLoop


async def call_on_engine(engine: EngineLoop, function: Callable[[], None]) -> None:
    """Returns when ``function`` has, or raises what it raised.

    If the caller is cancelled, a call that has not begun does not happen.
    """
    done: Future[None] = Future()

    def run() -> None:
        # From here on a cancelled caller cannot cancel the future under us.
        if not done.set_running_or_notify_cancel():
            return
        try:
            function()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    engine.post(run)
    await asyncio.wrap_future(done)
