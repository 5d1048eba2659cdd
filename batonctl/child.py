"""One child process of the supervisor."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

TAIL_LINES = 200
MAX_LINE_BYTES = 1 << 16
# How long the output of a dead child may stay open in a process that left its group.
OUTPUT_LINGER = 1.0
_LEASH = str(Path(__file__).with_name("leash.py"))


class Child:
    """A process in a process group of its own, so that a terminal's Ctrl-C reaches only us.

    Spawning needs no event loop: a command can start its services first and import the rest while
    they start. Must be spawned from the main thread, whose end the leash watches. Only `wait` and
    `kill_now` reap it, so its process id stays valid until then.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", _LEASH, str(os.getpid()), *command],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)

    @property
    def pid(self) -> int:
        """Process id, and id of its group."""
        return self._process.pid

    def tail(self, num_lines: int) -> list[str]:
        """The last lines it wrote."""
        return list(self._tail)[-num_lines:]

    def terminate(self) -> None:
        """Asks it to end: SIGTERM."""
        if self._process.returncode is None:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Ends it and its whole group; `wait` still has to reap it."""
        if self._process.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)

    def kill_now(self) -> None:
        """Ends and reaps it without an event loop."""
        self.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    async def wait(self, on_line: Callable[[str], None]) -> int:
        """Passes its output on, line by line, until it exits; what is left of its group dies too.

        Returns the exit code; negative: the signal that ended it.
        """

        def keep(line: str) -> None:
            self._tail.append(line)
            on_line(line)

        output = self._process.stdout
        assert output is not None
        loop = asyncio.get_running_loop()
        transport, lines = await loop.connect_read_pipe(lambda: _Lines(keep), output)
        try:
            await _exited(self.pid)
            # The process is a zombie: nobody else can have its id or its group's yet.
            self.kill()
            code = self._process.wait()
            with suppress(TimeoutError):
                await asyncio.wait_for(lines.closed.wait(), OUTPUT_LINGER)
        finally:
            transport.close()
        return code


async def _exited(pid: int) -> None:
    """Returns once the process has exited, without reaping it."""
    loop = asyncio.get_running_loop()
    exited = asyncio.Event()
    descriptor = os.pidfd_open(pid)
    loop.add_reader(descriptor, exited.set)
    try:
        await exited.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


class _Lines(asyncio.Protocol):
    """Cuts a byte stream into lines."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._rest = b""
        self.closed = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._on_line(line.decode("utf-8", "replace").rstrip())

    def connection_lost(self, exc: Exception | None) -> None:
        if self._rest:
            self._on_line(self._rest.decode("utf-8", "replace").rstrip())
        self.closed.set()
