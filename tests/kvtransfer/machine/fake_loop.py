"""An event loop whose time is the test's."""

import asyncio


class FakeLoop(asyncio.SelectorEventLoop):
    """Stands still until it is told to settle; timers run when their time has been reached."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def time(self) -> float:
        return self.now

    def settle(self) -> None:
        """Runs whatever can run now, and what follows from it."""
        while True:
            self.call_soon(self.stop)
            self.run_forever()
            if not self._ready:  # type: ignore[attr-defined]
                return

    def advance(self, seconds: float) -> None:
        """Lets time pass, timer by timer."""
        end = self.now + seconds
        while True:
            self.settle()
            due = [timer.when() for timer in self._timers() if timer.when() <= end]
            if not due:
                break
            self.now = max(self.now, min(due))
        self.now = end
        self.settle()

    @property
    def has_timers(self) -> bool:
        """Whether time alone can change anything."""
        return bool(self._timers())

    def _timers(self) -> list[asyncio.TimerHandle]:
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        return [timer for timer in timers if not timer.cancelled()]
