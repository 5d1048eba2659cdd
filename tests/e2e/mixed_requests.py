"""Fifty requests that differ in everything a client may choose."""

from dataclasses import dataclass
from typing import Any, TypeAlias

from baton.client import PromptLike, user
from gateway.tokenizer import Tokenizer
from tests.e2e.prompts import prompt

Sampling: TypeAlias = dict[str, Any]

NUM_REQUESTS = 50
# Six blocks.
SHARED_PREFIX = prompt(96, seed=700)
# Ten kinds; the index of the request makes their seeds and lengths differ.
KINDS: tuple[Sampling, ...] = (
    {"temperature": 0.0},
    {"temperature": 0.9, "top_k": 40, "top_p": 0.9},
    {"temperature": 0.0, "logprobs": 3},
    {"temperature": 1.0, "n": 3},
    {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    {"temperature": 0.7, "min_p": 0.05, "logit_bias": {28: -100.0, 30: 4.0}, "logprobs": 0},
    {"temperature": 0.0, "stop": ["e ", "\n\n", "is"], "min_tokens": 4},
    {"temperature": 0.8, "top_k": 20, "n": 2, "stop": [" the", "."], "presence_penalty": 0.5},
    {"temperature": 0.0, "stop_token_ids": [28, 30, 282], "min_tokens": 2},
    {"temperature": 1.2, "top_p": 0.8, "min_tokens": 12, "logprobs": 1},
)
QUESTIONS = (
    "What is gravity?",
    "What is the capital of France?",
    "Why is the sky blue? Answer in one sentence.",
    "Write a haiku about rain.",
    "How do I boil an egg?",
)
STORIES = (
    "Once upon a time",
    "The capital of France is",
    "In 1969, two astronauts",
    "Die Würde des Menschen ist",
    "def fibonacci(n):",
)


@dataclass(frozen=True, slots=True)
class MixedRequest:
    """What the client sends, and the tokens that its prompt stands for."""

    prompt: PromptLike
    token_ids: list[int]
    sampling: Sampling


def mixed_requests(tokenizer: Tokenizer) -> list[MixedRequest]:
    """Always the same ones; every fifth prompt is text, every fifth a conversation."""
    return [_request(index, tokenizer) for index in range(NUM_REQUESTS)]


def _request(index: int, tokenizer: Tokenizer) -> MixedRequest:
    kind, turn = index % len(KINDS), index // len(KINDS)
    sampling = {
        "seed": index,
        # One token asked for is prefill's alone; the rest end in different steps.
        "max_tokens": 1 + (index * 7) % 24,
        "ignore_eos": index % 3 == 0,
        **KINDS[kind],
    }
    sampling["min_tokens"] = min(sampling.get("min_tokens", 0), sampling["max_tokens"])
    # The turn shifts the form, so that every kind comes with every form.
    match (index + turn) % 5:
        case 0:
            return MixedRequest(STORIES[turn], tokenizer.encode(STORIES[turn]), sampling)
        case 1:
            chat = [user(QUESTIONS[turn])]
            return MixedRequest(chat, tokenizer.encode(_rendered(QUESTIONS[turn])), sampling)
        case 2:
            # Then 1 to 5 tokens of their own.
            tokens = SHARED_PREFIX + prompt(1 + turn, seed=800 + index)
        case 3:
            # From one token to more than a prefill step.
            tokens = prompt(1 + turn * 70, seed=800 + index)
        case _:
            # Around whole blocks.
            tokens = prompt(16 * (1 + turn) + kind % 3 - 1, seed=800 + index)
    return MixedRequest(tokens, tokens, sampling)


def _rendered(question: str) -> str:
    """SmolLM2's conversation of one question, as its template writes it."""
    return (
        "<|im_start|>system\n"
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    )
