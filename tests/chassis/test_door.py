"""Calls that are turned away before anything of them is read."""

from pathlib import Path
from typing import Any

import grpc
import pytest

from baton.v1.gateway_pb2 import GenerateResponse
from baton.v1.generation_pb2 import GenerateRequest
from chassis.door_interceptor import Door
from chassis.errors import ResourceExhausted
from chassis.status import from_rpc_error
from tests.chassis.conftest import Serve
from tests.chassis.trace_file import facts, written

GENERATE = "/baton.v1.GenerationService/Generate"
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


def full() -> None:
    raise ResourceExhausted("full", reason="QUEUE_FULL", retry_after=2.0)


@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream"])
async def test_a_call_is_refused_whatever_it_sends(tracing: Path, serve: Serve, kind: str) -> None:
    async with serve(door=Door(frozenset({GENERATE}), full)) as served:
        call: Any = getattr(served.channel, kind)(GENERATE)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            answer = call(b"no message", metadata=(("traceparent", TRACEPARENT),))
            await (answer if kind == "unary_unary" else answer.read())
    error = from_rpc_error(caught.value)
    assert (type(error), error.reason, error.retry_after) == (ResourceExhausted, "QUEUE_FULL", 2.0)
    assert dict(caught.value.trailing_metadata() or ())["x-request-id"] == TRACE_ID
    (span,) = written(tracing)
    assert (span["name"], span["kind"], span["parentSpanId"]) == ("Generate", 2, "b7ad6b7169203331")
    assert facts(span["attributes"]) == {
        "rpc.system.name": "grpc",
        "rpc.method": GENERATE.removeprefix("/"),
        "rpc.response.status_code": "RESOURCE_EXHAUSTED",
    }


async def test_a_call_is_refused_before_its_message_is_there(serve: Serve) -> None:
    async with serve(door=Door(frozenset({GENERATE}), full)) as served:
        call: Any = served.channel.stream_unary(GENERATE)()
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_calls_pass_a_door_that_is_open_and_other_methods_every_door(serve: Serve) -> None:
    async def generate(request: Any, context: Any) -> Any:
        return GenerateResponse(model="m")

    for door in (Door(frozenset({GENERATE}), lambda: None), Door(frozenset({"/other"}), full)):
        async with serve(generate, door=door) as served:
            assert (await served.stub.Generate(GenerateRequest())).model == "m"
