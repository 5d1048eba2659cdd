"""Fifty mixed requests at once through the split stack equal one unsplit engine, in float32."""

import asyncio
from typing import Any

from baton.client import BatonClient
from baton.v1 import generation_pb2
from tests.e2e.engine_reference import Reference
from tests.e2e.prompts import prompt

NUM_REQUESTS = 50
SHARED = prompt(48, seed=500)

KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.9, "top_k": 40, "top_p": 0.9},
    {"temperature": 1.0, "n": 3},
    {"temperature": 0.7, "top_k": 20, "repetition_penalty": 1.2},
    {"temperature": 1.3, "min_p": 0.05, "logprobs": 2},
    {"temperature": 0.0, "frequency_penalty": 1.0, "presence_penalty": 0.5},
    {"temperature": 1.0, "logit_bias": {1234: 8.0, 4321: -100.0}, "min_tokens": 4},
    {"temperature": 0.0, "n": 2, "ignore_eos": True},
    {"temperature": 1.0, "top_p": 0.8, "stop_token_ids": [28, 30, 198, 260]},
]


def make_request(index: int) -> tuple[list[int], dict[str, Any]]:
    """Prompts of 1 to 300 tokens, a third of which share three blocks; 1 to 24 tokens of output."""
    own = prompt(1 + (index * 37) % 300, seed=500 + index)
    options = {"seed": index, "max_tokens": 1 + (index * 7) % 24, **KINDS[index % len(KINDS)]}
    options["min_tokens"] = min(options.get("min_tokens", 0), options["max_tokens"])
    return (SHARED + own if index % 3 == 0 else own), options


async def test_fifty_mixed_requests_equal_one_engine(
    baton: BatonClient, reference: Reference
) -> None:
    requests = [make_request(index) for index in range(NUM_REQUESTS)]
    answers = await asyncio.gather(
        *(baton.generate(tokens, **options) for tokens, options in requests)
    )
    for answer, (tokens, options) in zip(answers, requests, strict=True):
        expected = reference.generate(tokens, range(options.pop("n", 1)), **options)
        assert {choice.index: list(choice.token_ids) for choice in answer.choices} == expected
        assert answer.usage.prompt_tokens == len(tokens)
        assert answer.usage.completion_tokens == sum(map(len, expected.values()))
        for choice in answer.choices:
            assert choice.finish.reason == finish_of(expected[choice.index], options)


def finish_of(token_ids: list[int], options: dict[str, Any]) -> int:
    if token_ids[-1] in options.get("stop_token_ids", ()):
        return generation_pb2.FINISH_REASON_STOP_TOKEN
    if token_ids[-1] in (0, 2) and not options.get("ignore_eos"):
        return generation_pb2.FINISH_REASON_EOS
    assert len(token_ids) == options["max_tokens"]
    return generation_pb2.FINISH_REASON_LENGTH


async def test_stop_strings_cut_what_one_engine_says(
    baton: BatonClient, reference: Reference
) -> None:
    """The gateway looks for them in the text; the tokens up to there are the engine's.

    Seed 0 is left out: its 13th token wins by 1.6e-5, which is within what batch shape may move.
    """
    stop = " the"
    for seed in range(1, 5):
        text = f"Once upon a time, {seed + 2} friends"
        options: dict[str, Any] = {"temperature": 0.8, "seed": seed, "max_tokens": 40}
        tokens = await baton.tokenize(text)
        answer, whole = await asyncio.gather(
            baton.generate(text, stop=[stop], **options), baton.generate(text, **options)
        )
        expected = reference.generate(tokens, **options)[0]
        assert list(whole.choices[0].token_ids) == expected
        (choice,) = answer.choices
        assert list(choice.token_ids) == expected[: len(choice.token_ids)]
        before, found, _ = whole.choices[0].text.partition(stop)
        assert choice.text == before
        assert (choice.finish.reason == generation_pb2.FINISH_REASON_STOP_STRING) == bool(found)
