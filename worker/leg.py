"""What Prefill and Submit both say about an attempt: one converter for both legs."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from baton.v1.decode_pb2 import Submit
from baton.v1.generation_pb2 import SamplingParams as SamplingParamsPb
from baton.v1.prefill_pb2 import PrefillRequest
from chassis.errors import InvalidArgument, Violation
from engine.block_hash import hash_blocks
from engine.sampling_params import SamplingParams

ID_BYTES = 16
MAX_CHOICES = 16
MAX_TOP_LOGPROBS = 20
MAX_STOP_TOKEN_IDS = 64
MAX_LOGIT_BIAS = 1024

LegPb: TypeAlias = PrefillRequest | Submit


@dataclass(frozen=True, slots=True)
class Limits:
    """What the model allows. ``max_context_tokens`` counts prompt and output together."""

    vocab_size: int
    max_context_tokens: int
    block_size: int


@dataclass(frozen=True, slots=True)
class Leg:
    """One leg, checked: no step of the engine can fail for what it says."""

    attempt_id: bytes
    token_ids: list[int]
    num_prompt_tokens: int
    choices: tuple[int, ...]
    params: SamplingParams
    cache_salt: bytes
    block_hashes: list[bytes]

    @classmethod
    def from_pb(cls, message: LegPb, limits: Limits) -> "Leg":
        """Raises InvalidArgument with one violation per wrong field."""
        token_ids = list(message.token_ids)
        params = params_from_pb(
            message.sampling,
            limits.max_context_tokens - message.num_prompt_tokens,
            message.eos_token_ids,
        )
        choices = tuple(message.choices)
        wrong = [
            *_check_prompt(message, token_ids, limits),
            *_check_choices(choices),
            *_check_params(params, limits),
            *_check_eos(params, limits),
            *_check_lengths(len(token_ids), message.num_prompt_tokens, params, limits),
        ]
        if wrong:
            first = wrong[0]
            raise InvalidArgument(
                f"{first.violation.field}: {first.violation.description}",
                reason=first.reason,
                violations=[each.violation for each in wrong],
            )
        return cls(
            attempt_id=message.attempt_id,
            token_ids=token_ids,
            num_prompt_tokens=message.num_prompt_tokens,
            choices=choices,
            params=params,
            cache_salt=message.cache_salt,
            block_hashes=hash_blocks(token_ids, limits.block_size, message.cache_salt),
        )


def params_from_pb(
    message: SamplingParamsPb, max_tokens_left: int, eos_token_ids: Iterable[int]
) -> SamplingParams:
    """The engine's form; unset fields take the defaults that generation.proto states.

    ``max_tokens_left`` is what the context leaves for output, the default of ``max_tokens``. Stop
    strings stay at the gateway, and so does ``n``: a leg names its choices.
    """
    default = SamplingParams()
    return SamplingParams(
        temperature=message.temperature if message.HasField("temperature") else default.temperature,
        top_p=message.top_p if message.HasField("top_p") else default.top_p,
        top_k=message.top_k,
        min_p=message.min_p,
        seed=message.seed,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=message.repetition_penalty
        if message.HasField("repetition_penalty")
        else default.repetition_penalty,
        logit_bias=dict(message.logit_bias),
        stop_token_ids=frozenset(message.stop_token_ids),
        eos_token_ids=frozenset(eos_token_ids),
        max_tokens=message.max_tokens if message.HasField("max_tokens") else max_tokens_left,
        min_tokens=message.min_tokens,
        ignore_eos=message.ignore_eos,
        logprobs=message.logprobs if message.HasField("logprobs") else None,
    )


@dataclass(frozen=True, slots=True)
class _Wrong:
    reason: str
    violation: Violation


def _wrong(reason: str, field: str, description: str) -> _Wrong:
    return _Wrong(reason, Violation(field, description))


def _check_prompt(message: LegPb, token_ids: Sequence[int], limits: Limits) -> list[_Wrong]:
    found = []
    if len(message.attempt_id) != ID_BYTES:
        length = len(message.attempt_id)
        found.append(_wrong("ATTEMPT_ID_INVALID", "attempt_id", f"{length} bytes, not {ID_BYTES}"))
    if not token_ids:
        found.append(_wrong("PROMPT_EMPTY", "token_ids", "empty"))
    elif (largest := max(token_ids)) >= limits.vocab_size:
        text = f"token {largest} is not below the vocabulary size {limits.vocab_size}"
        found.append(_wrong("TOKEN_ID_UNKNOWN", "token_ids", text))
    if not 1 <= message.num_prompt_tokens <= max(1, len(token_ids)):
        text = f"{message.num_prompt_tokens} is not in [1, {len(token_ids)}]"
        found.append(_wrong("PROMPT_LENGTH_INVALID", "num_prompt_tokens", text))
    return found


def _check_choices(choices: Sequence[int]) -> list[_Wrong]:
    distinct = len(set(choices)) == len(choices)
    if choices and distinct and max(choices) < MAX_CHOICES:
        return []
    text = f"{list(choices[:MAX_CHOICES])} are not distinct indices below {MAX_CHOICES}"
    return [_wrong("CHOICES_INVALID", "choices", text)]


def _check_params(params: SamplingParams, limits: Limits) -> list[_Wrong]:
    # Named as in the proto. A comparison with NaN is false, so NaN is out of every range.
    ranges = (
        ("temperature", params.temperature, 0.0, 2.0),
        ("top_p", params.top_p, math.ulp(0.0), 1.0),
        ("min_p", params.min_p, 0.0, 1.0),
        ("presence_penalty", params.presence_penalty, -2.0, 2.0),
        ("frequency_penalty", params.frequency_penalty, -2.0, 2.0),
        ("repetition_penalty", params.repetition_penalty, math.ulp(0.0), 2.0),
        ("logprobs", params.logprobs or 0, 0, MAX_TOP_LOGPROBS),
        ("stop_token_ids", len(params.stop_token_ids), 0, MAX_STOP_TOKEN_IDS),
        ("logit_bias", len(params.logit_bias), 0, MAX_LOGIT_BIAS),
    )
    found = [
        _wrong("SAMPLING_OUT_OF_RANGE", f"sampling.{name}", f"{value} is not in [{low}, {high}]")
        for name, value, low, high in ranges
        if not low <= value <= high
    ]
    for token_id, bias in params.logit_bias.items():
        if token_id >= limits.vocab_size or not -100.0 <= bias <= 100.0:
            text = f"{bias} for token {token_id}"
            found.append(_wrong("SAMPLING_OUT_OF_RANGE", "sampling.logit_bias", text))
            break
    return found


def _check_eos(params: SamplingParams, limits: Limits) -> list[_Wrong]:
    if len(params.eos_token_ids) > MAX_STOP_TOKEN_IDS:
        text = f"{len(params.eos_token_ids)} are over {MAX_STOP_TOKEN_IDS}"
        return [_wrong("TOO_MANY_ENTRIES", "eos_token_ids", text)]
    if (largest := max(params.eos_token_ids, default=0)) >= limits.vocab_size:
        text = f"token {largest} is not below the vocabulary size {limits.vocab_size}"
        return [_wrong("TOKEN_ID_UNKNOWN", "eos_token_ids", text)]
    return []


def _check_lengths(
    num_tokens: int, num_prompt_tokens: int, params: SamplingParams, limits: Limits
) -> list[_Wrong]:
    context = limits.max_context_tokens
    if num_prompt_tokens + params.max_tokens > context:
        text = (
            f"{num_prompt_tokens} prompt tokens and max_tokens {params.max_tokens} "
            f"are more than the context of {context}"
        )
        return [_wrong("CONTEXT_EXCEEDED", "sampling.max_tokens", text)]
    if num_tokens - num_prompt_tokens >= params.max_tokens:
        text = f"{params.max_tokens} leaves nothing to generate"
        return [_wrong("MAX_TOKENS_INVALID", "sampling.max_tokens", text)]
    return []
