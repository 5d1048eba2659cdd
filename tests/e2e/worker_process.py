"""A real worker service in a process of its own, on loopback."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

READY_SECONDS = 60.0
STOP_SECONDS = 30.0


class WorkerProcess:
    """``python -m <role>_svc`` with one thread; its log is kept for assertions."""

    def __init__(self, role: str, arguments: Sequence[str], environment: dict[str, str]) -> None:
        self.port, self.metrics_port = _free_ports(2)
        self.address = f"127.0.0.1:{self.port}"
        self.log: list[str] = []
        self._ready = threading.Event()
        command = [sys.executable, "-m", f"{role}_svc", *arguments]
        command += ["--port", str(self.port), "--metrics-port", str(self.metrics_port)]
        self._process = subprocess.Popen(
            [*command, "--threads", "1"],
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def wait_ready(self) -> Self:
        """Returns once the service says so; fails with its log if it ends or takes too long."""
        assert self._ready.wait(READY_SECONDS), "".join(self.log)
        assert self._process.poll() is None, "".join(self.log)
        return self

    def wait_exit(self) -> int:
        """The exit code; afterwards ``log`` is complete."""
        code = self._process.wait(STOP_SECONDS)
        self._reader.join()
        return code

    def terminate(self) -> None:
        """SIGTERM: drain and exit."""
        self.signal(signal.SIGTERM)

    def signal(self, number: signal.Signals) -> None:
        """Any other signal."""
        self._process.send_signal(number)

    def stop(self) -> None:
        """Ends the process, whatever it does."""
        if self._process.poll() is None:
            self._process.kill()
        self.wait_exit()

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as log:
            for line in log:
                self.log.append(line)
                if "ready on" in line:
                    self._ready.set()
        # The process has ended: nobody need wait for it any longer.
        self._ready.set()


@contextmanager
def running(
    role: str,
    *arguments: str,
    trace_directory: Path,
    model: str = "smollm2-135m",
    **environment: str,
) -> Iterator[WorkerProcess]:
    """A worker in float32 that is stopped at the end; ready once ``wait_ready`` has returned."""
    options = ["--model", model, "--dtype", "float32", *arguments]
    worker = WorkerProcess(role, options, {"BATON_TRACE_DIR": str(trace_directory), **environment})
    try:
        yield worker
    finally:
        worker.stop()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
