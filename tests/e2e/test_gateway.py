"""Text in, text out, through gateway, prefill, KV transfer and decode as processes."""

import asyncio
from pathlib import Path
from typing import Any

from baton.client import BatonClient, user
from baton.v1 import generation_pb2
from tests.e2e.engine_reference import Reference
from tests.e2e.gateway_process import gateway_for
from tests.e2e.prompts import prompt
from tests.e2e.trace_store import TraceStore
from tests.e2e.worker_process import running

# SmolLM2-135M in float32: layers, K and V, KV heads, tokens, head size, bytes.
BLOCK_BYTES = 30 * 2 * 3 * 16 * 64 * 4
QUESTION = "What is gravity? Answer in one sentence."
ANSWER = (
    "Gravity is a fundamental concept in physics that describes the force of gravity, which is a "
    "result of the curvature of spacetime caused by the presence of mass."
)


async def test_the_golden_answer_is_streamed(baton: BatonClient) -> None:
    text = ""
    deltas = 0
    async for message in baton.stream([user(QUESTION)], temperature=0, max_tokens=64):
        for delta in message.deltas:
            text += delta.text
            deltas += 1
    assert text == ANSWER
    assert deltas > 10
    assert message.summary.usage.completion_tokens == deltas


async def test_unary_and_streamed_answers_are_equal(baton: BatonClient) -> None:
    options: dict[str, Any] = {
        "temperature": 0.8,
        "seed": 7,
        "max_tokens": 24,
        "logprobs": 2,
        "n": 2,
    }
    whole = await baton.generate("Once upon a time", **options)
    streamed: list[list[int]] = [[], []]
    texts = ["", ""]
    async for message in baton.stream("Once upon a time", **options):
        for delta in message.deltas:
            assert len(delta.logprobs) == len(delta.token_ids)
            streamed[delta.index] += delta.token_ids
            texts[delta.index] += delta.text
    assert [list(choice.token_ids) for choice in whole.choices] == streamed
    assert [choice.text for choice in whole.choices] == texts
    assert streamed[0] != streamed[1]


async def test_a_stop_string_is_cut_off_and_named(baton: BatonClient) -> None:
    whole = await baton.generate([user(QUESTION)], temperature=0, max_tokens=64)
    answer = await baton.generate([user(QUESTION)], temperature=0, max_tokens=64, stop=["fundam"])
    choice = answer.choices[0]
    assert choice.finish.reason == generation_pb2.FINISH_REASON_STOP_STRING
    assert choice.finish.stop == "fundam"
    assert whole.choices[0].text.partition("fundam")[0] == choice.text


async def test_a_repeated_prompt_is_found_in_the_prefix_cache(baton: BatonClient) -> None:
    tokens = prompt(100, seed=77)
    first = await baton.generate(tokens, max_tokens=2, temperature=0)
    again = await baton.generate(tokens, max_tokens=2, temperature=0)
    assert (first.usage.cached_tokens, again.usage.cached_tokens) == (0, 96)
    assert first.choices == again.choices
    for stage in ("prefill_compute", "time_to_first_token", "kv_transfer", "decode", "total"):
        assert getattr(first.timings, stage).ToNanoseconds() > 0


async def test_preempted_requests_lose_no_token(tmp_path: Path, reference: Reference) -> None:
    """Two requests of four blocks each on workers that have six."""
    tiny = ("--kv-memory-bytes", str((6 + 1) * BLOCK_BYTES))
    options: dict[str, Any] = {"temperature": 0.9, "top_k": 40, "seed": 3, "max_tokens": 48}
    prompts = [prompt(16, seed=seed) for seed in (40, 41)]
    with (
        running("prefill", *tiny, trace_directory=tmp_path) as prefill,
        running("decode", *tiny, trace_directory=tmp_path) as decode,
        gateway_for([prefill], [decode], tmp_path) as address,
    ):
        async with BatonClient(address) as client:
            answers = await asyncio.gather(
                *(client.generate(tokens, **options) for tokens in prompts)
            )
        retried = [
            await TraceStore(tmp_path).events(answer.request_id, "Generate", "retry")
            for answer in answers
        ]
    for answer, tokens in zip(answers, prompts, strict=True):
        assert list(answer.choices[0].token_ids) == reference.generate(tokens, **options)[0]
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (16, 48)
    assert [event.attributes["baton.reason"] for events in retried for event in events] == [
        "PREEMPTED"
    ]
