"""A child process: its output, its end, and that it never outlives its parent."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from batonctl.child import Child

PYTHON = sys.executable


def python(code: str) -> Child:
    return Child([PYTHON, "-c", code], os.environ)


@contextmanager
def pidfd(pid: int) -> Iterator[int]:
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def wait_gone(descriptor: int) -> bool:
    """Whether the process behind a pidfd ends within the test's patience."""
    return bool(select.select([descriptor], [], [], 30)[0])


async def test_output_arrives_line_by_line_and_the_exit_code_is_returned() -> None:
    lines: list[str] = []
    child = python("import sys; print('one'); print('two', end=''); sys.exit(3)")
    assert await child.wait(lines.append) == 3
    assert lines == ["one", "two"]
    assert child.tail(1) == ["two"]


async def test_output_that_is_not_utf8_or_has_endless_lines_is_passed_on() -> None:
    lines: list[str] = []
    child = python("import sys; sys.stdout.buffer.write(b'\\xff' * 300_000 + b'\\nend\\n')")
    assert await child.wait(lines.append) == 0
    assert lines[-1] == "end"
    assert sum(len(line) for line in lines[:-1]) == 300_000


async def test_a_signal_shows_as_a_negative_exit_code() -> None:
    child = python("import time; print('up', flush=True); time.sleep(600)")
    assert await child.wait(lambda _: child.terminate()) == -signal.SIGTERM


async def test_what_a_child_started_ends_with_it() -> None:
    pids: list[int] = []
    child = python(
        "import subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(p.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    descriptors: list[int] = []

    def note(line: str) -> None:
        pids.append(int(line))
        descriptors.append(os.pidfd_open(pids[-1]))

    assert await child.wait(note) == 0
    assert wait_gone(descriptors[0])
    os.close(descriptors[0])


async def test_a_grandchild_that_left_the_group_does_not_hold_up_the_end() -> None:
    pids: list[int] = []
    child = python(
        "import subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
        " start_new_session=True)\n"
        "print(p.pid, flush=True)\n"
    )
    assert await child.wait(lambda line: pids.append(int(line))) == 0
    os.kill(pids[0], signal.SIGKILL)


def test_killing_needs_no_event_loop() -> None:
    child = python("import time; time.sleep(600)")
    child.kill_now()
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


def test_a_child_dies_when_its_parent_is_killed() -> None:
    code = (
        "import os, sys, time; from batonctl.child import Child\n"
        "c = Child([sys.executable, '-c', 'import time; time.sleep(600)'], os.environ)\n"
        "print(c.pid, flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen([PYTHON, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        with pidfd(int(parent.stdout.readline())) as descriptor:
            parent.kill()
            assert wait_gone(descriptor)


def test_a_leash_whose_parent_is_already_gone_runs_nothing() -> None:
    from batonctl import leash

    run = subprocess.run(
        [PYTHON, leash.__file__, "1", PYTHON, "-c", "print('ran')"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode != 0
    assert "gone" in run.stderr
    assert run.stdout == ""


async def test_cancelling_the_wait_leaves_the_process_to_kill_now() -> None:
    child = python("import time; print('up', flush=True); time.sleep(600)")
    up = asyncio.Event()
    waiting = asyncio.create_task(child.wait(lambda _: up.set()))
    await up.wait()
    waiting.cancel()
    await asyncio.wait({waiting})
    child.kill_now()
    assert waiting.cancelled()
