"""Gives a worker up whose engine, or whose transfers, do not come back (protocol 5.2)."""

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Protocol

log = logging.getLogger(__name__)

CHECK_SECONDS = 0.5
# A turn may take so many times what the longest step should: slow is not stuck.
LONGEST_STEPS = 10.0


class ThreadStuck(Exception):
    """A step of the engine or a round of the transfers takes longer than it can."""


class Watched(Protocol):
    """A thread that works in turns."""

    @property
    def thread(self) -> threading.Thread:
        """Its name and stack go into the log."""

    @property
    def turn(self) -> int | None:
        """A number for the turn under way, another one for the next; None while it sleeps."""


class Watchdog:
    """Looks at threads from the event loop, while they are busy; sleeping is no fault."""

    def __init__(
        self, threads: Sequence[Watched], on_stuck: Callable[[BaseException], None]
    ) -> None:
        self._threads = threads
        self._on_stuck = on_stuck
        self._turns: list[int | None] = [None] * len(threads)
        self._seconds = [0.0] * len(threads)
        self._task: asyncio.Task[None] | None = None

    def start(self, limit: float) -> None:
        """From now on a turn may take ``limit`` seconds."""
        self._task = asyncio.create_task(self._run(limit))

    def stop(self) -> None:
        """Looks no more. Legal before the start."""
        if self._task is not None:
            self._task.cancel()

    def look(self, seconds: float, limit: float) -> threading.Thread | None:
        """The thread that is stuck, ``seconds`` after the last look."""
        for number, watched in enumerate(self._threads):
            turn = watched.turn
            if turn is None or turn != self._turns[number]:
                self._turns[number], self._seconds[number] = turn, 0.0
                continue
            self._seconds[number] += seconds
            if self._seconds[number] > limit:
                return watched.thread
        return None

    async def _run(self, limit: float) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(CHECK_SECONDS)
            # A process that was stopped for a while has not waited: neither have its threads.
            stuck = self.look(min(time.monotonic() - before, 2 * CHECK_SECONDS), limit)
            if stuck is not None:
                log.error("the %s thread is stuck, here:\n%s", stuck.name, _stack(stuck))
                self._on_stuck(ThreadStuck(f"the {stuck.name} thread is stuck for {limit:g} s"))
                return


def _stack(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)) if frame is not None else "it has ended"
