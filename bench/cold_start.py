"""How long a new process takes until the engine of bench.gpu is ready: warm, every step captured.

``python -m bench.cold_start FOLDER LOAD_FORMAT`` is that process; it says so with a line.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from bench.results import Figure

_READY = "ready"


def cold_start(folder: Path) -> Figure:
    """``folder`` is for the model's configuration. Started twice: the first one compiles what the
    caches lack, so that the second finds the kernels built ahead."""
    command = start_command(folder, "dummy")
    first, second = (seconds_until_ready(command) for _ in range(2))
    note = f"the start before, which filled the caches of kernels: {first:.1f} s"
    return Figure("cold_start.s", round(second, 2), "s", note=note)


def start_command(folder: Path, load_format: str) -> list[str]:
    """``folder`` has the weights too, unless they are "dummy" ones."""
    return [sys.executable, "-m", "bench.cold_start", str(folder), load_format]


def seconds_until_ready(command: Sequence[str]) -> float:
    """From the start of the process, which is killed then, to its line. Raises RuntimeError where
    it ends without one."""
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        is_ready = any(line.strip() == _READY for line in process.stdout)
        seconds = time.monotonic() - began
        if is_ready:
            process.kill()
    if not is_ready:
        text = f"{' '.join(command)} ended with {process.returncode} before it was ready"
        raise RuntimeError(text)
    return seconds


def main() -> None:
    from bench.gpu import Bench

    load_format: Literal["auto", "dummy"] = "dummy" if sys.argv[2] == "dummy" else "auto"
    _bench = Bench(Path(sys.argv[1]), load_format=load_format)
    print(_READY, flush=True)
    # Killed from outside: nobody measures how long it takes to close.
    signal.pause()


if __name__ == "__main__":
    main()
