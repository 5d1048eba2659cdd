"""Requests that cannot be served: each gets its code, its reason and its field, and no worker."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from baton.v1 import gateway_pb2, gateway_pb2_grpc, generation_pb2
from chassis.channel import open_channel
from chassis.errors import (
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    ServiceError,
)
from chassis.status import from_rpc_error
from tests.e2e.split_client import SplitClient

GENERATE = "/baton.v1.GenerationService/Generate"
NAN = float("nan")


@pytest.fixture
async def channel(gateway: str) -> AsyncIterator[grpc.aio.Channel]:
    channel = open_channel(gateway)
    yield channel
    await channel.close()


def text(words: str = "Hello", **sampling: Any) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(
        prompt=generation_pb2.Prompt(text=words),
        sampling=generation_pb2.SamplingParams(**sampling),
    )


def ids(*token_ids: int) -> generation_pb2.GenerateRequest:
    prompt = generation_pb2.Prompt(token_ids=generation_pb2.TokenIds(ids=token_ids))
    return generation_pb2.GenerateRequest(prompt=prompt)


def chat(*roles: int) -> generation_pb2.GenerateRequest:
    messages = [generation_pb2.ChatMessage(role=role, content="Hi") for role in roles]  # type: ignore[arg-type]
    prompt = generation_pb2.Prompt(chat=generation_pb2.Chat(messages=messages))
    return generation_pb2.GenerateRequest(prompt=prompt)


SYSTEM, USER = generation_pb2.CHAT_ROLE_SYSTEM, generation_pb2.CHAT_ROLE_USER
NO_MODEL = generation_pb2.GenerateRequest(model="gpt-2", prompt=text().prompt)

BAD: dict[str, tuple[generation_pb2.GenerateRequest, type[ServiceError], str, str]] = {
    "no prompt": (
        generation_pb2.GenerateRequest(),
        InvalidArgument,
        "PROMPT_MISSING",
        "prompt",
    ),
    "empty text": (text(""), InvalidArgument, "PROMPT_EMPTY", "prompt.text"),
    "no token ids": (ids(), InvalidArgument, "PROMPT_EMPTY", "prompt.token_ids.ids"),
    "unknown token id": (
        ids(5, 99_999),
        InvalidArgument,
        "TOKEN_ID_UNKNOWN",
        "prompt.token_ids.ids[1]",
    ),
    "unknown model": (NO_MODEL, NotFound, "MODEL_UNKNOWN", "model"),
    "over the context": (
        text(max_tokens=9_000),
        InvalidArgument,
        "CONTEXT_EXCEEDED",
        "sampling.max_tokens",
    ),
    "prompt over the context": (
        text("word " * 9_000),
        InvalidArgument,
        "CONTEXT_EXCEEDED",
        "prompt",
    ),
    "10 MB of text": (
        text("x" * 10_000_000),
        InvalidArgument,
        "PROMPT_TOO_LARGE",
        "prompt.text",
    ),
    "message over the limit": (
        text("x" * 17 * 1024 * 1024),
        ResourceExhausted,
        "MESSAGE_TOO_LARGE",
        "prompt.text",
    ),
    "temperature": (
        text(temperature=NAN),
        InvalidArgument,
        "VALUE_NOT_FINITE",
        "sampling.temperature",
    ),
    "top_p": (text(top_p=1.5), InvalidArgument, "VALUE_OUT_OF_RANGE", "sampling.top_p"),
    "n": (text(n=17), InvalidArgument, "VALUE_OUT_OF_RANGE", "sampling.n"),
    "no tokens": (text(max_tokens=0), InvalidArgument, "VALUE_OUT_OF_RANGE", "sampling.max_tokens"),
    "stop": (text(stop=[""]), InvalidArgument, "STOP_INVALID", "sampling.stop[0]"),
    "no role": (chat(0), InvalidArgument, "CHAT_ROLE_INVALID", "prompt.chat.messages[0].role"),
    "unknown role": (
        chat(77),
        InvalidArgument,
        "CHAT_ROLE_INVALID",
        "prompt.chat.messages[0].role",
    ),
    "late system message": (
        chat(USER, SYSTEM, USER),
        InvalidArgument,
        "CHAT_ORDER_INVALID",
        "prompt.chat.messages[1].role",
    ),
}


async def refusal(call: Any) -> ServiceError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert "x-request-id" in dict(caught.value.initial_metadata() or ())
    return from_rpc_error(caught.value)


async def num_steps(client: SplitClient) -> list[int]:
    loads = [await client.watch_until(role, lambda load: True) for role in ("prefill", "decode")]
    return [response.load.steps for response in loads]


@pytest.mark.parametrize("case", BAD)
async def test_a_bad_request_is_refused_by_its_field(
    channel: grpc.aio.Channel, client: SplitClient, case: str
) -> None:
    request, kind, reason, field = BAD[case]
    before = await num_steps(client)
    error = await refusal(gateway_pb2_grpc.GenerationServiceStub(channel).Generate(request))
    assert (type(error), error.reason) == (kind, reason)
    assert field in [violation.field for violation in error.violations]
    assert await num_steps(client) == before


async def test_text_that_is_no_utf8_is_refused_by_its_field(channel: grpc.aio.Channel) -> None:
    # GenerateRequest{prompt: {text: "\xff\xfe"}}, which no stub would write.
    raw = channel.unary_unary(GENERATE, lambda data: data, gateway_pb2.GenerateResponse.FromString)
    error = await refusal(raw(b"\x12\x04\x0a\x02\xff\xfe"))
    assert isinstance(error, InvalidArgument)
    assert [violation.field for violation in error.violations] == ["prompt.text"]


async def test_a_deadline_in_the_past_costs_no_worker_time(
    channel: grpc.aio.Channel, client: SplitClient
) -> None:
    before = await num_steps(client)
    stub = gateway_pb2_grpc.GenerationServiceStub(channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Generate(text(max_tokens=4), timeout=0.0001)
    assert isinstance(from_rpc_error(caught.value), DeadlineExceeded)
    assert await num_steps(client) == before
