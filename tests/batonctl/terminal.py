"""A command that talks to a terminal."""

import os
import pty
import select
import subprocess
import sys
from types import TracebackType
from typing import Self

from tests.batonctl.command import BATON, PATIENCE, environment

# Makes standard input the controlling terminal, whose Ctrl-C is a signal to all of its processes. A
# test run in the background of a shell has them ignore it, which a terminal of their own does not.
_TAKE_TERMINAL = (
    "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    "signal.signal(signal.SIGINT, signal.SIG_DFL);"
    "os.execv(sys.argv[1], sys.argv[1:])"
)
_CTRL_C = b"\x03"


class Terminal:
    """Runs `baton` on a pseudo-terminal: what a person sees, and what they type."""

    def __init__(self, *arguments: str) -> None:
        self._screen, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *BATON, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment({"TERM": "xterm"}),
            start_new_session=True,
        )
        os.close(slave)
        self._unread = ""

    def wait_for(self, wanted: str) -> str:
        """What came up to and including the wanted text."""
        while wanted not in self._unread:
            ready, _, _ = select.select([self._screen], [], [], PATIENCE)
            assert ready, f"{wanted!r} never came, but: {self._unread!r}"
            try:
                self._unread += os.read(self._screen, 4096).decode(errors="replace")
            except OSError:
                raise AssertionError(f"ended before {wanted!r}: {self._unread!r}") from None
        seen, _, self._unread = self._unread.partition(wanted)
        return seen + wanted

    def enter(self, line: str) -> None:
        """Types a line; returns when the terminal has echoed it."""
        os.write(self._screen, f"{line}\n".encode())
        self.wait_for(line)

    def interrupt(self) -> None:
        """Types Ctrl-C."""
        os.write(self._screen, _CTRL_C)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._screen)
