"""Gives a worker up whose engine does not come back from a step (protocol 5.2)."""

import asyncio
import logging
import time
from collections.abc import Callable

from engine.loop import EngineLoop

log = logging.getLogger(__name__)

CHECK_SECONDS = 0.5
# A step may take this many times what the warm-up took: slow is not stuck.
WARM_UPS = 10.0


class EngineStuck(Exception):
    """A step, or what was posted to run before it, takes longer than it can."""


class Watchdog:
    """Looks at the engine thread from the event loop, while it is busy; sleeping is no fault."""

    def __init__(self, engine: EngineLoop, on_stuck: Callable[[BaseException], None]) -> None:
        self._engine = engine
        self._on_stuck = on_stuck
        self._turn: int | None = None
        self._seconds = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self, limit: float) -> None:
        """From now on a turn of the engine may take ``limit`` seconds."""
        self._task = asyncio.create_task(self._run(limit))

    def stop(self) -> None:
        """Looks no more. Legal before the start."""
        if self._task is not None:
            self._task.cancel()

    def look(self, seconds: float, limit: float) -> bool:
        """Whether the engine is stuck, ``seconds`` after the last look."""
        turn = self._engine.turn
        if turn is None or turn != self._turn:
            self._turn, self._seconds = turn, 0.0
            return False
        self._seconds += seconds
        return self._seconds > limit

    async def _run(self, limit: float) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(CHECK_SECONDS)
            # A process that was stopped for a while has not waited: neither has its engine.
            if self.look(min(time.monotonic() - before, 2 * CHECK_SECONDS), limit):
                log.error("the engine is stuck, here:\n%s", self._engine.stack())
                self._on_stuck(EngineStuck(f"no step has ended for {limit:g} s"))
                return
