"""Sampling flags on their way to the wire."""

from dataclasses import fields
from typing import Any

import pytest

from baton.v1 import generation_pb2
from batonctl.ask_options import SamplingOptions
from batonctl.errors import InputError

# One value a field, none of them the proto's own default.
EVERYTHING = SamplingOptions(
    temperature=0.5,
    top_p=0.9,
    top_k=40,
    min_p=0.05,
    seed=2**64 - 1,
    presence_penalty=-1.5,
    frequency_penalty=0.25,
    repetition_penalty=1.25,
    max_tokens=7,
    min_tokens=3,
    n=2,
    logprobs=5,
    stop=("a", "ü"),
    stop_token_ids=(1, 2),
    logit_bias=("42=-1.5", "7=100"),
    ignore_eos=True,
)


def sent(options: SamplingOptions) -> generation_pb2.SamplingParams:
    return generation_pb2.SamplingParams(**options.to_sampling())


def test_every_field_of_the_proto_has_a_flag_and_reaches_it() -> None:
    names = {field.name for field in generation_pb2.SamplingParams.DESCRIPTOR.fields}
    assert {field.name for field in fields(SamplingOptions)} == names
    params = sent(EVERYTHING)
    assert {descriptor.name for descriptor, _ in params.ListFields()} == names
    assert params.seed == 2**64 - 1
    assert list(params.stop) == ["a", "ü"]
    assert dict(params.logit_bias) == {42: -1.5, 7: 100.0}


def test_what_is_not_given_stays_unset() -> None:
    assert sent(SamplingOptions()).ListFields() == []


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k", "seed", "logprobs"])
def test_zero_is_a_value(name: Any) -> None:
    options: dict[str, Any] = {name: 0}
    assert sent(SamplingOptions(**options)).HasField(name)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (SamplingOptions(seed=-1), "seed"),
        (SamplingOptions(seed=2**64), "seed"),
        (SamplingOptions(top_k=2**32), "top_k"),
        (SamplingOptions(stop_token_ids=(-5,)), "stop_token_ids"),
        (SamplingOptions(stop=("\udcff",)), "stop"),
        (SamplingOptions(logit_bias=("42",)), "logit_bias"),
        (SamplingOptions(logit_bias=("x=1",)), "logit_bias"),
        (SamplingOptions(logit_bias=("-1=1",)), "logit_bias"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_wire_cannot_carry_names_its_field(options: SamplingOptions, field: str) -> None:
    with pytest.raises(InputError, match=field):
        options.to_sampling()
