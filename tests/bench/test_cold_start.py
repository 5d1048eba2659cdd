"""The clock of a cold start, on processes that are ready sooner."""

import sys

import pytest

from bench.cold_start import seconds_until_ready


def test_the_clock_stops_at_the_line_and_the_process_with_it() -> None:
    code = "import signal; print('loading'); print('ready', flush=True); signal.pause()"
    assert seconds_until_ready([sys.executable, "-c", code]) > 0


def test_a_process_that_is_never_ready_is_an_error() -> None:
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    with pytest.raises(RuntimeError, match="ended with 3 before it was ready"):
        seconds_until_ready(command)
