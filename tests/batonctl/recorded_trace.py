"""Traces that telemetry itself wrote, and what a terminal shows of them."""

import subprocess
import sys
from io import StringIO
from pathlib import Path

from rich.console import Console

from batonctl.trace import Trace, render_waterfall

PROGRAM = Path(__file__).with_name("traced_request.py")
BEGIN = 1_700_000_000_000_000_000


def record(begin: int = BEGIN) -> str:
    """Has three real processes leave a request's trace; returns its id."""
    command = [sys.executable, str(PROGRAM), "gateway", str(begin)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def drawn(trace: Trace, width: int = 120, encoding: str = "utf-8") -> str:
    """The waterfall in a terminal of that width."""
    out = Encoded(encoding)
    render_waterfall(trace, Console(file=out, width=width, force_terminal=False, color_system=None))
    return out.getvalue()


class Encoded(StringIO):
    """A terminal that can show only what an encoding can."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._name = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._name

    def write(self, text: str) -> int:
        text.encode(self._name)
        return super().write(text)
