"""A small asyncio client for Baton. Needs the base install only.

    from baton.client import BatonClient, user

    async with BatonClient("127.0.0.1:7100") as client:
        answer = await client.generate("The capital of France is", max_tokens=8, temperature=0)
        print(answer.choices[0].text)
        async for message in client.stream([user("Tell me a joke.")], deadline=30):
            for delta in message.deltas:
                print(delta.text, end="", flush=True)

Answers are the messages of baton/v1/gateway.proto. A call that fails raises one of the classes of
chassis.errors, one for each status code: all are ServiceErrors, with a ``reason`` for programs
and, where the server knows, ``retry_after`` in seconds. Cancelling the task cancels the call.
"""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self, TypeAlias, TypedDict, Unpack

import grpc
import grpc.aio

from baton.v1 import gateway_pb2, gateway_pb2_grpc, generation_pb2
from chassis.channel import open_channel
from chassis.status import from_rpc_error

PromptLike: TypeAlias = str | Sequence[int] | Sequence[generation_pb2.ChatMessage]
"""Raw text, token ids, or a conversation made with ``system``, ``user`` and ``assistant``."""


class Sampling(TypedDict, total=False):
    """Arguments of ``generate`` and ``stream``; generation.proto has ranges and defaults."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: dict[int, float]
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    n: int
    logprobs: int


def system(content: str) -> generation_pb2.ChatMessage:
    """Instructions for a whole conversation; its first message."""
    return generation_pb2.ChatMessage(role=generation_pb2.CHAT_ROLE_SYSTEM, content=content)


def user(content: str) -> generation_pb2.ChatMessage:
    """What the person or program asks."""
    return generation_pb2.ChatMessage(role=generation_pb2.CHAT_ROLE_USER, content=content)


def assistant(content: str) -> generation_pb2.ChatMessage:
    """What the model answered."""
    return generation_pb2.ChatMessage(role=generation_pb2.CHAT_ROLE_ASSISTANT, content=content)


class BatonClient:
    """One connection to a gateway, for any number of calls at once.

    Create it inside a running event loop; use it as an async context manager or ``close`` it.
    ``deadline`` is in seconds from now and reaches every stage of the work.
    """

    def __init__(self, address: str = "127.0.0.1:7100", model: str = "") -> None:
        """``address``: host:port or dns:///name:port. ``model``: empty for the only one served."""
        self._channel = open_channel(address)
        self._stub = gateway_pb2_grpc.GenerationServiceStub(self._channel)
        self._model = model

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection; calls still open end as cancelled."""
        await self._channel.close()

    async def generate(
        self, prompt: PromptLike, *, deadline: float | None = None, **sampling: Unpack[Sampling]
    ) -> gateway_pb2.GenerateResponse:
        """The whole answer, once it has ended. Raises ServiceError."""
        with _typed_errors():
            return await self._stub.Generate(self._request(prompt, sampling), timeout=deadline)

    async def stream(
        self, prompt: PromptLike, *, deadline: float | None = None, **sampling: Unpack[Sampling]
    ) -> AsyncGenerator[gateway_pb2.GenerateStreamResponse, None]:
        """The answer as it is generated; only the last message has ``summary``.

        Raises ServiceError. To stop early, wrap it in ``contextlib.aclosing``: breaking out of the
        loop alone leaves the call to the garbage collector.
        """
        call = self._stub.GenerateStream(self._request(prompt, sampling), timeout=deadline)
        try:
            with _typed_errors():
                async for message in call:
                    yield message
        finally:
            call.cancel()

    async def tokenize(self, prompt: PromptLike, *, deadline: float | None = None) -> list[int]:
        """The prompt's token ids, exactly as ``generate`` would use them. Raises ServiceError."""
        request = gateway_pb2.TokenizeRequest(model=self._model, prompt=_prompt(prompt))
        with _typed_errors():
            return list((await self._stub.Tokenize(request, timeout=deadline)).token_ids)

    async def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        deadline: float | None = None,
    ) -> str:
        """The text of some tokens. Raises ServiceError."""
        request = gateway_pb2.DetokenizeRequest(
            model=self._model, token_ids=token_ids, skip_special_tokens=skip_special_tokens
        )
        with _typed_errors():
            return (await self._stub.Detokenize(request, timeout=deadline)).text

    async def models(self, *, deadline: float | None = None) -> list[gateway_pb2.Model]:
        """The models that can be asked for. Raises ServiceError."""
        request = gateway_pb2.ListModelsRequest()
        with _typed_errors():
            return list((await self._stub.ListModels(request, timeout=deadline)).models)

    def _request(self, prompt: PromptLike, sampling: Sampling) -> generation_pb2.GenerateRequest:
        return generation_pb2.GenerateRequest(
            model=self._model,
            prompt=_prompt(prompt),
            sampling=generation_pb2.SamplingParams(**sampling),
        )


def _prompt(prompt: PromptLike) -> generation_pb2.Prompt:
    if isinstance(prompt, str):
        return generation_pb2.Prompt(text=prompt)
    messages = [part for part in prompt if isinstance(part, generation_pb2.ChatMessage)]
    if messages:
        return generation_pb2.Prompt(chat=generation_pb2.Chat(messages=messages))
    token_ids = [part for part in prompt if isinstance(part, int)]
    return generation_pb2.Prompt(token_ids=generation_pb2.TokenIds(ids=token_ids))


@contextmanager
def _typed_errors() -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error
