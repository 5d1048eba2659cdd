"""A worker whose engine hangs in a step once a file appears: flags, then ``ROLE FILE``."""

import importlib
import sys
import threading
from pathlib import Path

from engine.batch import ModelRunnerOutput, SchedulerOutput
from engine.model_runner import ModelRunner


def hang_when(file: Path) -> None:
    """From then on no step ends."""
    run = ModelRunner.run

    def run_or_hang(self: ModelRunner, output: SchedulerOutput) -> ModelRunnerOutput:
        if file.exists():
            hang_here()
        return run(self, output)

    ModelRunner.run = run_or_hang  # type: ignore[method-assign]


def hang_here() -> None:
    """What the log of the stuck worker must name."""
    threading.Event().wait()


if __name__ == "__main__":
    # The test's options come after the ports that every service gets.
    role, file = sys.argv[-2:]
    del sys.argv[-2:]
    hang_when(Path(file))
    sys.exit(importlib.import_module(f"{role}_svc.__main__").main())
