"""Fifty requests at once through gateway, prefill and decode: equal to one unsplit engine."""

import asyncio
from itertools import pairwise
from typing import TypeAlias

import pytest

from baton.client import BatonClient
from baton.v1 import generation_pb2
from baton.v1.gateway_pb2 import GeneratedChoice, GenerateResponse
from baton.v1.generation_pb2 import FinishReason
from chassis.model_store import resolve
from engine.llm_engine import Completion
from engine.request import RequestStatus
from gateway.tokenizer import Tokenizer, load_tokenizer
from tests.e2e.engine_reference import MODEL, Reference
from tests.e2e.mixed_requests import SHARED_PREFIX, MixedRequest, mixed_requests

REASONS: dict[RequestStatus, "FinishReason.ValueType"] = {
    RequestStatus.FINISHED_EOS: generation_pb2.FINISH_REASON_EOS,
    RequestStatus.FINISHED_STOP: generation_pb2.FINISH_REASON_STOP_TOKEN,
    RequestStatus.FINISHED_LENGTH: generation_pb2.FINISH_REASON_LENGTH,
}

Answers: TypeAlias = list[GenerateResponse]
Expected: TypeAlias = list[list["ExpectedChoice"]]


class ExpectedChoice:
    """What the reference's completion is to a client who asked for these stop strings."""

    def __init__(self, completion: Completion, request: MixedRequest, tokenizer: Tokenizer) -> None:
        self.token_ids = list(completion.token_ids)
        self.reason = REASONS[completion.status]
        self.logprobs = completion.logprobs
        self.stop = ""
        wordless = completion.status is not RequestStatus.FINISHED_LENGTH
        words = self.token_ids[:-1] if wordless else self.token_ids
        texts = [tokenizer.decode(words[:end], continuation=True) for end in range(len(words) + 1)]
        self.text = texts[-1]
        for num_tokens, (before, text) in enumerate(pairwise(texts), start=1):
            if num_tokens < request.sampling["min_tokens"]:
                continue
            found = _first_stop(text, len(before), request.sampling.get("stop", ()))
            if found is not None:
                start, self.stop = found
                self.text = text[:start]
                self.token_ids = self.token_ids[:num_tokens]
                self.reason = generation_pb2.FINISH_REASON_STOP_STRING
                break


def _first_stop(text: str, known: int, stops: list[str]) -> tuple[int, str] | None:
    """Where the first match that ends after ``known`` characters begins, and the stop string."""
    matches = [
        (start + len(stop), start, stop)
        for stop in stops
        for start in range(len(text))
        if text.startswith(stop, start) and start + len(stop) > known
    ]
    return min(matches)[1:] if matches else None


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(resolve(MODEL).path)


@pytest.fixture(scope="module")
def requests(tokenizer: Tokenizer) -> list[MixedRequest]:
    return mixed_requests(tokenizer)


@pytest.fixture(scope="module")
def expected(requests: list[MixedRequest], tokenizer: Tokenizer, reference: Reference) -> Expected:
    completions = reference.complete([(each.token_ids, each.sampling) for each in requests])
    return [
        [ExpectedChoice(completion, request, tokenizer) for completion in choices]
        for choices, request in zip(completions, requests, strict=True)
    ]


@pytest.fixture(scope="module")
def answers(gateway: str, requests: list[MixedRequest]) -> Answers:
    async def ask_all() -> Answers:
        async with BatonClient(gateway) as client:
            # Whoever computes the prefix at the same time as others does not find it.
            await client.generate(SHARED_PREFIX, max_tokens=1)
            asking = (client.generate(each.prompt, **each.sampling) for each in requests)
            return await asyncio.gather(*asking)

    return asyncio.run(ask_all())


def choices(answers: Answers, expected: Expected) -> list[tuple[GeneratedChoice, ExpectedChoice]]:
    return [
        pair
        for answer, wanted in zip(answers, expected, strict=True)
        for pair in zip(answer.choices, wanted, strict=True)
    ]


def test_the_requests_try_every_way_to_end(expected: Expected) -> None:
    reasons = {choice.reason for each in expected for choice in each}
    assert reasons == {*REASONS.values(), generation_pb2.FINISH_REASON_STOP_STRING}


def test_tokens_are_equal(answers: Answers, expected: Expected) -> None:
    pairs = choices(answers, expected)
    assert len(pairs) > 50
    got = [list(choice.token_ids) for choice, _ in pairs]
    assert got == [wanted.token_ids for _, wanted in pairs]


def test_texts_are_equal_and_end_before_a_stop_string(answers: Answers, expected: Expected) -> None:
    pairs = choices(answers, expected)
    assert [choice.text for choice, _ in pairs] == [wanted.text for _, wanted in pairs]


def test_finish_reasons_are_equal(answers: Answers, expected: Expected) -> None:
    for choice, wanted in choices(answers, expected):
        finish = choice.finish
        assert (finish.reason, finish.stop) == (wanted.reason, wanted.stop)
        has_token = wanted.reason in (
            generation_pb2.FINISH_REASON_EOS,
            generation_pb2.FINISH_REASON_STOP_TOKEN,
        )
        assert finish.HasField("stop_token_id") == has_token
        assert not has_token or finish.stop_token_id == wanted.token_ids[-1]


def test_log_probabilities_are_equal_to_the_bit(answers: Answers, expected: Expected) -> None:
    num_compared = 0
    for choice, wanted in choices(answers, expected):
        assert len(choice.logprobs) == (len(wanted.token_ids) if wanted.logprobs else 0)
        for got, known in zip(choice.logprobs, wanted.logprobs, strict=False):
            num_compared += 1
            assert got.chosen.token_id == known.token_id
            assert got.chosen.logprob == known.logprob
            assert [(top.token_id, top.logprob) for top in got.top] == list(known.top)
    assert num_compared > 100


def test_usage_counts_the_clients_tokens(
    answers: Answers, expected: Expected, requests: list[MixedRequest]
) -> None:
    for answer, wanted, request in zip(answers, expected, requests, strict=True):
        usage = answer.usage
        assert usage.prompt_tokens == len(request.token_ids)
        assert usage.completion_tokens == sum(len(choice.token_ids) for choice in wanted)
        # Never the whole prompt: its last token is computed anew.
        assert usage.cached_tokens < usage.prompt_tokens and usage.cached_tokens % 16 == 0


def test_prompts_that_begin_alike_share_their_kv(
    answers: Answers, requests: list[MixedRequest]
) -> None:
    num_shared = len(SHARED_PREFIX)
    cached = [
        answer.usage.cached_tokens
        for answer, request in zip(answers, requests, strict=True)
        if request.token_ids[:num_shared] == SHARED_PREFIX
    ]
    assert cached == [num_shared] * 10
