"""What the three metrics pages show, and that their counters count what was asked and moved."""

from typing import Any

import pytest

from baton.client import BatonClient
from chassis.errors import InvalidArgument
from tests.e2e.metrics_page import read_counter, read_samples
from tests.e2e.pool_size import BLOCK_BYTES
from tests.e2e.prompts import prompt
from tests.e2e.service_process import ServiceProcess
from tests.e2e.split_client import SplitClient
from tests.e2e.worker_process import WorkerProcess

BLOCK_STATES = {"leased", "used", "reserved", "fenced", "cached", "free"}
ENGINE = {
    "baton_blocks",
    "baton_engine_steps_total",
    "baton_engine_step_seconds_bucket",
    "baton_requests_running",
    "baton_requests_waiting",
    "baton_hand_offs",
}
PAGES = {
    "gateway": {
        "gen_ai_server_time_to_first_token_seconds_bucket",
        "gen_ai_server_time_per_output_token_seconds_bucket",
        "gen_ai_server_request_duration_seconds_bucket",
        "baton_requests_total",
        "baton_queue_waiting",
        "baton_tokens_in_flight",
        "baton_tokens_in_flight_limit",
        "baton_held_bytes",
    },
    "prefill": {*ENGINE, "baton_prompt_tokens_total", "baton_cached_tokens_total"},
    "decode": {
        *ENGINE,
        "baton_generated_tokens_total",
        "baton_kv_transfer_bytes_total",
        "baton_prefill_peers",
        "baton_local_prefills_total",
        "baton_device_waits_total",
    },
}
GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}


@pytest.fixture
def services(
    gateway_process: ServiceProcess, workers: tuple[WorkerProcess, WorkerProcess]
) -> dict[str, ServiceProcess]:
    return {"gateway": gateway_process, "prefill": workers[0], "decode": workers[1]}


@pytest.fixture
def decode(workers: tuple[WorkerProcess, WorkerProcess]) -> WorkerProcess:
    return workers[1]


def bytes_moved(decode: WorkerProcess) -> float:
    return read_counter(decode, "baton_kv_transfer_bytes_total", transport="nixl")


async def test_every_page_has_its_metrics(
    baton: BatonClient, services: dict[str, ServiceProcess]
) -> None:
    await baton.generate(prompt(20, seed=300), max_tokens=3, **GREEDY)
    for name, service in services.items():
        shown = {sample.name for sample in read_samples(service)}
        assert shown >= PAGES[name]
        # A counter has one owner.
        others = set().union(*(PAGES[other] for other in PAGES if other != name)) - PAGES[name]
        assert not {metric for metric in others & shown if metric not in ENGINE}


async def test_the_histograms_resolve_a_millisecond_to_a_minute(
    services: dict[str, ServiceProcess],
) -> None:
    for name, service in services.items():
        edges: dict[str, list[float]] = {}
        for sample in read_samples(service):
            if sample.name in PAGES[name] and sample.name.endswith("_bucket"):
                edges.setdefault(sample.name, []).append(float(sample.labels["le"]))
        assert edges
        for each in edges.values():
            assert (each[0], each[-2], each[-1]) == (0.001, 60.0, float("inf"))
            assert len(each) > 20


async def test_each_request_is_counted_where_it_was_worked_on(
    baton: BatonClient, services: dict[str, ServiceProcess]
) -> None:
    watched = [
        ("gateway", "baton_requests_total", {"code": "OK", "reason": ""}),
        ("prefill", "baton_prompt_tokens_total", {}),
        ("prefill", "baton_cached_tokens_total", {}),
        ("decode", "baton_generated_tokens_total", {}),
        ("decode", "baton_kv_transfer_bytes_total", {"transport": "nixl"}),
    ]

    def read() -> list[float]:
        return [read_counter(services[where], name, **labels) for where, name, labels in watched]

    tokens = prompt(50, seed=301)
    before = read()
    first = await baton.generate(tokens, max_tokens=6, **GREEDY)
    middle = read()
    again = await baton.generate(tokens, max_tokens=6, n=2, **GREEDY)
    after = read()
    # Four blocks moved; the first token of a choice is prefill's own.
    assert difference(before, middle) == [1, 50, 0, 5, 4 * BLOCK_BYTES]
    # Three of them are known on both sides now, and only the partial one moves.
    assert difference(middle, after) == [1, 50, 48, 10, BLOCK_BYTES]
    assert (first.usage.cached_tokens, again.usage.cached_tokens) == (0, 48)


def difference(before: list[float], after: list[float]) -> list[float]:
    return [late - early for early, late in zip(before, after, strict=True)]


async def test_decode_pulls_what_it_lacks_and_usage_tells_what_prefill_knew(
    baton: BatonClient, client: SplitClient, decode: WorkerProcess
) -> None:
    """The second turn of a conversation: decode has the KV of its own answer, prefill does not."""
    opening = prompt(64, seed=302)
    answer = await baton.generate(opening, max_tokens=40, **GREEDY)
    # KV of the last token was never computed; 103 tokens make six full blocks.
    second_turn = [*opening, *answer.choices[0].token_ids, *prompt(20, seed=303)]
    await client.all_blocks_back()
    before = bytes_moved(decode)
    reply = await baton.generate(second_turn, max_tokens=3, **GREEDY)
    assert len(second_turn) == 124
    assert bytes_moved(decode) - before == (8 - 6) * BLOCK_BYTES
    assert reply.usage.cached_tokens == 64


async def test_a_single_token_moves_no_kv(baton: BatonClient, decode: WorkerProcess) -> None:
    before = bytes_moved(decode)
    answer = await baton.generate(prompt(40, seed=304), max_tokens=1, **GREEDY)
    assert answer.usage.completion_tokens == 1
    assert not answer.timings.HasField("kv_transfer")
    assert bytes_moved(decode) == before


async def test_the_blocks_of_every_pool_sum_to_its_total(
    baton: BatonClient, client: SplitClient, services: dict[str, ServiceProcess]
) -> None:
    for role in ("prefill", "decode"):
        load = (await client.watch_until(role, lambda load: True)).load
        states = {
            sample.labels["state"]: sample.value
            for sample in read_samples(services[role])
            if sample.name == "baton_blocks"
        }
        assert set(states) == BLOCK_STATES
        assert sum(states.values()) == load.blocks.total


async def test_a_refused_request_is_counted_with_its_reason(
    baton: BatonClient, gateway_process: ServiceProcess
) -> None:
    labels = {"code": "INVALID_ARGUMENT", "reason": "PROMPT_EMPTY"}
    before = read_counter(gateway_process, "baton_requests_total", **labels)
    with pytest.raises(InvalidArgument):
        await baton.generate("")
    assert read_counter(gateway_process, "baton_requests_total", **labels) == before + 1
    assert read_counter(gateway_process, "baton_requests_running") == 0
