"""The metrics page, of one process and of several."""

import asyncio
import itertools
import os
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chassis.metrics import SECONDS_BUCKETS, Metrics, forget_process, share_metrics

CHILD = """
import sys
from chassis.metrics import Metrics
metrics = Metrics()
metrics.counter("baton_things_total", "Things.", ("kind",)).labels("a").inc(int(sys.argv[1]))
metrics.gauge("baton_waiting", "Waiting.").set(int(sys.argv[1]))
metrics.histogram("baton_wait_seconds", "Waits.").observe(0.004)
"""


def page(port: int) -> dict[str, float]:
    """The samples of the page, by name with labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, value in samples}


def test_the_page_shows_what_was_counted() -> None:
    metrics = Metrics()
    metrics.counter("baton_requests_total", "Requests.", ("code",)).labels("OK").inc()
    metrics.gauge("baton_waiting", "Waiting.").set(3)
    metrics.histogram("baton_wait_seconds", "Waits.").observe(0.004)
    with metrics.serve("127.0.0.1", 0) as port:
        shown = page(port)
    assert shown['baton_requests_total{code="OK"}'] == 1
    assert shown["baton_waiting"] == 3
    assert shown['baton_wait_seconds_bucket{le="0.003"}'] == 0
    assert shown['baton_wait_seconds_bucket{le="0.005"}'] == 1
    assert shown["process_resident_memory_bytes"] > 0


def test_an_observed_gauge_is_read_when_the_page_is() -> None:
    metrics, blocks = Metrics(), {"free": 8.0}
    metrics.observed_gauge("baton_blocks", "Blocks.", "state", lambda: blocks)
    with metrics.serve("127.0.0.1", 0) as port:
        assert page(port)['baton_blocks{state="free"}'] == 8
        blocks.update(free=7.0, used=1.0)
        shown = page(port)
    assert (shown['baton_blocks{state="free"}'], shown['baton_blocks{state="used"}']) == (7, 1)


def test_an_observed_counter_is_read_when_the_page_is() -> None:
    metrics, moved = Metrics(), {"nixl": 8.0}
    metrics.observed_counter("baton_bytes_total", "Bytes.", "transport", lambda: moved)
    with metrics.serve("127.0.0.1", 0) as port:
        assert page(port)['baton_bytes_total{transport="nixl"}'] == 8
        moved.update(nixl=9.0)
        assert page(port)['baton_bytes_total{transport="nixl"}'] == 9


async def test_tasks_that_have_not_ended_are_counted() -> None:
    metrics = Metrics()
    metrics.count_tasks(asyncio.get_running_loop())
    with metrics.serve("127.0.0.1", 0) as port:
        before = (await asyncio.to_thread(page, port))["baton_tasks"]
        sleepers = [asyncio.create_task(asyncio.sleep(60)) for _ in range(3)]
        assert (await asyncio.to_thread(page, port))["baton_tasks"] == before + 3
        for sleeper in sleepers:
            sleeper.cancel()
        await asyncio.gather(*sleepers, return_exceptions=True)
        assert (await asyncio.to_thread(page, port))["baton_tasks"] == before


def test_the_buckets_resolve_1_ms_to_60_s() -> None:
    steps = [high / low for low, high in itertools.pairwise(SECONDS_BUCKETS)]
    assert (SECONDS_BUCKETS[0], SECONDS_BUCKETS[-1]) == (0.001, 60.0)
    assert min(steps) > 1 and max(steps) <= 2


def test_a_counter_must_be_named_as_one() -> None:
    with pytest.raises(AssertionError, match="_total"):
        Metrics().counter("baton_requests", "Requests.")


def test_a_port_in_use_is_refused() -> None:
    with (
        Metrics().serve("127.0.0.1", 0) as port,
        pytest.raises(OSError, match="in use"),
        Metrics().serve("127.0.0.1", port),
    ):
        pass


def test_one_page_shows_the_sum_of_several_processes() -> None:
    with share_metrics() as directory:
        children = [
            subprocess.Popen([sys.executable, "-c", CHILD, str(amount)]) for amount in (1, 2)
        ]
        assert [child.wait(60) for child in children] == [0, 0]
        with Metrics().serve("127.0.0.1", 0) as port:
            shown = page(port)
            forget_process(children[1].pid)
            left = page(port)
    assert shown['baton_things_total{kind="a"}'] == left['baton_things_total{kind="a"}'] == 3
    assert shown["baton_wait_seconds_count"] == 2
    assert (shown["baton_waiting"], left["baton_waiting"]) == (3, 1)
    assert not Path(directory).exists() and "PROMETHEUS_MULTIPROC_DIR" not in os.environ


async def test_the_page_answers_while_the_loop_is_busy() -> None:
    with Metrics().serve("127.0.0.1", 0) as port, ThreadPoolExecutor(1) as reader:
        reading = reader.submit(page, port)
        # This thread's event loop never runs meanwhile.
        assert "process_resident_memory_bytes" in reading.result()
