"""The client library against a gateway with scripted workers."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from baton.client import BatonClient, assistant, system, user
from baton.v1 import decode_pb2
from chassis.errors import DeadlineExceeded, InvalidArgument, ResourceExhausted
from gateway.tokenizer import Tokenizer
from tests.gateway.scripted_workers import FULL, LENGTH, MODEL, PrefillCall, SubmitCall
from tests.gateway.stage import Stage


@pytest.fixture
async def client(stage: Stage) -> AsyncIterator[BatonClient]:
    async with BatonClient(stage.address) as client:
        yield client


def answer(prefill: PrefillCall, decode: SubmitCall) -> None:
    prefill.answer(100)
    decode.tokens([101, 102], 1, LENGTH)
    decode.finished(decode_pb2.OUTCOME_COMPLETED)
    prefill.release()


async def test_an_answer_comes_whole(stage: Stage, client: BatonClient) -> None:
    call = asyncio.create_task(
        client.generate([1, 2, 3], max_tokens=3, stop=["x"], logit_bias={5: 1.0}, seed=9)
    )
    prefill, decode = await stage.legs()
    sampling = prefill.request.sampling
    assert (sampling.max_tokens, list(sampling.stop), sampling.seed) == (3, ["x"], 9)
    assert dict(sampling.logit_bias) == {5: 1.0}
    answer(prefill, decode)
    assert list((await call).choices[0].token_ids) == [100, 101, 102]


async def test_an_answer_comes_in_pieces(stage: Stage, client: BatonClient) -> None:
    stream = client.stream([1, 2, 3], max_tokens=3)
    first = asyncio.create_task(anext(stream))
    answer(*await stage.legs())
    messages = [await first, *[message async for message in stream]]
    tokens = [token for message in messages for d in message.deltas for token in d.token_ids]
    assert tokens == [100, 101, 102]
    assert [message.HasField("summary") for message in messages][-1]


@pytest.mark.parametrize(
    "prompt",
    ["Hello there", [5, 6, 7], [system("Be kind."), user("Hi"), assistant("Yes?"), user("Who?")]],
    ids=["text", "token-ids", "chat"],
)
async def test_every_form_of_prompt_is_sent(client: BatonClient, prompt: object) -> None:
    token_ids = await client.tokenize(prompt)  # type: ignore[arg-type]
    text = await client.detokenize(token_ids, skip_special_tokens=False)
    words = {"Hello there": "Hello there", "[5, 6, 7]": ""}.get(str(prompt), "Be kind.")
    assert words in text


async def test_leaving_a_stream_cancels_the_request(stage: Stage, client: BatonClient) -> None:
    async with aclosing(client.stream([1, 2, 3])) as stream:
        first = asyncio.create_task(anext(stream))
        prefill, decode = await stage.legs()
        prefill.answer(100)
        await first
    await asyncio.wait_for(prefill.over.wait(), 10)
    await asyncio.wait_for(decode.cancelled.wait(), 10)


async def test_errors_are_typed(stage: Stage, client: BatonClient) -> None:
    with pytest.raises(InvalidArgument) as bad:
        await client.generate("x", temperature=9.0)
    assert [violation.field for violation in bad.value.violations] == ["sampling.temperature"]
    call = asyncio.create_task(client.generate([1, 2, 3]))
    (await stage.legs())[1].reject(FULL)
    with pytest.raises(ResourceExhausted) as full:
        await call
    assert full.value.retry_after == 2.0


async def test_a_deadline_ends_a_call(client: BatonClient) -> None:
    with pytest.raises(DeadlineExceeded):
        async for _ in client.stream([1, 2, 3], deadline=0.1):
            pass


async def test_models_are_listed(client: BatonClient, tokenizer: Tokenizer) -> None:
    (model,) = await client.models()
    assert (model.name, model.vocabulary_size) == (MODEL.name, tokenizer.vocab_size)


def test_the_base_install_is_enough() -> None:
    heavy = "{'torch', 'engine', 'kvtransfer', 'gateway'}"
    code = f"import sys, baton.client; print(sorted({heavy} & set(sys.modules)))"
    python = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (python.returncode, python.stdout.strip()) == (0, "[]"), python.stderr
