"""The real `baton` command, as a person runs it."""

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

# A command may start a whole stack, on a machine that is slow and busy.
PATIENCE = 250.0
SMALL = {
    "OMP_NUM_THREADS": "1",
    "BATON_PREFILL_KV_MEMORY_BYTES": str(64 << 20),
    "BATON_DECODE_KV_MEMORY_BYTES": str(64 << 20),
}
BATON = (sys.executable, "-m", "batonctl")


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    """The environment of a test's command: small workers, none of the person's own settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("BATON_", "OTEL_"))}
    if "BATON_MODEL_DIR" in os.environ:
        kept["BATON_MODEL_DIR"] = os.environ["BATON_MODEL_DIR"]
    return {**kept, **SMALL, "COLUMNS": "120", **changes}


def baton(
    *arguments: str,
    stdin: bytes | str = b"",
    env: Mapping[str, str] | None = None,
    patience: float = PATIENCE,
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    run = subprocess.run(
        [*BATON, *arguments],
        input=data,
        capture_output=True,
        env=environment(env or {}),
        timeout=patience,
        check=False,
    )
    return subprocess.CompletedProcess(
        run.args, run.returncode, run.stdout.decode(), run.stderr.decode()
    )


class Running:
    """A command in the background, whose output is read line by line."""

    def __init__(self, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        self.process = subprocess.Popen(
            [*BATON, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(env or {}),
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._queue.put(line.rstrip())
        self._queue.put(None)

    def wait_line(self, wanted: str | Callable[[str], bool]) -> str:
        """The next line that contains, or satisfies, what is wanted."""
        matches = wanted if callable(wanted) else lambda line: wanted in line
        while (line := self._queue.get(timeout=PATIENCE)) is not None:
            self.lines.append(line)
            if matches(line):
                return line
        raise AssertionError(f"{wanted!r} never came:\n" + "\n".join(self.lines))

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def wait(self) -> int:
        """Reads what is left; returns the exit code."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        while (line := self._queue.get_nowait()) is not None:
            self.lines.append(line)
        return code

    def children(self) -> set[int]:
        """Process ids of its direct children."""
        pid = self.process.pid
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return {int(child) for child in file.read().split()}

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
        self._reader.join(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()
