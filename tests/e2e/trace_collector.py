"""An OTLP collector on loopback that keeps what it is sent."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

WAIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class CollectedSpan:
    """A span as a collector sees it; ids in hex, times in ns since the epoch."""

    service: str
    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    events: tuple[str, ...]
    failed: bool


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes exports from any number of processes."""

    def __init__(self) -> None:
        self.spans: list[CollectedSpan] = []
        self._arrived = threading.Condition()

    def Export(self, request: Any, context: Any) -> trace_service_pb2.ExportTraceServiceResponse:
        with self._arrived:
            for resource in request.resource_spans:
                service = attributes(resource.resource.attributes)["service.name"]
                for scope in resource.scope_spans:
                    self.spans += [_collected(service, span) for span in scope.spans]
            self._arrived.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def wait_for(self, is_enough: Callable[[list[CollectedSpan]], bool]) -> list[CollectedSpan]:
        """All spans so far, once they are enough; fails with their names if they never are."""
        with self._arrived:
            enough = self._arrived.wait_for(lambda: is_enough(self.spans), WAIT_SECONDS)
            assert enough, sorted(span.name for span in self.spans)
            return list(self.spans)


@contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    """A collector and its endpoint."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    add_servicer: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    add_servicer(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield collector, f"http://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def attributes(pairs: Any) -> dict[str, Any]:
    """Scalar attributes by name."""

    def scalar(pair: KeyValue) -> Any:
        kind = pair.value.WhichOneof("value")
        return getattr(pair.value, kind) if kind else None

    return {pair.key: scalar(pair) for pair in pairs}


def _collected(service: str, span: Span) -> CollectedSpan:
    return CollectedSpan(
        service=service,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        name=span.name,
        kind=Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=attributes(span.attributes),
        events=tuple(event.name for event in span.events),
        failed=span.status.code == 2,
    )
