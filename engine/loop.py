"""The thread that owns an engine."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol


class Steppable(Protocol):
    """What an EngineLoop drives: a scheduler with its model runner."""

    def step(self) -> bool:
        """Computes one step; False where there was nothing to compute."""


class EngineLoop:
    """Steps while there is work and sleeps otherwise; everything it drives lives on its thread.

    Before each step it rests for the seconds that ``rest`` gives, if any; when something is posted
    meanwhile, that runs, and ``rest`` is asked again.

    An exception out of a step or a posted callable ends the thread, and ``on_failure`` hears of it
    there. Callables posted to a loop that has ended are dropped.
    """

    def __init__(
        self,
        stepper: Steppable,
        *,
        on_failure: Callable[[BaseException], None],
        rest: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._stepper = stepper
        self._rest = rest
        self._on_failure = on_failure
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._steps = 0
        self._turns = 0
        self._asleep = True
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def steps(self) -> int:
        """Steps computed so far."""
        return self._steps

    @property
    def turn(self) -> int | None:
        """Number of the step, rest or posted callable under way; None while the thread sleeps.

        A number that stands still is a long step, or an engine that is stuck.
        """
        return None if self._asleep else self._turns

    @property
    def thread(self) -> threading.Thread:
        """For who watches it."""
        return self._thread

    def start(self) -> None:
        self._thread.start()

    def post(self, function: Callable[[], None]) -> None:
        """Runs ``function`` on the engine thread before the next step. From any thread."""
        self._inbox.append(function)
        self._wake.set()

    def stop(self) -> None:
        """Waits for the call under way, runs what was posted, and ends the thread. A step that was
        launched may still run on a device."""
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._asleep = False
                # Cleared before looking: what is posted from here on wakes the wait below.
                self._wake.clear()
                self._drain_inbox()
                if self._stopping:
                    break
                self._turns += 1
                if (seconds := self._rest()) > 0:
                    self._wake.wait(seconds)
                    continue
                if self._stepper.step():
                    self._steps += 1
                else:
                    self._asleep = True
                    self._wake.wait()
            self._drain_inbox()
        except BaseException as error:
            self._on_failure(error)

    def _drain_inbox(self) -> None:
        while self._inbox:
            self._turns += 1
            self._inbox.popleft()()
