"""How to sample: what is out of its range is refused with a reason and the field."""

import math
import re
from pathlib import Path
from typing import Any

import pytest

from baton.v1 import generation_pb2
from baton.v1.generation_pb2 import GenerateRequest, Prompt, SamplingParams
from chassis.errors import InvalidArgument
from chassis.reasons import Reason
from chassis.sampling_ranges import (
    LOGIT_BIAS_RANGE,
    MAX_LOGIT_BIASES,
    MAX_STOP_BYTES,
    MAX_STOP_TOKEN_IDS,
    MAX_STOPS,
    RANGES,
)
from gateway.model_limits import ModelLimits
from gateway.sampling import DEFAULTS
from gateway.tokenizer import Tokenizer
from gateway.validation import check_request, finish_request

PROMPT = Prompt(text="hi")


def _bad_numbers() -> list[tuple[str, float, Reason]]:
    rows = []
    for name, allowed in RANGES.items():
        is_float = name not in ("n", "logprobs")
        step = 0.01 if is_float else 1
        rows.append((name, allowed.high + step, Reason.VALUE_OUT_OF_RANGE))
        if is_float:
            below = allowed.low if allowed.above_low else allowed.low - step
            rows.append((name, below, Reason.VALUE_OUT_OF_RANGE))
            rows += [
                (name, value, Reason.VALUE_NOT_FINITE) for value in (math.nan, math.inf, -math.inf)
            ]
    return [*rows, ("n", 0, Reason.VALUE_OUT_OF_RANGE)]


@pytest.mark.parametrize(("name", "value", "reason"), _bad_numbers())
def test_a_number_out_of_its_range_is_refused(
    limits: ModelLimits, name: str, value: float, reason: Reason
) -> None:
    request = GenerateRequest(prompt=PROMPT, sampling=SamplingParams(**{name: value}))  # type: ignore[arg-type]

    with pytest.raises(InvalidArgument) as refusal:
        check_request(request, limits)

    assert refusal.value.reason == reason
    assert [violation.field for violation in refusal.value.violations] == [f"sampling.{name}"]


@pytest.mark.parametrize("name", RANGES)
def test_the_ends_of_a_range_are_in_it(limits: ModelLimits, name: Any) -> None:
    allowed = RANGES[name]
    for value in (allowed.high, allowed.low + (0.01 if allowed.above_low else 0)):
        cast = int if name in ("n", "logprobs") else float
        sampling = SamplingParams(**{name: cast(value)})  # type: ignore[arg-type]
        check_request(GenerateRequest(prompt=PROMPT, sampling=sampling), limits)


@pytest.mark.parametrize(
    ("sampling", "reason", "field"),
    [
        (SamplingParams(max_tokens=0), Reason.VALUE_OUT_OF_RANGE, "max_tokens"),
        (SamplingParams(max_tokens=8192), Reason.CONTEXT_EXCEEDED, "max_tokens"),
        (SamplingParams(max_tokens=2**32 - 1), Reason.CONTEXT_EXCEEDED, "max_tokens"),
        (SamplingParams(min_tokens=3, max_tokens=2), Reason.VALUE_OUT_OF_RANGE, "min_tokens"),
        (SamplingParams(min_tokens=8192), Reason.VALUE_OUT_OF_RANGE, "min_tokens"),
        (SamplingParams(stop=["x"] * 17), Reason.TOO_MANY_ENTRIES, "stop"),
        (SamplingParams(stop=["ok", ""]), Reason.STOP_INVALID, "stop[1]"),
        (SamplingParams(stop=["\u4f60" * 86]), Reason.STOP_INVALID, "stop[0]"),
        (SamplingParams(stop_token_ids=[0] * 65), Reason.TOO_MANY_ENTRIES, "stop_token_ids"),
        (SamplingParams(stop_token_ids=[49152]), Reason.TOKEN_ID_UNKNOWN, "stop_token_ids[0]"),
        (
            SamplingParams(logit_bias=dict.fromkeys(range(1025), 1.0)),
            Reason.TOO_MANY_ENTRIES,
            "logit_bias",
        ),
        (SamplingParams(logit_bias={49152: 1.0}), Reason.TOKEN_ID_UNKNOWN, "logit_bias[49152]"),
        (SamplingParams(logit_bias={7: 100.5}), Reason.VALUE_OUT_OF_RANGE, "logit_bias[7]"),
        (SamplingParams(logit_bias={7: math.nan}), Reason.VALUE_NOT_FINITE, "logit_bias[7]"),
    ],
    ids=lambda value: str(value).replace("\n", " ")[:30],
)
def test_bad_sampling_is_refused(
    smollm2: Tokenizer, limits: ModelLimits, sampling: SamplingParams, reason: Reason, field: str
) -> None:
    request = GenerateRequest(prompt=PROMPT, sampling=sampling)

    with pytest.raises(InvalidArgument) as refusal:
        check_request(request, limits)
        finish_request(request, smollm2, limits)

    assert refusal.value.reason == reason
    assert [violation.field for violation in refusal.value.violations] == [f"sampling.{field}"]


def test_the_largest_lists_are_taken(smollm2: Tokenizer, limits: ModelLimits) -> None:
    sampling = SamplingParams(
        stop=["x" * 256] * 16,
        stop_token_ids=[49151] * 64,
        logit_bias=dict.fromkeys(range(1024), -100.0),
        max_tokens=8191,
    )

    request = GenerateRequest(prompt=PROMPT, sampling=sampling)
    check_request(request, limits)
    finish_request(request, smollm2, limits)


def test_everything_wrong_is_said_at_once(limits: ModelLimits) -> None:
    sampling = SamplingParams(temperature=math.nan, top_p=0, n=17, stop=[""])

    with pytest.raises(
        InvalidArgument, match=r"sampling.temperature: nan .* \(and 3 more\)"
    ) as refusal:
        check_request(GenerateRequest(prompt=PROMPT, sampling=sampling), limits)

    assert [violation.field for violation in refusal.value.violations] == [
        "sampling.temperature",
        "sampling.top_p",
        "sampling.n",
        "sampling.stop[0]",
    ]


def test_ranges_and_defaults_are_those_the_proto_promises() -> None:
    proto = Path(generation_pb2.__file__).with_name("generation.proto").read_text()
    message = re.search(r"message SamplingParams \{(.*?)\n\}", proto, re.DOTALL)
    assert message is not None
    fields = re.findall(r"// ([^\n]*)\n  [\w<>, ]* (\w+) = \d+;", message[1])
    comments = {name: comment for comment, name in fields}

    for name, default in DEFAULTS.items():
        assert f"Default {default:g}." in comments[name]
    for ranged, allowed in RANGES.items():
        if ranged != "logprobs":
            assert f"in {allowed}" in comments[ranged]
    assert f"in {LOGIT_BIAS_RANGE}. At most {MAX_LOGIT_BIASES} entries" in comments["logit_bias"]
    assert f"At most {MAX_STOPS} of at most {MAX_STOP_BYTES} bytes each" in comments["stop"]
    assert f"At most {MAX_STOP_TOKEN_IDS}." in comments["stop_token_ids"]
    assert "at most 20" in comments["logprobs"]
    assert RANGES["logprobs"].high == 20
