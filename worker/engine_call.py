"""Runs something on the engine thread and waits for it on the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future

from engine.loop import EngineLoop


async def call_on_engine(engine: EngineLoop, function: Callable[[], None]) -> None:
    """Returns when ``function`` has, or raises what it raised."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            function()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    engine.post(run)
    await asyncio.wrap_future(done)
