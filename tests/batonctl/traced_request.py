"""Leaves the trace of one request as its three processes would; prints its id.

argv: service, start in ns since the epoch, and for the workers the traceparent of their leg.
"""

import subprocess
import sys
from collections.abc import Sequence

from chassis import telemetry
from chassis.telemetry import Attributes, Span, SpanKind, start_span

MS = 1_000_000
BLOCK_BYTES = 737_280
Event = tuple[str, float, Attributes]

service, begin = sys.argv[1], int(sys.argv[2])


def span(
    name: str,
    start_ms: float,
    end_ms: float,
    parent: Span | str | None = None,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    attributes: Attributes | None = None,
    events: Sequence[Event] = (),
) -> Span:
    """An ended span at a place on the request's time axis."""
    made = start_span(
        name, parent=parent, kind=kind, attributes=attributes, start_ns=begin + int(start_ms * MS)
    )
    for event, at_ms, facts in events:
        made.event(event, facts, begin + int(at_ms * MS))
    made.end(begin + int(end_ms * MS))
    return made


def gateway() -> None:
    """The root, its own stages and the two legs; then the workers."""
    facts: Attributes = {
        "rpc.method": "baton.v1.GenerationService/GenerateStream",
        "rpc.response.status_code": "OK",
        "gen_ai.request.model": "smollm2-135m",
        "gen_ai.usage.input_tokens": 512,
        "gen_ai.usage.output_tokens": 64,
    }
    root = span("GenerateStream", 0, 820, kind=SpanKind.SERVER, attributes=facts)
    span("tokenize", 0.3, 2.1, root)
    span("admission.wait", 2.1, 2.3, root)
    span("route", 2.3, 2.4, root)
    first: Event = ("first token", 170, {})
    prefill_leg = span("prefill leg", 2.5, 190, root, kind=SpanKind.CLIENT, events=[first])
    decode_leg = span("decode leg", 2.5, 818, root, kind=SpanKind.CLIENT)
    for worker, leg in (("prefill", prefill_leg), ("decode", decode_leg)):
        command = [sys.executable, __file__, worker, str(begin), leg.traceparent]
        subprocess.run(command, check=True)
    print(root.trace_id)


def prefill(traceparent: str) -> None:
    """The prefill worker's side of its leg."""
    call = span("Prefill", 3.4, 189, traceparent, kind=SpanKind.SERVER)
    span("prefill.queue", 3.5, 5, call)
    chunks: list[Event] = [
        ("chunk", at, {"baton.tokens": 256, "baton.step": step})
        for step, at in enumerate((87, 168.5))
    ]
    span("prefill.compute", 5, 169, call, events=chunks)


def decode(traceparent: str) -> None:
    """The decode worker's side of its leg."""
    span("decode.queue", 3.6, 6, traceparent)
    moved: Attributes = {
        "baton.blocks": 16,
        "baton.bytes": 16 * BLOCK_BYTES,
        "baton.transport": "nixl",
    }
    chunks: list[Event] = [
        ("chunk", at, {**moved, "baton.rate": rate}) for at, rate in ((90, 3.1e9), (175, 3.5e9))
    ]
    span("kv.pull", 6, 186, traceparent, attributes={"baton.exposed": 0.0065}, events=chunks)
    facts = {"baton.steps": 63, "baton.itl.p50": 0.0099, "baton.itl.p99": 0.0141}
    facts |= {"baton.join_wait": 0.0004}
    span("decode.generate", 186.5, 818, traceparent, attributes=facts)


telemetry.setup(service)
if service == "gateway":
    gateway()
else:
    {"prefill": prefill, "decode": decode}[service](sys.argv[3])
telemetry.shutdown()
