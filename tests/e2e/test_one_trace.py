"""What a collector gets of one request: one connected tree over three processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.client import BatonClient, user
from tests.e2e.gateway_process import gateway_for
from tests.e2e.trace_collector import CollectedSpan, Collector, collecting
from tests.e2e.worker_process import running

POOL = ("--kv-memory-bytes", str(256 << 20))
# Stage, its parent, the process that tells of it, its side of a call.
TREE = {
    ("GenerateStream", "", "baton-gateway", "SERVER"),
    ("tokenize", "GenerateStream", "baton-gateway", "INTERNAL"),
    ("admission.wait", "GenerateStream", "baton-gateway", "INTERNAL"),
    ("route", "GenerateStream", "baton-gateway", "INTERNAL"),
    ("prefill leg", "GenerateStream", "baton-gateway", "CLIENT"),
    ("Prefill", "prefill leg", "baton-prefill", "SERVER"),
    ("prefill.queue", "Prefill", "baton-prefill", "INTERNAL"),
    ("prefill.compute", "Prefill", "baton-prefill", "INTERNAL"),
    ("decode leg", "GenerateStream", "baton-gateway", "CLIENT"),
    ("decode.queue", "decode leg", "baton-decode", "INTERNAL"),
    ("kv.pull", "decode leg", "baton-decode", "INTERNAL"),
    ("decode.generate", "decode leg", "baton-decode", "INTERNAL"),
}
NUM_TOKENS = 12


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Collector, str, Path]]:
    """A collector, a gateway whose processes export to it, and the folder for files."""
    files = tmp_path_factory.mktemp("files")
    with (
        pytest.MonkeyPatch.context() as environment,
        collecting() as (collector, endpoint),
    ):
        environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        with (
            running("prefill", *POOL, trace_directory=files) as prefill,
            running("decode", *POOL, trace_directory=files) as decode,
        ):
            workers = [prefill.wait_ready()], [decode.wait_ready()]
            with gateway_for(*workers, files) as address:
                yield collector, address, files


@pytest.fixture
async def spans(stack: tuple[Collector, str, Path]) -> dict[str, CollectedSpan]:
    """The spans of one request, by name, once all of them have come."""
    collector, address, _ = stack
    async with BatonClient(address) as client:
        async for message in client.stream(
            [user("Count to ten.")], temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True
        ):
            request_id = message.summary.request_id

    def of_request(found: list[CollectedSpan]) -> list[CollectedSpan]:
        return [span for span in found if span.trace_id == request_id]

    wanted = {name for name, *_ in TREE}
    found = of_request(
        collector.wait_for(lambda found: {span.name for span in of_request(found)} >= wanted)
    )
    assert len(found) == len(TREE), sorted(span.name for span in found)
    return {span.name: span for span in found}


async def test_every_stage_is_there_in_its_place(spans: dict[str, CollectedSpan]) -> None:
    names = {span.span_id: span.name for span in spans.values()}
    tree = {
        (span.name, names[span.parent_id] if span.parent_id else "", span.service, span.kind)
        for span in spans.values()
    }
    assert tree == TREE
    assert not any(span.failed for span in spans.values())


async def test_the_times_of_the_stages_fit_together(spans: dict[str, CollectedSpan]) -> None:
    root = spans["GenerateStream"]
    assert all(root.start_ns <= span.start_ns <= span.end_ns for span in spans.values())
    order = ["prefill.queue", "prefill.compute"], ["decode.queue", "kv.pull", "decode.generate"]
    for stages in order:
        starts = [spans[name].start_ns for name in stages]
        assert starts == sorted(starts)
    assert spans["prefill.compute"].end_ns <= spans["kv.pull"].end_ns
    assert spans["decode.generate"].end_ns <= root.end_ns


async def test_the_stages_say_what_they_did(spans: dict[str, CollectedSpan]) -> None:
    root = spans["GenerateStream"].attributes
    assert root["rpc.method"] == "baton.v1.GenerationService/GenerateStream"
    assert (root["gen_ai.operation.name"], root["rpc.response.status_code"]) == ("chat", "OK")
    assert root["gen_ai.usage.output_tokens"] == NUM_TOKENS
    assert root["gen_ai.usage.input_tokens"] > NUM_TOKENS
    assert set(spans["prefill.compute"].events) == set(spans["kv.pull"].events) == {"chunk"}
    generate = spans["decode.generate"].attributes
    assert generate["baton.steps"] == NUM_TOKENS - 1 and generate["baton.preemptions"] == 0
    assert 0 < generate["baton.itl.p50"] <= generate["baton.itl.p90"] <= generate["baton.itl.p99"]


async def test_what_the_hand_off_cost_is_told(spans: dict[str, CollectedSpan]) -> None:
    pull, generate = spans["kv.pull"], spans["decode.generate"]
    # From the end of computing to the end of the hand-off: reading, and then the release.
    after_computing = (pull.end_ns - spans["prefill.compute"].end_ns) / 1e9
    assert 0 <= pull.attributes["baton.exposed"] <= after_computing
    assert 0 < generate.attributes["baton.join_wait"] < (generate.end_ns - pull.start_ns) / 1e9


async def test_no_token_has_a_span_or_an_event_of_its_own(
    spans: dict[str, CollectedSpan],
) -> None:
    assert sum(len(span.events) for span in spans.values()) < NUM_TOKENS


async def test_with_a_collector_nothing_is_written_to_files(
    spans: dict[str, CollectedSpan], stack: tuple[Collector, str, Path]
) -> None:
    assert list(stack[2].iterdir()) == []
