"""What a service holds, every few seconds."""

import asyncio
import os
import statistics
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from bench.service import Service

_HELD = ("leased", "used", "reserved", "fenced")
_PAGE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Sample:
    """A moment of a process: ``blocks`` that requests hold, and ``running`` requests."""

    at: float
    rss_mb: float
    descriptors: int
    threads: int
    tasks: int
    blocks: int
    running: int


async def take_sample(service: Service) -> Sample:
    """Now. Raises OSError where the process does not answer."""
    return await asyncio.to_thread(_take_sample, service.pid, service.page)


def mb_per_minute(samples: Sequence[Sample]) -> float:
    """The slope of resident memory, by least squares."""
    minutes = [sample.at / 60 for sample in samples]
    return statistics.linear_regression(minutes, [sample.rss_mb for sample in samples]).slope


def _take_sample(pid: int, url: str) -> Sample:
    held = running = tasks = 0.0
    with urllib.request.urlopen(url, timeout=_PAGE_SECONDS) as page:
        families = text_string_to_metric_families(page.read().decode())
    for each in (sample for family in families for sample in family.samples):
        if each.name == "baton_blocks" and each.labels["state"] in _HELD:
            held += each.value
        elif each.name == "baton_requests_running":
            running = each.value
        elif each.name == "baton_tasks":
            tasks = each.value
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in status)
    return Sample(
        at=time.monotonic(),
        rss_mb=int(fields["VmRSS"].split()[0]) / 1024,
        descriptors=len(os.listdir(f"/proc/{pid}/fd")),
        threads=int(fields["Threads"]),
        tasks=round(tasks),
        blocks=round(held),
        running=round(running),
    )
