"""The spans that the interceptor makes of calls."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from baton.v1.gateway_pb2 import GenerateResponse, GenerateStreamResponse
from baton.v1.generation_pb2 import GenerateRequest
from chassis.errors import InvalidArgument
from chassis.telemetry import current_span, start_span
from tests.chassis.conftest import Serve
from tests.chassis.trace_file import facts, written

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_a_call_is_a_server_span_of_the_callers_trace(tracing: Path, serve: Serve) -> None:
    async def generate(request: Any, context: Any) -> Any:
        start_span("inside").end()
        span = current_span()
        assert span is not None
        span.set({"gen_ai.request.model": "m"})
        return GenerateResponse()

    async with serve(generate) as served:
        await served.stub.Generate(GenerateRequest(), metadata=(("traceparent", TRACEPARENT),))
    inside, server = written(tracing)
    assert (server["name"], server["kind"]) == ("Generate", 2)
    assert server["parentSpanId"] == "b7ad6b7169203331"
    assert inside["parentSpanId"] == server["spanId"]
    assert facts(server["attributes"]) == {
        "rpc.system.name": "grpc",
        "rpc.method": "baton.v1.GenerationService/Generate",
        "rpc.response.status_code": "OK",
        "gen_ai.request.model": "m",
    }


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [(InvalidArgument("no", reason="NO"), "INVALID_ARGUMENT", 0), (KeyError(), "INTERNAL", 2)],
    ids=["the caller's fault", "our fault"],
)
async def test_a_server_span_tells_how_the_call_ended(
    tracing: Path, serve: Serve, error: Exception, code: str, status: int
) -> None:
    async def stream(request: Any, context: Any) -> Any:
        yield GenerateStreamResponse()
        raise error

    async with serve(stream=stream) as served:
        call = served.stub.GenerateStream(GenerateRequest())
        await call.read()
        await call.code()
    (seen,) = written(tracing)
    assert facts(seen["attributes"])["rpc.response.status_code"] == code
    assert seen["status"]["code"] == status


@pytest.mark.parametrize("how", ["CANCELLED", "DEADLINE_EXCEEDED"])
async def test_a_server_span_tells_a_cancel_from_a_deadline(
    tracing: Path, serve: Serve, how: str
) -> None:
    ended = asyncio.Event()

    async def stream(request: Any, context: Any) -> Any:
        try:
            yield GenerateStreamResponse()
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with serve(stream=stream) as served:
        timeout = 0.5 if how == "DEADLINE_EXCEEDED" else 60
        call = served.stub.GenerateStream(GenerateRequest(), timeout=timeout)
        await call.read()
        if how == "CANCELLED":
            call.cancel()
        await asyncio.wait_for(ended.wait(), 30)
    (seen,) = written(tracing)
    assert facts(seen["attributes"])["rpc.response.status_code"] == how


async def test_methods_that_serve_the_system_leave_no_spans(tracing: Path, serve: Serve) -> None:
    async def generate(request: Any, context: Any) -> Any:
        return GenerateResponse()

    async with serve(generate, untraced=["/baton.v1.GenerationService/"]) as served:
        call = served.stub.Generate(GenerateRequest())
        await call
        assert "x-request-id" not in dict(await call.initial_metadata())
    assert written(tracing) == []
