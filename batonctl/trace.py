"""`baton trace`: where the time of a request went."""

import sys
from pathlib import Path

from rich.console import Console

from batonctl.errors import CommandError
from batonctl.trace_html import write_html
from batonctl.trace_model import Trace
from batonctl.trace_reader import load_trace
from batonctl.trace_waterfall import render_waterfall

# What `baton demo` uses.
__all__ = ["Trace", "load_trace", "render_waterfall", "run_trace", "write_html"]

WAIT_SECONDS = 1.0


def run_trace(request_id: str | None, html: Path | None) -> None:
    """Prints a trace, or writes it as a page; None is the latest. Raises CommandError."""
    trace = load_trace(request_id, wait=WAIT_SECONDS)
    if html is None:
        render_waterfall(trace, Console(file=sys.stdout, highlight=False))
        return
    try:
        write_html(trace, html)
    except OSError as error:
        raise CommandError(f"cannot write {html}: {error.strerror}") from error
    print(html)
