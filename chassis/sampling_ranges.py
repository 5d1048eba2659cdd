"""Sampling parameters: what each may be. Gateway and workers refuse by the same rules."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from baton.v1.generation_pb2 import SamplingParams
from chassis.complaints import Complaints
from chassis.reasons import Reason

# The numbers that have a fixed range.
RangedField: TypeAlias = Literal[
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "n",
    "logprobs",
]
MAX_CHOICES = 16
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


RANGES: dict[RangedField, Range] = {
    "temperature": Range(0, 2),
    "top_p": Range(0, 1, above_low=True),
    "min_p": Range(0, 1),
    "presence_penalty": Range(-2, 2),
    "frequency_penalty": Range(-2, 2),
    "repetition_penalty": Range(0, 2, above_low=True),
    "n": Range(1, MAX_CHOICES),
    "logprobs": Range(0, 20),
}
LOGIT_BIAS_RANGE = Range(-100, 100)


def check_sampling(complaints: Complaints, sampling: SamplingParams, vocab_size: int) -> None:
    """Adds every value that no prompt could make right; unset ones are."""
    for name, allowed in RANGES.items():
        if sampling.HasField(name):
            _check_number(complaints, f"sampling.{name}", getattr(sampling, name), allowed)
    if sampling.HasField("max_tokens"):
        _check_token_counts(complaints, sampling)
    _check_stops(complaints, sampling.stop)
    check_token_ids(complaints, "sampling.stop_token_ids", sampling.stop_token_ids, vocab_size)
    _check_logit_bias(complaints, sampling, vocab_size)


def check_token_ids(
    complaints: Complaints, field: str, token_ids: Sequence[int], vocab_size: int
) -> None:
    """Adds every token id that does not exist; or that there are more than may end a text."""
    if len(token_ids) > MAX_STOP_TOKEN_IDS:
        _add_too_many(complaints, field, len(token_ids), MAX_STOP_TOKEN_IDS)
        return
    for i, token_id in enumerate(token_ids):
        _check_token_id(complaints, f"{field}[{i}]", token_id, vocab_size)


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


def _check_stops(complaints: Complaints, stops: Sequence[str]) -> None:
    if len(stops) > MAX_STOPS:
        _add_too_many(complaints, "sampling.stop", len(stops), MAX_STOPS)
        return
    for i, stop in enumerate(stops):
        num_bytes = len(stop.encode())
        if not 0 < num_bytes <= MAX_STOP_BYTES:
            complaints.add(
                Reason.STOP_INVALID,
                f"sampling.stop[{i}]",
                f"{num_bytes} bytes; must be 1 to {MAX_STOP_BYTES}",
            )


def _check_logit_bias(complaints: Complaints, sampling: SamplingParams, vocab_size: int) -> None:
    if len(sampling.logit_bias) > MAX_LOGIT_BIASES:
        _add_too_many(complaints, "sampling.logit_bias", len(sampling.logit_bias), MAX_LOGIT_BIASES)
        return
    for token_id, bias in sorted(sampling.logit_bias.items()):
        field = f"sampling.logit_bias[{token_id}]"
        _check_token_id(complaints, field, token_id, vocab_size)
        _check_number(complaints, field, bias, LOGIT_BIAS_RANGE)


def _check_token_id(complaints: Complaints, field: str, token_id: int, vocab_size: int) -> None:
    if token_id >= vocab_size:
        complaints.add(
            Reason.TOKEN_ID_UNKNOWN,
            field,
            f"{token_id} is not below the vocabulary size {vocab_size}",
        )


def _add_too_many(complaints: Complaints, field: str, number: int, limit: int) -> None:
    complaints.add(Reason.TOO_MANY_ENTRIES, field, f"{number} are over {limit}")
