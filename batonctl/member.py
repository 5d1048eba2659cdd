"""One service of a running stack, through all its incarnations."""

import asyncio
import signal
import time
from collections.abc import Callable
from enum import StrEnum

from baton.v1 import worker_pb2
from batonctl.backoff import Backoff
from batonctl.child import Child
from batonctl.service_spec import ServiceSpec
from batonctl.stack_events import Died, LogLine, Recovered, StackEvent, Started

TAIL_SHOWN = 15


class MemberState(StrEnum):
    """Where a service is in its life."""

    STARTING = "starting"
    READY = "ready"
    # It was ready and says that it is not any more.
    UNREADY = "not ready"
    RESTARTING = "restarting"
    DRAINING = "draining"
    STOPPED = "stopped"


class Member:
    """Runs a service, and runs it again with back-off when it dies, until told to drain.

    A service that dies before it was ever ready is not started again: what it lacks is a right
    setting, not another try. It ends STOPPED with `failed_start` set.
    """

    def __init__(
        self, spec: ServiceSpec, emit: Callable[[StackEvent], None], changed: Callable[[], None]
    ) -> None:
        self.spec = spec
        self.state = MemberState.STOPPED
        self.restarts = 0
        # None while unknown.
        self.load: worker_pb2.WorkerLoad | None = None
        self.failed_start: Died | None = None
        self._emit = emit
        self._changed = changed
        self._backoff = Backoff()
        self._child: Child | None = None
        self._ready_at: float | None = None
        self._was_ready = False
        self._draining = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Process id of the current incarnation."""
        return self._child.pid if self._child else None

    def spawn(self) -> None:
        """Starts the process; needs no event loop."""
        self._child = Child(self.spec.command, self.spec.env)
        self._ready_at = None
        self._set_state(MemberState.STARTING)

    async def supervise(self) -> None:
        """Returns when the process has ended for good; `spawn` must have been called."""
        while self._child is not None:
            child = self._child
            code = await child.wait(self._on_line)
            # What it said of its load went with it.
            self._child = self.load = None
            if self._draining.is_set():
                break
            died = self._bury(child, code)
            if died.restart_delay is None:
                self.failed_start = died
                break
            self._set_state(MemberState.RESTARTING)
            if await self._drained_within(died.restart_delay):
                break
            self.restarts += 1
            self.spawn()
            self._emit(Started(self.spec.name))
        self._set_state(MemberState.STOPPED)

    def _bury(self, child: Child, code: int) -> Died:
        uptime = time.monotonic() - self._ready_at if self._ready_at is not None else 0.0
        delay = self._backoff.after_death(uptime) if self._was_ready else None
        died = Died(
            service=self.spec.name,
            cause=describe_exit(code),
            last_lines=tuple(child.tail(TAIL_SHOWN)),
            restart_delay=delay,
        )
        self._emit(died)
        return died

    async def _drained_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._draining.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def set_serving(self, serving: bool) -> None:
        """What the service's health says of its readiness."""
        if serving and self.state in (MemberState.STARTING, MemberState.UNREADY):
            self._ready_at = time.monotonic()
            if self._was_ready:
                self._emit(Recovered(self.spec.name))
            self._was_ready = True
            self._set_state(MemberState.READY)
        elif not serving and self.state == MemberState.READY:
            self._set_state(MemberState.UNREADY)

    def set_load(self, load: worker_pb2.WorkerLoad | None) -> None:
        """What the worker says of its load, for the views."""
        self.load = load

    def drain(self) -> None:
        """Asks it to finish what it does and end; a second call asks it to end at once."""
        self._draining.set()
        if self._child is not None:
            self._child.terminate()
            self._set_state(MemberState.DRAINING)

    def kill(self) -> None:
        """Ends it."""
        self._draining.set()
        if self._child is not None:
            self._child.kill()

    def kill_now(self) -> None:
        """Ends it without an event loop, for a supervisor that fails."""
        if self._child is not None:
            self._child.kill_now()
            self._child = None

    def _on_line(self, line: str) -> None:
        self._emit(LogLine(self.spec.name, line))

    def _set_state(self, state: MemberState) -> None:
        self.state = state
        self._changed()


def describe_exit(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
