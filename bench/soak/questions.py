"""What clients ask, and what one engine in this process answers."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from baton.v1.generation_pb2 import SamplingParams as SamplingParamsPb
from bench.tiny_model import END_ID
from engine.config import EngineConfig
from engine.llm_engine import Completion, LLMEngine
from engine.request import RequestStatus
from gateway.tokenizer import Tokenizer, load_tokenizer
from worker.leg import params_from_pb

MAX_CONTEXT = 32_768
SHARED_PREFIX = 96
Sampling = Mapping[str, Any]
KINDS: tuple[Sampling, ...] = (
    {"temperature": 0.0},
    {"temperature": 0.9, "top_k": 40, "top_p": 0.9},
    {"temperature": 1.0, "n": 3},
    {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    {"temperature": 0.8, "n": 2, "presence_penalty": 0.5},
    {"temperature": 1.2, "min_p": 0.02, "min_tokens": 12},
)


@dataclass(frozen=True, slots=True)
class Choice:
    """The right answer: its text is without what stopped it."""

    token_ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt, how to sample it, and what comes of it."""

    token_ids: Sequence[int]
    sampling: Sampling
    choices: Sequence[Choice]


def questions(model: str, rng: random.Random, number: int) -> list[Question]:
    """Answered by the unsplit engine in float32; every fifth ends at a stop string."""
    shared = _prompt(rng, SHARED_PREFIX)
    asked = [_ask(rng, index, shared) for index in range(number)]
    engine = LLMEngine(EngineConfig(model, dtype="float32", kv_memory_bytes=64 << 20))
    params = [
        params_from_pb(SamplingParamsPb(**sampling), MAX_CONTEXT, (END_ID,))
        for _, sampling in asked
    ]
    completions = engine.generate(
        [prompt for prompt, _ in asked], params, [each.get("n", 1) for _, each in asked]
    )
    tokenizer = load_tokenizer(model)
    return [
        _question(rng, prompt, sampling, answers, tokenizer, stops=index % 5 == 4)
        for index, ((prompt, sampling), answers) in enumerate(zip(asked, completions, strict=True))
    ]


def _ask(rng: random.Random, index: int, shared: list[int]) -> tuple[list[int], Sampling]:
    match index % 4:
        case 0:
            prompt = shared + _prompt(rng, rng.randint(1, 40))
        case 1:
            # More than a prefill step.
            prompt = _prompt(rng, rng.randint(257, 600))
        case _:
            prompt = _prompt(rng, rng.randint(1, 120))
    max_tokens = rng.choice((1, 8, 24, 24, 60, 200))
    sampling = {"seed": index, "max_tokens": max_tokens, **KINDS[index % len(KINDS)]}
    sampling["min_tokens"] = min(sampling.get("min_tokens", 0), max_tokens)
    return prompt, {**sampling, "ignore_eos": index % 3 == 0}


def _prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(END_ID) for _ in range(length)]


def _question(
    rng: random.Random,
    prompt: list[int],
    sampling: Sampling,
    completions: Sequence[Completion],
    tokenizer: Tokenizer,
    *,
    stops: bool,
) -> Question:
    texts = [_texts(completion, tokenizer) for completion in completions]
    stop = _part_of(rng, texts[0][-1]) if stops else None
    if stop is not None:
        sampling = {**sampling, "stop": [stop]}
    min_tokens = sampling["min_tokens"]
    choices = [
        _choice(completion, each, stop, min_tokens)
        for completion, each in zip(completions, texts, strict=True)
    ]
    return Question(prompt, sampling, choices)


def _texts(completion: Completion, tokenizer: Tokenizer) -> list[str]:
    """The text after each number of tokens, from none; an end token has none."""
    words = list(completion.token_ids)
    if completion.status is not RequestStatus.FINISHED_LENGTH:
        words.pop()
    return [tokenizer.decode(words[:end], continuation=True) for end in range(len(words) + 1)]


def _part_of(rng: random.Random, text: str) -> str | None:
    """Two neighbours that are a token each, if there are any."""
    pairs = [text[place : place + 2] for place in range(len(text) - 1)]
    whole = [pair for pair in pairs if pair.isascii()]
    return rng.choice(whole) if whole else None


def _choice(
    completion: Completion, texts: Sequence[str], stop: str | None, min_tokens: int
) -> Choice:
    for num_tokens, (before, text) in enumerate(pairwise(texts), start=1):
        if stop is None or num_tokens < min_tokens:
            continue
        # Whatever ended earlier was too early to stop at.
        start = text.find(stop, max(0, len(before) + 1 - len(stop)))
        if start >= 0:
            return Choice(completion.token_ids[:num_tokens], text[:start])
    return Choice(completion.token_ids, texts[-1])
