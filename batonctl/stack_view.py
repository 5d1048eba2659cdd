"""How a running stack looks: a live table in a terminal, lines elsewhere."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from baton.v1 import worker_pb2
from batonctl.member import Member, MemberState
from batonctl.stack_events import Died, LogLine, Recovered, StackEvent, Started

_STYLES = {
    MemberState.READY: "green",
    MemberState.STARTING: "cyan",
    MemberState.DRAINING: "cyan",
    MemberState.UNREADY: "yellow",
    MemberState.RESTARTING: "red",
    MemberState.STOPPED: "dim",
}
# In this order.
_DROPPED_WHERE_NARROW = ("pid", "address", "restarts")
_ANY_WIDTH = 1000


class StackView(ABC):
    """Shows events as they come and, where it can, the state in between."""

    @abstractmethod
    def show(self, event: StackEvent) -> None:
        """Shows an event."""

    @abstractmethod
    def say(self, text: str) -> None:
        """Shows a line of the supervisor's own."""

    @abstractmethod
    def attach(self, members: Sequence[Member]) -> None:
        """Begins to show the state of these services."""

    @abstractmethod
    def close(self) -> None:
        """Ends; the terminal is as it was."""


class PlainView(StackView):
    """Lines with the time and the service's name: for files, pipes and containers."""

    def __init__(self, console: Console, *, logs: bool) -> None:
        self._console = console
        self._logs = logs

    def show(self, event: StackEvent) -> None:
        if self._logs or not isinstance(event, LogLine):
            for line in describe(event, logs=self._logs):
                self._print(line)

    def say(self, text: str) -> None:
        self._print(text)

    def _print(self, line: str) -> None:
        clock = time.strftime("%H:%M:%S")
        self._console.print(f"{clock} {line}", markup=False, highlight=False, soft_wrap=True)

    def attach(self, members: Sequence[Member]) -> None:
        pass

    def close(self) -> None:
        pass


class LiveView(StackView):
    """A table that stays at the bottom of the terminal, with events above it."""

    def __init__(self, console: Console, *, logs: bool) -> None:
        self._console = console
        self._logs = logs
        self._live: Live | None = None

    def show(self, event: StackEvent) -> None:
        if not self._logs and isinstance(event, LogLine):
            return
        style = "red" if isinstance(event, Died) else "dim"
        for line in describe(event, logs=self._logs):
            self._console.print(f"[{style}]{escape(line)}[/]", highlight=False)

    def say(self, text: str) -> None:
        self._console.print(escape(text), highlight=False)

    def attach(self, members: Sequence[Member]) -> None:
        self._live = Live(
            console=self._console,
            get_renderable=lambda: render_table(members, self._console),
            refresh_per_second=4,
        )
        self._live.start()

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()


def open_view(console: Console, *, logs: bool | None) -> StackView:
    """The view that suits the console; `logs` None: the services' logs only outside a terminal."""
    if console.is_terminal:
        return LiveView(console, logs=bool(logs))
    return PlainView(console, logs=logs is not False)


def describe(event: StackEvent, *, logs: bool = False) -> list[str]:
    """An event as lines of text; ``logs``: the services' own lines are shown already."""
    match event:
        case LogLine(service, line):
            return [f"{service} | {line}"]
        case Started(service):
            return [f"{service} started again"]
        case Recovered(service):
            return [f"{service} is ready again"]
        case Died(service, cause, last_lines, delay):
            then = "" if delay is None else f"; starting it again in {delay:g} s"
            if logs:
                return [f"{service} died ({cause}){then}"]
            tail = [f"  {service} | {line}" for line in last_lines]
            return [f"{service} died ({cause}){then}. Its last lines:", *tail]


def render_table(members: Sequence[Member], console: Console) -> RenderableType:
    """The state of all services, in as many columns as the console has room for."""
    unbounded = console.options.update(max_width=_ANY_WIDTH)
    for dropped in range(len(_DROPPED_WHERE_NARROW) + 1):
        table = _table(members, _DROPPED_WHERE_NARROW[:dropped])
        if console.measure(table, options=unbounded).maximum <= console.width:
            break
    return table


def _table(members: Sequence[Member], without: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    rows = [_cells(member) for member in members]
    columns = [name for name in rows[0] if name not in without]
    for name in columns:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*(row[name] for name in columns))
    return table


def _cells(member: Member) -> dict[str, str]:
    load = member.load
    return {
        "service": member.spec.name,
        "address": member.spec.address,
        "state": f"[{_STYLES[member.state]}]{member.state}[/]",
        "pid": str(member.pid or "-"),
        "restarts": str(member.restarts),
        "running": str(load.running) if load else "-",
        "waiting": str(load.waiting + load.handing_off) if load else "-",
        "blocks in use": _blocks(load.blocks) if load else "-",
    }


def _blocks(blocks: worker_pb2.BlockCounts) -> str:
    in_use = blocks.total - blocks.free - blocks.cached
    return f"{in_use} of {blocks.total} ({blocks.cached} cached)"
