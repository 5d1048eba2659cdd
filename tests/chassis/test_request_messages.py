"""Request messages that are too large or broken: refused by the field's name."""

from typing import Any

import grpc
import grpc.aio
import pytest

from baton.v1.gateway_pb2 import GenerateResponse
from baton.v1.generation_pb2 import GenerateRequest, Prompt, TokenIds
from chassis.channel import MESSAGE_LIMIT, open_channel
from chassis.errors import InvalidArgument, ResourceExhausted, ServiceError, Violation
from chassis.status import from_rpc_error
from tests.chassis.conftest import SERVICE, Serve, Served

GENERATE = f"/{SERVICE}/Generate"


async def echo(request: Any, context: Any) -> Any:
    return GenerateResponse(model=request.model)


async def refusal(served: Served, data: bytes) -> ServiceError:
    """The answer to a request message given as raw bytes."""
    call: Any = served.channel.unary_unary(GENERATE)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(data)
    return from_rpc_error(caught.value)


async def test_a_message_at_the_limit_passes_and_one_above_is_refused_by_field(
    serve: Serve,
) -> None:
    request = GenerateRequest(model="m", prompt=Prompt(text="x" * (MESSAGE_LIMIT - 100)))
    request.prompt.text += "x" * (MESSAGE_LIMIT - request.ByteSize())
    async with serve(echo) as served:
        assert (await served.stub.Generate(request)).model == "m"
        request.prompt.text += "x"
        got = await refusal(served, request.SerializeToString())
    assert (type(got), got.reason) == (ResourceExhausted, "MESSAGE_TOO_LARGE")
    assert str(MESSAGE_LIMIT) in got.message and got.metadata["limit_bytes"] == str(MESSAGE_LIMIT)
    assert [violation.field for violation in got.violations] == ["prompt.text"]


async def test_too_many_token_ids_are_refused_by_field(serve: Serve) -> None:
    ids = TokenIds(ids=[49_000] * 6_000_000)
    async with serve(echo) as served:
        got = await refusal(
            served, GenerateRequest(prompt=Prompt(token_ids=ids)).SerializeToString()
        )
    assert [violation.field for violation in got.violations] == ["prompt.token_ids.ids"]


async def test_a_message_far_above_the_limit_is_dropped_unread(serve: Serve) -> None:
    async with serve(echo) as served:
        got = await refusal(served, b"\0" * (4 * MESSAGE_LIMIT + 1))
    assert (type(got), got.reason) == (ResourceExhausted, "MESSAGE_TOO_LARGE")


@pytest.mark.parametrize(
    ("data", "reason", "violations"),
    [
        (b"\x0a\x02\xff\xfe", "INVALID_UTF8", [Violation("model", "is not valid UTF-8")]),
        (
            b"\x12\x04\x0a\x02\xff\xfe",
            "INVALID_UTF8",
            [Violation("prompt.text", "is not valid UTF-8")],
        ),
        (
            b"\x0a\x01m\x12\x08\x1a\x06\x0a\x04\x12\x02\xc3\x28",
            "INVALID_UTF8",
            [Violation("prompt.chat.messages.content", "is not valid UTF-8")],
        ),
        (b"\xff\xff", "REQUEST_MALFORMED", []),
        (b"\x0a\x7fm", "REQUEST_MALFORMED", []),
    ],
    ids=["model", "prompt text", "chat content", "no protobuf", "cut off"],
)
async def test_a_message_that_cannot_be_decoded_is_refused_by_field(
    serve: Serve, data: bytes, reason: str, violations: list[Violation]
) -> None:
    async with serve(echo) as served:
        got = await refusal(served, data)
    assert (type(got), got.reason) == (InvalidArgument, reason)
    assert list(got.violations) == violations


async def test_what_grpc_itself_finds_too_large_has_the_reason_and_the_limit(serve: Serve) -> None:
    large = GenerateResponse(model="x" * (MESSAGE_LIMIT + 1))

    async def answer(request: Any, context: Any) -> Any:
        return large

    boundless = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
    handler: Any = grpc.unary_unary_rpc_method_handler(
        answer, response_serializer=GenerateResponse.SerializeToString
    )
    boundless.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(SERVICE, {"Generate": handler})]
    )
    port = boundless.add_insecure_port("127.0.0.1:0")
    await boundless.start()
    async with serve(answer) as served, open_channel(f"127.0.0.1:{port}") as channel:
        for each in (served.channel, channel):
            call: Any = each.unary_unary(GENERATE)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(b"")
            got = from_rpc_error(caught.value)
            assert (type(got), got.reason) == (ResourceExhausted, "MESSAGE_TOO_LARGE")
            assert str(MESSAGE_LIMIT) in got.message
    await boundless.stop(None)
