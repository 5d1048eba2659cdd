"""Every sampling parameter at its smallest and largest legal value is answered."""

import math
from collections.abc import Iterator
from typing import Any

import pytest

from baton.client import BatonClient
from bench.tiny_model import END_ID, tiny_prompt
from chassis.sampling_ranges import (
    MAX_CHOICES,
    MAX_STOP_BYTES,
    MAX_STOP_TOKEN_IDS,
    MAX_STOPS,
)
from tests.e2e.gateway_process import gateway_for
from tests.e2e.split_client import split_client
from tests.e2e.tiny_model import CASE, POOL
from tests.e2e.worker_process import WorkerProcess, running

VOCAB_SIZE: int = CASE.settings["vocab_size"]
SMALLEST = 2.0**-149
"""The smallest float32 above 0; parameters travel in float32."""
NUM_TOKENS = 6
EVERY_TOKEN = range(VOCAB_SIZE)
PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")


EXTREMES: dict[str, dict[str, Any]] = {
    "temperature 0": {"temperature": 0.0},
    "smallest temperature": {"temperature": SMALLEST},
    "highest temperature": {"temperature": 2.0},
    "smallest top_p": {"top_p": SMALLEST},
    "top_p 1": {"top_p": 1.0},
    "top_k 1": {"top_k": 1},
    "top_k of all": {"top_k": VOCAB_SIZE},
    "top_k over all": {"top_k": VOCAB_SIZE + 1},
    "largest top_k": {"top_k": 2**32 - 1},
    "smallest min_p": {"min_p": SMALLEST},
    "min_p 1": {"min_p": 1.0},
    "lowest penalties": {
        "presence_penalty": -2.0,
        "frequency_penalty": -2.0,
        "repetition_penalty": SMALLEST,
    },
    "highest penalties": dict.fromkeys(PENALTIES, 2.0),
    "every token is favoured": {"logit_bias": dict.fromkeys(EVERY_TOKEN, 100.0)},
    "every token is disliked": {"logit_bias": dict.fromkeys(EVERY_TOKEN, -100.0)},
    "the end is favoured": {"logit_bias": {END_ID: 100.0}},
    "the end is favoured and must wait": {
        "logit_bias": {END_ID: 100.0},
        "min_tokens": NUM_TOKENS,
    },
    "the end is favoured and ignored": {"logit_bias": {END_ID: 100.0}, "ignore_eos": True},
    "smallest seed": {"seed": 0},
    "largest seed": {"seed": 2**64 - 1},
    "one token": {"max_tokens": 1},
    "one token of many choices": {"max_tokens": 1, "n": MAX_CHOICES},
    "most choices": {"n": MAX_CHOICES},
    "no alternatives": {"logprobs": 0},
    "most alternatives": {"logprobs": 20},
    "most alternatives of most choices": {"logprobs": 20, "n": MAX_CHOICES},
    "most stops": {"stop": [f"{place:x}" * MAX_STOP_BYTES for place in range(MAX_STOPS)]},
    "stops that wait": {
        "stop": [chr(97 + place) for place in range(MAX_STOPS)],
        "stop_token_ids": EVERY_TOKEN[:MAX_STOP_TOKEN_IDS],
        "min_tokens": NUM_TOKENS,
    },
    "most stop tokens": {"stop_token_ids": EVERY_TOKEN[:MAX_STOP_TOKEN_IDS]},
    "everything at its smallest": {
        "temperature": SMALLEST,
        "top_p": SMALLEST,
        "top_k": 1,
        "min_p": SMALLEST,
        "presence_penalty": -2.0,
        "frequency_penalty": -2.0,
        "repetition_penalty": SMALLEST,
        "seed": 0,
        "logit_bias": dict.fromkeys(EVERY_TOKEN, -100.0),
        "logprobs": 0,
    },
    "everything at its largest": {
        "temperature": 2.0,
        "top_p": 1.0,
        "top_k": 2**32 - 1,
        "min_p": 1.0,
        **dict.fromkeys(PENALTIES, 2.0),
        "seed": 2**64 - 1,
        "logit_bias": dict.fromkeys(EVERY_TOKEN, 100.0),
        "logprobs": 20,
        "n": MAX_CHOICES,
        "min_tokens": NUM_TOKENS,
        "ignore_eos": True,
    },
}


@pytest.fixture(scope="module")
def workers(
    tiny_model: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[WorkerProcess, WorkerProcess]]:
    traces = tmp_path_factory.mktemp("traces")
    with (
        running("prefill", *POOL, model=tiny_model, trace_directory=traces) as prefill,
        running("decode", *POOL, model=tiny_model, trace_directory=traces) as decode,
    ):
        yield prefill.wait_ready(), decode.wait_ready()


@pytest.fixture(scope="module")
def address(
    tiny_model: str,
    workers: tuple[WorkerProcess, WorkerProcess],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    traces = tmp_path_factory.mktemp("traces")
    with gateway_for([workers[0]], [workers[1]], traces, "--model", tiny_model) as address:
        yield address


@pytest.mark.parametrize("sampling", EXTREMES.values(), ids=EXTREMES.keys())
async def test_a_legal_extreme_is_answered(
    address: str, workers: tuple[WorkerProcess, WorkerProcess], sampling: dict[str, Any]
) -> None:
    options = {"max_tokens": NUM_TOKENS, **sampling}
    async with BatonClient(address) as client, split_client(*workers) as watcher:
        answer = await client.generate(tiny_prompt(40, seed=1), **options)
        await watcher.all_blocks_back()
    assert len(answer.choices) == options.get("n", 1)
    for choice in answer.choices:
        assert choice.finish.reason
        assert 1 <= len(choice.token_ids) <= options["max_tokens"]
        assert len(choice.token_ids) >= options.get("min_tokens", 1)
        assert all(token_id < VOCAB_SIZE for token_id in choice.token_ids)
        assert len(choice.logprobs) == (len(choice.token_ids) if "logprobs" in options else 0)
        for each in choice.logprobs:
            assert len(each.top) == options["logprobs"]
            assert math.isfinite(each.chosen.logprob)
            assert all(top.logprob <= 0.0 for top in [each.chosen, *each.top]), "NaN is neither"
