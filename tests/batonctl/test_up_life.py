"""The life of `baton up`: a child that dies, Ctrl-C, a supervisor that is killed."""

import asyncio
import os
import re
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest

from baton.client import BatonClient
from batonctl.ports import find_free_ports, is_free
from tests.batonctl.command import PATIENCE, Running, baton
from tests.batonctl.terminal import Terminal

PATIENCE_MS = 60_000
UNREACHABLE = 3


def free_port_flags() -> tuple[list[int], list[str]]:
    ports = find_free_ports(3)
    roles = ("gateway", "prefill", "decode")
    return ports, [f"--{role}-port={port}" for role, port in zip(roles, ports, strict=True)]


@contextmanager
def watched(pids: set[int]) -> Iterator[dict[int, int]]:
    """Process ids to descriptors that become readable when the process has gone."""
    with ExitStack() as stack:
        descriptors = {pid: os.pidfd_open(pid) for pid in pids}
        for descriptor in descriptors.values():
            stack.callback(os.close, descriptor)
        yield descriptors


def all_gone(descriptors: dict[int, int]) -> bool:
    poll = select.poll()
    left = set(descriptors.values())
    for descriptor in left:
        poll.register(descriptor, select.POLLIN)
    while left and (events := poll.poll(PATIENCE_MS)):
        for descriptor, _ in events:
            poll.unregister(descriptor)
            left.discard(descriptor)
    return not left


def pid_of(up: Running, name: str) -> int:
    """The child that runs a module."""
    for pid in up.children():
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if name.encode() in file.read().split(b"\0"):
                return pid
    raise AssertionError(f"no child runs {name}")


@pytest.mark.slow
def test_a_killed_worker_is_reported_and_restarted_and_ctrl_c_leaves_nothing() -> None:
    ports, flags = free_port_flags()
    with Running("up", *flags) as up:
        up.wait_line("ready at")
        os.kill(pid_of(up, "decode_svc"), signal.SIGKILL)
        died = up.wait_line("decode-0 died")
        assert "(killed by SIGKILL); starting it again in 0.5 s" in died
        up.wait_line(lambda line: re.search(r"decode-0 \| .*ready on", line) is not None)
        up.wait_line("decode-0 is ready again")
        ask = ("generate", "Hello", "--max-tokens=4", f"--address=127.0.0.1:{ports[0]}")
        # Unavailable until the gateway has found the new worker.
        while (answer := baton(*ask)).returncode == UNREACHABLE:
            assert "decode" in answer.stderr
        assert (answer.returncode, answer.stderr) == (0, "")
        with watched(up.children()) as children:
            assert len(children) == 3
            up.interrupt()
            assert up.wait() == 0
            assert all_gone(children)
    assert up.lines[-1].endswith("stopped")
    assert all(is_free(port) and is_free(port + 1000) for port in ports)


@pytest.mark.slow
def test_sigterm_lets_a_running_answer_finish() -> None:
    ports, flags = free_port_flags()
    # However long the machine takes for it.
    with Running("up", "--drain-grace=200", *flags) as up:
        up.wait_line("ready at")
        stop = partial(up.process.send_signal, signal.SIGTERM)
        assert asyncio.run(count_tokens(f"127.0.0.1:{ports[0]}", stop)) == 60
        assert up.wait() == 0


async def count_tokens(address: str, on_first: Callable[[], None]) -> int:
    """Streams an answer of 60 tokens; returns how many came."""
    num_tokens = 0
    async with BatonClient(address) as client:
        async for message in client.stream("Hello", max_tokens=60, ignore_eos=True):
            if not num_tokens:
                on_first()
            num_tokens += sum(len(delta.token_ids) for delta in message.deltas)
    return num_tokens


@pytest.mark.slow
def test_no_service_outlives_a_killed_supervisor() -> None:
    _, flags = free_port_flags()
    with Running("up", *flags) as up:
        up.wait_line("ready at")
        with watched(up.children()) as children:
            up.process.kill()
            assert all_gone(children)


@pytest.mark.slow
def test_ctrl_c_typed_twice_does_not_wait_for_the_answers_that_run() -> None:
    ports, flags = free_port_flags()
    with Terminal("up", "--drain-grace=600", *flags) as up:
        up.wait_for("ready at")
        # The table of services.
        up.wait_for("decode-0")
        long = ("--min-tokens=1000", f"--address=127.0.0.1:{ports[0]}")
        with Terminal("generate", "Once upon a time", *long) as asking:
            asking.wait_for(" ")
            up.interrupt()
            up.wait_for("draining")
            up.interrupt()
            up.wait_for("stopped")
            assert up.process.wait(PATIENCE) == 0
            assert asking.process.wait(PATIENCE) == UNREACHABLE


def test_ctrl_c_while_starting_stops_all() -> None:
    _, flags = free_port_flags()
    with Running("up", *flags) as up:
        up.wait_line("|")
        with watched(up.children()) as children:
            up.interrupt()
            assert up.wait() == 0
            assert all_gone(children)


def test_a_service_that_cannot_start_ends_the_stack_with_its_last_lines() -> None:
    _, flags = free_port_flags()
    with Running("up", *flags, env={"BATON_DECODE_NO_SUCH_SETTING": "1"}) as up:
        assert up.wait() == 1
    text = "\n".join(up.lines)
    assert "unknown setting BATON_DECODE_NO_SUCH_SETTING" in text
    assert "baton: decode-0 could not start (exit code 2)" in text
    assert "Traceback" not in text
