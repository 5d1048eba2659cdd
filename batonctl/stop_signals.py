"""Ctrl-C and its relatives, for commands that have something to wind up."""

import asyncio
import signal
from collections.abc import Awaitable
from types import TracebackType
from typing import Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Counts SIGINT, SIGTERM and SIGHUP while the `with` block runs; create it on the event loop.

    The first asks to stop in order, the second to stop at once.
    """

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        (self.second if self.first.is_set() else self.first).set()

    async def interrupts(self, work: Awaitable[None]) -> bool:
        """Runs `work` to its end (False), or cancels it at the first signal (True)."""
        working = asyncio.ensure_future(work)
        stopped = asyncio.create_task(self.first.wait())
        try:
            await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
        if working.done():
            working.result()
            return False
        working.cancel()
        await asyncio.wait({working})
        return True
