"""A real service in a process of its own, on loopback."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from batonctl.ports import find_free_ports

WAIT_SECONDS = 180.0


class ServiceProcess:
    """``python -m <module>`` on free ports; its log is kept for conditions and assertions."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        environment: dict[str, str],
        port: int | None = None,
    ) -> None:
        """``port`` is where another one was, for one that takes its place."""
        self.port, self.metrics_port = find_free_ports(2)
        self.port = port or self.port
        self.address = f"127.0.0.1:{self.port}"
        ports = ["--port", str(self.port), "--metrics-port", str(self.metrics_port)]
        self._command = [sys.executable, "-m", module, *ports, *arguments]
        self._environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        self._logged = threading.Condition()
        self.start()

    def start(self) -> None:
        """Runs the service; again, on the same ports and with an empty log, where it has ended."""
        self.log: list[str] = []
        self._is_over = False
        self._process = subprocess.Popen(
            self._command, env=self._environment, stderr=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Of the process that was started; it may have children."""
        return self._process.pid

    def wait_for_log(self, text: str, times: int = 1) -> list[str]:
        """The lines with ``text``, once there are that many; fails with the log if they do not
        come, or the service ends before."""
        with self._logged:
            self._logged.wait_for(
                lambda: self._is_over or len(self._lines(text)) >= times, WAIT_SECONDS
            )
            assert len(self._lines(text)) >= times, "".join(self.log)
            return self._lines(text)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def terminate(self) -> None:
        """SIGTERM: drain and exit."""
        self.signal(signal.SIGTERM)

    def wait_exit(self) -> int:
        """The exit code; afterwards ``log`` is complete."""
        code = self._process.wait(WAIT_SECONDS)
        self._reader.join()
        return code

    def stop(self) -> None:
        """Ends the process, whatever it does."""
        if self._process.poll() is None:
            self._process.kill()
        self.wait_exit()

    def _lines(self, text: str) -> list[str]:
        return [line for line in self.log if text in line]

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as log:
            for line in log:
                with self._logged:
                    self.log.append(line)
                    self._logged.notify_all()
        with self._logged:
            self._is_over = True
            self._logged.notify_all()


@contextmanager
def running_service(module: str, *arguments: str, **environment: str) -> Iterator[ServiceProcess]:
    """The service while entered; not necessarily ready."""
    process = ServiceProcess(module, arguments, environment)
    try:
        yield process
    finally:
        process.stop()
