"""`baton trace`: where the time of a request went."""

import os
import sys
from pathlib import Path

from rich.console import Console

from batonctl.errors import CommandError
from batonctl.trace_html import write_html
from batonctl.trace_model import Trace
from batonctl.trace_reader import load_trace
from batonctl.trace_waterfall import render_waterfall

# What `baton demo` uses.
__all__ = ["Trace", "load_trace", "render_waterfall", "run_trace", "trace_console", "write_html"]

WAIT_SECONDS = 1.0
# Of a waterfall that goes to a file or a pipe: enough to leave nothing out.
PIPE_COLUMNS = 160


def run_trace(request_id: str | None, html: Path | None) -> None:
    """Prints a trace, or writes it as a page; None is the latest. Raises CommandError."""
    trace = load_trace(request_id, wait=WAIT_SECONDS)
    if html is None:
        render_waterfall(trace, trace_console())
        return
    try:
        write_html(trace, html)
    except OSError as error:
        raise CommandError(f"cannot write {html}: {error.strerror}") from error
    print(html)


def trace_console() -> Console:
    """Standard output, as wide as the terminal or COLUMNS; where neither says, PIPE_COLUMNS."""
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = PIPE_COLUMNS
    return console
