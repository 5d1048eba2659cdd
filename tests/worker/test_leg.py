"""Both legs of an attempt go through one converter, tested field by field."""

import math
from dataclasses import fields
from typing import Any

import pytest

from baton.v1.decode_pb2 import Submit
from baton.v1.generation_pb2 import SamplingParams as SamplingParamsPb
from baton.v1.prefill_pb2 import PrefillRequest
from chassis.errors import InvalidArgument
from engine.block_hash import hash_blocks
from engine.sampling_params import SamplingParams
from worker.leg import Leg, LegPb, Limits, params_from_pb

LIMITS = Limits(vocab_size=100, max_context_tokens=64, block_size=4)

EVERY_FIELD = SamplingParamsPb(
    temperature=0.5,
    top_p=0.25,
    top_k=7,
    min_p=0.125,
    seed=2**63 + 1,
    presence_penalty=0.5,
    frequency_penalty=-0.5,
    repetition_penalty=1.5,
    logit_bias={3: -2.0},
    stop_token_ids=[4, 5],
    max_tokens=9,
    min_tokens=2,
    ignore_eos=True,
    logprobs=0,
)


def make(kind: type[LegPb] = PrefillRequest, **changes: object) -> LegPb:
    values: dict[str, object] = {
        "attempt_id": bytes(16),
        "token_ids": range(10),
        "num_prompt_tokens": 8,
        "choices": [0, 2],
        "cache_salt": b"tenant",
        "sampling": EVERY_FIELD,
        "eos_token_ids": [6],
    }
    return kind(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [PrefillRequest, Submit], ids=["prefill", "decode"])
def test_both_legs_say_the_same(kind: type[LegPb]) -> None:
    leg = Leg.from_pb(make(kind), LIMITS)
    assert leg.token_ids == list(range(10))
    assert leg.num_prompt_tokens == 8
    assert leg.choices == (0, 2)
    assert leg.params.eos_token_ids == {6}
    assert leg.block_hashes == hash_blocks(range(10), 4, b"tenant")


def test_every_sampling_field_arrives_in_the_engine() -> None:
    assert params_from_pb(EVERY_FIELD, 50, [6]) == SamplingParams(
        temperature=0.5,
        top_p=0.25,
        top_k=7,
        min_p=0.125,
        seed=2**63 + 1,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.5,
        logit_bias={3: -2.0},
        stop_token_ids=frozenset({4, 5}),
        eos_token_ids=frozenset({6}),
        max_tokens=9,
        min_tokens=2,
        ignore_eos=True,
        logprobs=0,
    )


def test_no_sampling_field_of_the_engine_is_left_at_its_default() -> None:
    ours, default = params_from_pb(EVERY_FIELD, 50, [6]), SamplingParams()
    same = [
        each.name
        for each in fields(ours)
        if getattr(ours, each.name) == getattr(default, each.name)
    ]
    assert same == []


def test_unset_fields_take_the_defaults_and_what_the_context_leaves() -> None:
    assert params_from_pb(SamplingParamsPb(), 50, []) == SamplingParams(max_tokens=50)


@pytest.mark.parametrize(
    ("changes", "reason", "field"),
    [
        ({"attempt_id": b"short"}, "ATTEMPT_ID_INVALID", "attempt_id"),
        ({"token_ids": []}, "PROMPT_EMPTY", "token_ids"),
        ({"token_ids": [1] * 9 + [100]}, "TOKEN_ID_UNKNOWN", "token_ids"),
        ({"num_prompt_tokens": 0}, "PROMPT_LENGTH_INVALID", "num_prompt_tokens"),
        ({"num_prompt_tokens": 11}, "PROMPT_LENGTH_INVALID", "num_prompt_tokens"),
        ({"choices": []}, "CHOICES_INVALID", "choices"),
        ({"choices": [1, 1]}, "CHOICES_INVALID", "choices"),
        ({"choices": [16]}, "CHOICES_INVALID", "choices"),
        ({"eos_token_ids": [3, 100]}, "TOKEN_ID_UNKNOWN", "eos_token_ids[1]"),
        ({"eos_token_ids": range(65)}, "TOO_MANY_ENTRIES", "eos_token_ids"),
        ({"sampling": SamplingParamsPb(max_tokens=57)}, "CONTEXT_EXCEEDED", "sampling.max_tokens"),
        ({"sampling": SamplingParamsPb(max_tokens=2)}, "MAX_TOKENS_INVALID", "sampling.max_tokens"),
        (
            {"sampling": SamplingParamsPb(temperature=math.nan)},
            "VALUE_NOT_FINITE",
            "sampling.temperature",
        ),
        ({"sampling": SamplingParamsPb(top_p=0)}, "VALUE_OUT_OF_RANGE", "sampling.top_p"),
        ({"sampling": SamplingParamsPb(min_p=1.5)}, "VALUE_OUT_OF_RANGE", "sampling.min_p"),
        (
            {"sampling": SamplingParamsPb(repetition_penalty=0)},
            "VALUE_OUT_OF_RANGE",
            "sampling.repetition_penalty",
        ),
        ({"sampling": SamplingParamsPb(logprobs=21)}, "VALUE_OUT_OF_RANGE", "sampling.logprobs"),
        (
            {"sampling": SamplingParamsPb(stop_token_ids=[100])},
            "TOKEN_ID_UNKNOWN",
            "sampling.stop_token_ids[0]",
        ),
        (
            {"sampling": SamplingParamsPb(logit_bias={100: 1.0})},
            "TOKEN_ID_UNKNOWN",
            "sampling.logit_bias[100]",
        ),
        (
            {"sampling": SamplingParamsPb(logit_bias={1: math.inf})},
            "VALUE_NOT_FINITE",
            "sampling.logit_bias[1]",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_no_step_could_compute_is_refused_with_its_field(
    changes: dict[str, Any], reason: str, field: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Leg.from_pb(make(**changes), LIMITS)
    assert caught.value.reason == reason
    assert caught.value.violations[0].field == field
