"""How a running stack looks, in a terminal and in a pipe."""

import io
import re

import pytest
from rich.console import Console

from baton.v1 import worker_pb2
from batonctl.member import Member, MemberState
from batonctl.service_spec import Role, ServiceSpec
from batonctl.stack_events import Died, LogLine, Recovered, StackEvent, Started
from batonctl.stack_view import LiveView, PlainView, open_view, render_table

DIED = Died("decode-0", "killed by SIGKILL", ("last words [bold]", "and more"), 0.5)


def console(*, terminal: bool, width: int = 120) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None)


def shown(used: Console) -> str:
    assert isinstance(used.file, io.StringIO)
    return used.file.getvalue()


def members() -> list[Member]:
    def ignore(event: StackEvent) -> None:
        pass

    decode = Member(
        ServiceSpec("decode-0", Role.DECODE, (), "127.0.0.1:7120"), ignore, lambda: None
    )
    decode.state = MemberState.READY
    decode.restarts = 3
    blocks = worker_pb2.BlockCounts(used=4, leased=1, cached=20, free=75, total=100)
    decode.set_load(worker_pb2.WorkerLoad(running=7, waiting=2, handing_off=1, blocks=blocks))
    gateway = Member(
        ServiceSpec("gateway", Role.GATEWAY, (), "127.0.0.1:7100"), ignore, lambda: None
    )
    return [gateway, decode]


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("logs", [True, False])
def test_a_death_is_shown_with_its_cause_and_its_last_lines_once(
    terminal: bool, logs: bool
) -> None:
    used = console(terminal=terminal)
    view = open_view(used, logs=logs)
    for line in DIED.last_lines:
        view.show(LogLine(DIED.service, line))
    view.show(DIED)
    text = shown(used)
    assert "decode-0 died (killed by SIGKILL); starting it again in 0.5 s" in text
    assert text.count("decode-0 | last words [bold]") == 1


def test_lines_in_a_pipe_start_with_the_time_and_include_logs() -> None:
    used = console(terminal=False)
    view = open_view(used, logs=None)
    assert isinstance(view, PlainView)
    view.show(LogLine("gateway", "hello"))
    view.say("ready")
    assert re.fullmatch(r"\d\d:\d\d:\d\d gateway \| hello\n\d\d:\d\d:\d\d ready\n", shown(used))


def test_logs_can_be_left_out_of_a_pipe() -> None:
    used = console(terminal=False)
    view = open_view(used, logs=False)
    view.show(LogLine("gateway", "hello"))
    view.show(Recovered("gateway"))
    assert "hello" not in shown(used)
    assert "gateway is ready again" in shown(used)


def test_logs_are_shown_in_a_terminal_on_demand() -> None:
    for logs, wanted in ((None, False), (True, True)):
        used = console(terminal=True)
        view = open_view(used, logs=logs)
        assert isinstance(view, LiveView)
        view.show(LogLine("gateway", "hello"))
        assert ("hello" in shown(used)) == wanted


def test_the_table_shows_state_and_load_of_each_service() -> None:
    used = console(terminal=False)
    used.print(render_table(members(), used))
    header, gateway, decode = shown(used).splitlines()
    assert header.split()[:3] == ["service", "address", "state"]
    assert gateway.split()[:3] == ["gateway", "127.0.0.1:7100", "stopped"]
    assert decode.split() == [
        *("decode-0", "127.0.0.1:7120", "ready", "-", "3", "7", "3"),
        *("5", "of", "100", "(20", "cached)"),
    ]


@pytest.mark.parametrize(
    ("width", "dropped"),
    [(86, {"pid"}), (80, {"pid", "address"}), (62, {"pid", "address", "restarts"})],
)
def test_a_narrow_terminal_gets_fewer_columns_and_no_broken_row(
    width: int, dropped: set[str]
) -> None:
    used = console(terminal=False, width=width)
    used.print(render_table(members(), used))
    header, _, decode = shown(used).splitlines()
    assert {"pid", "address", "restarts"} - set(header.split()) == dropped
    assert decode.endswith("5 of 100 (20 cached)")


def test_a_live_view_draws_the_table_and_leaves_the_terminal_in_order() -> None:
    used = console(terminal=True)
    view = LiveView(used, logs=False)
    view.attach(members())
    view.show(Started("decode-0"))
    view.close()
    text = shown(used)
    assert "decode-0 started again" in text
    assert "127.0.0.1:7120" in text
    # The cursor is hidden while the table lives, and shown again.
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1
