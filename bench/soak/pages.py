"""What services say on their metrics pages."""

import asyncio
import urllib.request
from collections import Counter

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from bench.service import Service

_PAGE_SECONDS = 10.0
_POLL_SECONDS = 0.2
# More than the longest time for which anybody may hold a block that nobody asks for.
_QUIET_SECONDS = 30.0
# States of a block that a request holds.
_HELD = ("leased", "used", "reserved", "fenced")


async def retries_of(gateway: Service) -> Counter[str]:
    """Attempts that this process made beyond each request's first, by the reason."""
    return Counter(
        {
            sample.labels["reason"]: round(sample.value)
            for sample in await _samples(gateway)
            if sample.name == "baton_retries_total"
        }
    )


async def leaked_blocks(workers: list[Service]) -> int:
    """Blocks that are still held, or counted in no state, though nobody asks any more."""
    counts = await asyncio.gather(*(_blocks_at_rest(worker) for worker in workers))
    # The pools are alike.
    pool = max(sum(states.values()) for states in counts)
    return sum(_num_held(states) + pool - sum(states.values()) for states in counts)


async def _blocks_at_rest(worker: Service) -> dict[str, int]:
    """By state; as they are after a while where some stay held."""
    loop = asyncio.get_running_loop()
    end = loop.time() + _QUIET_SECONDS
    while True:
        states = {
            sample.labels["state"]: round(sample.value)
            for sample in await _samples(worker)
            if sample.name == "baton_blocks"
        }
        if not _num_held(states) or loop.time() > end:
            return states
        await asyncio.sleep(_POLL_SECONDS)


def _num_held(states: dict[str, int]) -> int:
    return sum(states[state] for state in _HELD)


async def _samples(service: Service) -> list[Sample]:
    text = await asyncio.to_thread(_fetch, service.page)
    return [each for family in text_string_to_metric_families(text) for each in family.samples]


def _fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=_PAGE_SECONDS) as page:
        text: str = page.read().decode()
        return text
