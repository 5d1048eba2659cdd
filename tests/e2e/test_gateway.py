"""Text in, text out, through gateway, prefill, KV transfer and decode as processes."""

from typing import Any

from baton.client import BatonClient, user
from baton.v1 import generation_pb2
from tests.e2e.prompts import prompt

QUESTION = "What is gravity? Answer in one sentence."
ANSWER = (
    "Gravity is a fundamental concept in physics that describes the force of gravity, which is a "
    "result of the curvature of spacetime caused by the presence of mass."
)


async def test_the_golden_answer_is_streamed(baton: BatonClient) -> None:
    text = ""
    num_deltas = num_tokens = 0
    async for message in baton.stream([user(QUESTION)], temperature=0, max_tokens=64):
        for delta in message.deltas:
            text += delta.text
            num_deltas += 1
            num_tokens += len(delta.token_ids)
    assert text == ANSWER
    assert num_deltas > 10
    assert message.summary.usage.completion_tokens == num_tokens


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
