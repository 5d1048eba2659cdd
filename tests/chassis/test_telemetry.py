"""Spans: where they go, how they hang together, and that they never hold anybody up."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from chassis import telemetry
from chassis.telemetry import SpanKind, TraceContext, extract, start_span
from tests.chassis.trace_file import facts, written
from tests.e2e.trace_collector import collecting

REMOTE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_span_is_written_with_all_it_was_told(tracing: Path) -> None:
    span = start_span(
        "kv.pull",
        kind=SpanKind.CLIENT,
        attributes={"text": "t", "whole": 1, "part": 0.5, "yes": True, "list": ["a", "b"]},
        start_ns=1_000,
    )
    span.event("chunk", {"baton.blocks": 2}, time_ns=1_500)
    span.set({"whole": 2})
    span.end(2_000)
    (seen,) = written(tracing)
    assert (seen["name"], seen["kind"]) == ("kv.pull", 3)
    assert (seen["startTimeUnixNano"], seen["endTimeUnixNano"]) == ("1000", "2000")
    assert (seen["traceId"], seen["spanId"]) == (span.trace_id, span.span_id)
    attributes = facts(seen["attributes"])
    assert attributes.pop("list") == {"values": [{"stringValue": "a"}, {"stringValue": "b"}]}
    assert attributes == {"text": "t", "whole": "2", "part": 0.5, "yes": True}
    assert [(event["name"], event["timeUnixNano"]) for event in seen["events"]] == [
        ("chunk", "1500")
    ]
    assert seen["status"] == {"code": 0} and "parentSpanId" not in seen


def test_children_hang_below_their_parent_here_and_in_other_processes(tracing: Path) -> None:
    root = start_span("root")
    here = start_span("here", parent=root)
    there = start_span("there", parent=root.context)
    told = start_span("told", parent=root.traceparent)
    for span in (told, there, here, root):
        span.end()
    parents = {span["name"]: span.get("parentSpanId") for span in written(tracing)}
    assert parents == {
        "root": None,
        "here": root.span_id,
        "there": root.span_id,
        "told": root.span_id,
    }
    assert {span.trace_id for span in (root, here, there, told)} == {root.trace_id}


@pytest.mark.parametrize("bad", ["", "nonsense", "00-" + "0" * 32 + "-b7ad6b7169203331-01"])
def test_a_malformed_parent_is_no_parent(tracing: Path, bad: str) -> None:
    span = start_span("root", parent=bad)
    span.end()
    assert "parentSpanId" not in written(tracing)[0]
    assert int(span.trace_id, 16) != 0


def test_an_exception_marks_the_span_failed(tracing: Path) -> None:
    with pytest.raises(KeyError), start_span("stage"):
        raise KeyError("k")
    (seen,) = written(tracing)
    assert seen["status"] == {"code": 2, "message": "'k'"}
    assert facts(seen["attributes"])["error.type"] == "KeyError"


def test_spans_may_come_from_any_thread_and_only_the_first_end_counts(tracing: Path) -> None:
    root = start_span("root")

    def work(index: int) -> None:
        span = start_span(f"work {index}", parent=root, start_ns=index)
        span.end(10)
        span.end(20)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(100)))
    root.end()
    spans = written(tracing)
    assert len(spans) == 101
    assert {s["endTimeUnixNano"] for s in spans if s["name"] != "root"} == {"10"}


def test_metadata_carries_the_context_both_ways() -> None:
    context = extract([("other", "x"), ("traceparent", REMOTE), ("tracestate", "a=b")])
    assert context == TraceContext(REMOTE, "a=b")
    child = dict(start_span("child", parent=context).metadata())
    assert (
        child["tracestate"] == "a=b" and child["traceparent"].split("-")[1] == REMOTE.split("-")[1]
    )
    assert extract([("traceparent", "nonsense")]) is None


@pytest.mark.parametrize("how", ["disabled", "no exporter", "never set up"])
def test_without_tracing_requests_have_ids_all_the_same(
    monkeypatch: pytest.MonkeyPatch, trace_dir: Path, how: str
) -> None:
    if how == "disabled":
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    if how == "no exporter":
        monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    if how != "never set up":
        telemetry.setup("gateway")
    root, other = start_span("root"), start_span("root")
    child = start_span("child", parent=root)
    ids = [span.trace_id for span in (root, other)]
    assert child.trace_id == root.trace_id and len(set(ids)) == 2 and "0" * 32 not in ids
    child.event("e")
    child.end()
    telemetry.shutdown()
    assert not trace_dir.exists()


def test_the_sampler_of_the_environment_decides(
    monkeypatch: pytest.MonkeyPatch, trace_dir: Path
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    telemetry.setup("gateway")
    start_span("own").end()
    start_span("sampled by the caller", parent=REMOTE).end()
    assert [span["name"] for span in written(trace_dir)] == ["sampled by the caller"]


def test_the_resource_says_who_and_the_environment_may_say_otherwise(
    monkeypatch: pytest.MonkeyPatch, trace_dir: Path
) -> None:
    def resource() -> dict[str, Any]:
        start_span("s").end()
        telemetry.shutdown()
        (path,) = trace_dir.glob("*.jsonl")
        line = json.loads(path.read_text())
        path.unlink()
        return facts(line["resourceSpans"][0]["resource"]["attributes"])

    telemetry.setup("prefill", "boot-1", tensor_parallel_size=2)
    own = resource()
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=lab")
    telemetry.setup("prefill")
    given = resource()
    assert (own["service.name"], own["service.instance.id"]) == ("baton-prefill", "boot-1")
    assert own["process.pid"] == str(os.getpid())
    assert own["baton.tensor_parallel_size"] == "2"
    assert (given["service.name"], given["deployment.environment.name"]) == ("mine", "lab")


def test_with_an_endpoint_spans_go_to_the_collector_and_to_no_file(
    monkeypatch: pytest.MonkeyPatch, trace_dir: Path
) -> None:
    with collecting() as (collector, endpoint):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        telemetry.setup("decode")
        with start_span("root") as root:
            start_span("child", parent=root).end()
        telemetry.shutdown()
        # A shutdown does not wait for a collector that takes its time.
        collector.wait_for(lambda spans: len(spans) == 2)
    assert {span.name for span in collector.spans} == {"root", "child"}
    assert {span.trace_id for span in collector.spans} == {root.trace_id}
    assert not trace_dir.exists()


TRACE_AND_END = """
import sys
from chassis import telemetry
from chassis.telemetry import start_span
telemetry.setup("decode")
for _ in range(int(sys.argv[1])):
    start_span("s").end()
telemetry.shutdown(timeout=float(sys.argv[2]))
start_span("after").end()
"""


def trace_and_end(*, num_spans: int, shutdown_timeout: float) -> None:
    """In a process of its own: what a collector does not take is tried again, with a word in the
    log, for long after the shutdown."""
    command = [sys.executable, "-c", TRACE_AND_END, str(num_spans), str(shutdown_timeout)]
    subprocess.run(command, check=True, timeout=60)


def test_a_collector_that_is_not_there_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, trace_dir: Path
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "512")
    trace_and_end(num_spans=2000, shutdown_timeout=0.1)


def test_a_collector_that_takes_nothing_is_not_waited_for_at_the_end(
    monkeypatch: pytest.MonkeyPatch, trace_dir: Path
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600")
    trace_and_end(num_spans=1, shutdown_timeout=3600)


def test_files_that_cannot_be_written_are_reported_once(
    trace_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trace_dir.write_text("a file where the folder should be")
    telemetry.setup("decode")
    for _ in range(600):
        start_span("s").end()
    telemetry.shutdown()
    assert [r.getMessage()[:20] for r in caplog.records if "traces" in r.msg] == [
        "cannot write traces:"
    ]
