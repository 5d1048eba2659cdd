"""A client's own trace goes on through every process, and its id is the request's."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest

from baton.v1 import gateway_pb2, gateway_pb2_grpc, generation_pb2
from chassis.channel import open_channel
from tests.e2e.pool_size import BLOCK_BYTES
from tests.e2e.prompts import prompt
from tests.e2e.trace_store import TraceStore

STAGES = (
    *("tokenize", "admission.wait", "route"),
    *("prefill leg", "Prefill", "prefill.queue", "prefill.compute"),
    *("decode leg", "decode.queue", "kv.pull", "decode.generate"),
)


class ClientSpan:
    """The span from which a client asks, as W3C trace context."""

    def __init__(self, *, sampled: bool = True) -> None:
        self.trace_id, self.span_id = os.urandom(16).hex(), os.urandom(8).hex()
        traceparent = f"00-{self.trace_id}-{self.span_id}-{'01' if sampled else '00'}"
        self.metadata = (("traceparent", traceparent),)


@pytest.fixture
async def channel(gateway: str) -> AsyncIterator[grpc.aio.Channel]:
    async with open_channel(gateway) as channel:
        yield channel


async def ask(
    channel: grpc.aio.Channel,
    seed: int,
    span: ClientSpan | None = None,
    num_tokens: int = 40,
) -> tuple[str, gateway_pb2.GenerateResponse]:
    """The request id in the initial metadata, and the answer."""
    tokens = generation_pb2.TokenIds(ids=prompt(num_tokens, seed=seed))
    request = generation_pb2.GenerateRequest(
        prompt=generation_pb2.Prompt(token_ids=tokens),
        sampling=generation_pb2.SamplingParams(temperature=0, max_tokens=4, ignore_eos=True),
    )
    stub = gateway_pb2_grpc.GenerationServiceStub(channel)
    call = stub.Generate(request, metadata=span.metadata if span is not None else ())
    metadata = dict(await call.initial_metadata())
    return str(metadata["x-request-id"]), await call


async def test_the_stages_join_the_trace_of_the_client(
    channel: grpc.aio.Channel, traces: Path
) -> None:
    span = ClientSpan()
    request_id, answer = await ask(channel, 400, span)
    assert request_id == answer.request_id == span.trace_id
    store = TraceStore(traces)
    root = await store.span(span.trace_id, "Generate")
    assert root.parent_id == span.span_id
    for stage in STAGES:
        assert (await store.span(span.trace_id, stage)).parent_id not in ("", span.span_id)


async def test_without_one_the_request_begins_a_trace(
    channel: grpc.aio.Channel, traces: Path
) -> None:
    request_id, answer = await ask(channel, 401)
    other_id, _ = await ask(channel, 402)
    assert request_id == answer.request_id != other_id
    root = await TraceStore(traces).span(request_id, "Generate")
    assert root.parent_id == ""
    assert root.attributes["baton.request.id"] == request_id


async def test_a_client_that_does_not_sample_leaves_no_spans(
    channel: grpc.aio.Channel, traces: Path
) -> None:
    span = ClientSpan(sampled=False)
    request_id, _ = await ask(channel, 403, span)
    assert request_id == span.trace_id
    # Each process exports in the order in which spans end, so its later ones come last.
    later_id, _ = await ask(channel, 404)
    store = TraceStore(traces)
    for last in ("Generate", "Prefill", "decode.generate"):
        await store.span(later_id, last)
    assert [store.find(span.trace_id, name) for name in ("Generate", *STAGES)] == [None] * 12


async def test_the_events_tell_what_each_chunk_was(channel: grpc.aio.Channel, traces: Path) -> None:
    request_id, _ = await ask(channel, 405, num_tokens=600)
    store = TraceStore(traces)
    chunks = await store.events(request_id, "prefill.compute", "chunk")
    assert [chunk.attributes["baton.tokens"] for chunk in chunks] == [256, 256, 88]
    steps = [chunk.attributes["baton.step"] for chunk in chunks]
    assert steps == list(range(steps[0], steps[0] + 3))
    reads = await store.events(request_id, "kv.pull", "chunk")
    assert sum(read.attributes["baton.blocks"] for read in reads) == 38
    for read in reads:
        facts = read.attributes
        assert facts["baton.bytes"] == facts["baton.blocks"] * BLOCK_BYTES
        assert facts["baton.transport"] == "nixl"
        assert facts["baton.rate"] > 1e6
