"""A real worker in a process of its own, on loopback."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from tests.e2e.service_process import ServiceProcess


class WorkerProcess(ServiceProcess):
    """``python -m <role>_svc`` with one thread."""

    def __init__(
        self,
        role: str,
        arguments: Sequence[str],
        environment: dict[str, str],
        port: int | None = None,
    ) -> None:
        super().__init__(f"{role}_svc", [*arguments, "--threads", "1"], environment, port)

    def wait_ready(self) -> Self:
        """Returns once the service says so; fails with its log if it ends or takes too long."""
        self.wait_for_log("ready on")
        return self


@contextmanager
def running(
    role: str,
    *arguments: str,
    trace_directory: Path,
    model: str = "smollm2-135m",
    port: int | None = None,
    **environment: str,
) -> Iterator[WorkerProcess]:
    """A worker in float32 that is stopped at the end; ready once ``wait_ready`` has returned."""
    options = ["--model", model, "--dtype", "float32", *arguments]
    environment = {"BATON_TRACE_DIR": str(trace_directory), **environment}
    worker = WorkerProcess(role, options, environment, port)
    try:
        yield worker
    finally:
        worker.stop()
