"""What Prefill and Submit both say about an attempt: one converter for both legs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from baton.v1.decode_pb2 import Submit
from baton.v1.generation_pb2 import SamplingParams as SamplingParamsPb
from baton.v1.prefill_pb2 import PrefillRequest
from chassis.complaints import Complaints
from chassis.reasons import Reason
from chassis.sampling_ranges import MAX_CHOICES, check_sampling, check_token_ids
from engine.block_hash import hash_blocks
from engine.sampling_params import SamplingParams

ID_BYTES = 16

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

    @property
    def continues(self) -> bool:
        """Whether it goes on with an answer that has begun (protocol 5.3)."""
        return len(self.token_ids) > self.num_prompt_tokens

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
        complaints = Complaints()
        _check_prompt(complaints, message, token_ids, limits)
        _check_choices(complaints, choices)
        check_sampling(complaints, message.sampling, limits.vocab_size)
        check_token_ids(complaints, "eos_token_ids", message.eos_token_ids, limits.vocab_size)
        _check_lengths(complaints, len(token_ids), message.num_prompt_tokens, params, limits)
        complaints.raise_any()
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


def _check_prompt(
    complaints: Complaints, message: LegPb, token_ids: Sequence[int], limits: Limits
) -> None:
    if len(message.attempt_id) != ID_BYTES:
        text = f"{len(message.attempt_id)} bytes, not {ID_BYTES}"
        complaints.add("ATTEMPT_ID_INVALID", "attempt_id", text)
    if not token_ids:
        complaints.add(Reason.PROMPT_EMPTY, "token_ids", "empty")
    elif (largest := max(token_ids)) >= limits.vocab_size:
        text = f"{largest} is not below the vocabulary size {limits.vocab_size}"
        complaints.add(Reason.TOKEN_ID_UNKNOWN, "token_ids", text)
    if not 1 <= message.num_prompt_tokens <= max(1, len(token_ids)):
        text = f"{message.num_prompt_tokens} is not in [1, {len(token_ids)}]"
        complaints.add("PROMPT_LENGTH_INVALID", "num_prompt_tokens", text)


def _check_choices(complaints: Complaints, choices: Sequence[int]) -> None:
    distinct = len(set(choices)) == len(choices)
    if not choices or not distinct or max(choices) >= MAX_CHOICES:
        text = f"{list(choices[:MAX_CHOICES])} are not distinct indices below {MAX_CHOICES}"
        complaints.add("CHOICES_INVALID", "choices", text)


def _check_lengths(
    complaints: Complaints,
    num_tokens: int,
    num_prompt_tokens: int,
    params: SamplingParams,
    limits: Limits,
) -> None:
    context = limits.max_context_tokens
    if num_prompt_tokens + params.max_tokens > context:
        complaints.add(
            Reason.CONTEXT_EXCEEDED,
            "sampling.max_tokens",
            f"{num_prompt_tokens} prompt tokens and {params.max_tokens} more exceed the context of "
            f"{context}",
        )
    elif num_tokens - num_prompt_tokens >= params.max_tokens:
        text = f"{params.max_tokens} leaves nothing to generate"
        complaints.add("MAX_TOKENS_INVALID", "sampling.max_tokens", text)
