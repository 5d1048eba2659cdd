"""Sampling parameters with every default resolved."""

import os
from typing import Literal, TypeAlias

from baton.v1.generation_pb2 import SamplingParams
from chassis.complaints import refuse
from chassis.reasons import Reason
from gateway.model_limits import ModelLimits

# The numbers that have a fixed default.
DefaultedField: TypeAlias = Literal[
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
    "n",
]
# seed, max_tokens and logprobs have no fixed default.
DEFAULTS: dict[DefaultedField, float] = {
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
