"""Sampling parameters: the range and the default of each."""

import math
import os
from dataclasses import dataclass
from typing import Literal, TypeAlias

from baton.v1.generation_pb2 import SamplingParams
from gateway.complaints import Complaints, refuse
from gateway.model_limits import ModelLimits
from gateway.reasons import Reason

# The numbers that have a fixed range, or a fixed default.
NumberField: TypeAlias = Literal[
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
    "n",
    "logprobs",
]
MAX_STOPS = 16
MAX_STOP_BYTES = 256
MAX_STOP_TOKEN_IDS = 64
MAX_LOGIT_BIASES = 1024


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from ``low`` to ``high``, without ``low`` where ``above_low``."""

    low: float
    high: float
    above_low: bool = False

    def __contains__(self, value: float) -> bool:
        return (self.low < value if self.above_low else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        bracket = "(" if self.above_low else "["
        return f"{bracket}{self.low:g}, {self.high:g}]"


RANGES: dict[NumberField, Range] = {
    "temperature": Range(0, 2),
    "top_p": Range(0, 1, above_low=True),
    "min_p": Range(0, 1),
    "presence_penalty": Range(-2, 2),
    "frequency_penalty": Range(-2, 2),
    "repetition_penalty": Range(0, 2, above_low=True),
    "n": Range(1, 16),
    "logprobs": Range(0, 20),
}
LOGIT_BIAS_RANGE = Range(-100, 100)
# seed, max_tokens and logprobs have no fixed default.
DEFAULTS: dict[NumberField, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_tokens": 0,
    "n": 1,
}


def check_sampling(sampling: SamplingParams, limits: ModelLimits) -> None:
    """Raises InvalidArgument with every value that no prompt could make right."""
    complaints = Complaints()
    for name, allowed in RANGES.items():
        if sampling.HasField(name):
            _check_number(complaints, f"sampling.{name}", getattr(sampling, name), allowed)
    if sampling.HasField("max_tokens"):
        _check_token_counts(complaints, sampling)
    _check_stops(complaints, sampling)
    _check_stop_token_ids(complaints, sampling, limits)
    _check_logit_bias(complaints, sampling, limits)
    complaints.raise_any()


def complete_sampling(
    sampling: SamplingParams, num_prompt_tokens: int, limits: ModelLimits
) -> SamplingParams:
    """A copy with every default resolved: the seed is minted, max_tokens is what is left.

    Raises InvalidArgument where the prompt leaves less than max_tokens, or nothing.
    """
    room = limits.max_context_tokens - num_prompt_tokens
    if room < 1:
        raise refuse(
            Reason.CONTEXT_EXCEEDED,
            "prompt",
            f"{num_prompt_tokens} tokens leave no room for output in a context of "
            f"{limits.max_context_tokens}",
        )
    complete = SamplingParams()
    complete.CopyFrom(sampling)
    for name, value in DEFAULTS.items():
        if not complete.HasField(name):
            setattr(complete, name, value)
    if not complete.HasField("seed"):
        complete.seed = int.from_bytes(os.urandom(8), "big")
    if not complete.HasField("max_tokens"):
        complete.max_tokens = room
    if complete.max_tokens > room:
        raise refuse(
            Reason.CONTEXT_EXCEEDED,
            "sampling.max_tokens",
            f"{num_prompt_tokens} prompt tokens and {complete.max_tokens} more exceed the context "
            f"of {limits.max_context_tokens}",
        )
    if complete.min_tokens > complete.max_tokens:
        raise refuse(
            Reason.VALUE_OUT_OF_RANGE,
            "sampling.min_tokens",
            f"{complete.min_tokens} is over max_tokens {complete.max_tokens}",
        )
    return complete


def _check_number(complaints: Complaints, field: str, value: float, allowed: Range) -> None:
    if not math.isfinite(value):
        complaints.add(Reason.VALUE_NOT_FINITE, field, f"{value} is not a finite number")
    elif value not in allowed:
        complaints.add(Reason.VALUE_OUT_OF_RANGE, field, f"{value:g} is not in {allowed}")


def _check_token_counts(complaints: Complaints, sampling: SamplingParams) -> None:
    if sampling.max_tokens < 1:
        complaints.add(
            Reason.VALUE_OUT_OF_RANGE, "sampling.max_tokens", "at least one token must be asked for"
        )
    elif sampling.min_tokens > sampling.max_tokens:
        complaints.add(
            Reason.VALUE_OUT_OF_RANGE,
            "sampling.min_tokens",
            f"{sampling.min_tokens} is over max_tokens {sampling.max_tokens}",
        )


def _check_stops(complaints: Complaints, sampling: SamplingParams) -> None:
    if len(sampling.stop) > MAX_STOPS:
        complaints.add(
            Reason.TOO_MANY_ENTRIES, "sampling.stop", f"{len(sampling.stop)} are over {MAX_STOPS}"
        )
        return
    for i, stop in enumerate(sampling.stop):
        num_bytes = len(stop.encode())
        if not 0 < num_bytes <= MAX_STOP_BYTES:
            complaints.add(
                Reason.STOP_INVALID,
                f"sampling.stop[{i}]",
                f"{num_bytes} bytes; must be 1 to {MAX_STOP_BYTES}",
            )


def _check_stop_token_ids(
    complaints: Complaints, sampling: SamplingParams, limits: ModelLimits
) -> None:
    if len(sampling.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        complaints.add(
            Reason.TOO_MANY_ENTRIES,
            "sampling.stop_token_ids",
            f"{len(sampling.stop_token_ids)} are over {MAX_STOP_TOKEN_IDS}",
        )
        return
    for i, token_id in enumerate(sampling.stop_token_ids):
        _check_token_id(complaints, f"sampling.stop_token_ids[{i}]", token_id, limits)


def _check_logit_bias(
    complaints: Complaints, sampling: SamplingParams, limits: ModelLimits
) -> None:
    if len(sampling.logit_bias) > MAX_LOGIT_BIASES:
        complaints.add(
            Reason.TOO_MANY_ENTRIES,
            "sampling.logit_bias",
            f"{len(sampling.logit_bias)} are over {MAX_LOGIT_BIASES}",
        )
        return
    for token_id, bias in sorted(sampling.logit_bias.items()):
        field = f"sampling.logit_bias[{token_id}]"
        _check_token_id(complaints, field, token_id, limits)
        _check_number(complaints, field, bias, LOGIT_BIAS_RANGE)


def _check_token_id(complaints: Complaints, field: str, token_id: int, limits: ModelLimits) -> None:
    if token_id >= limits.vocab_size:
        complaints.add(
            Reason.TOKEN_ID_UNKNOWN,
            field,
            f"{token_id} is not below the vocabulary size {limits.vocab_size}",
        )
