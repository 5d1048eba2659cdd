"""Where another token may come in bfloat16 and 4-bit (protocol 6.1)."""

from collections.abc import Sequence
from dataclasses import replace

from engine.llm_engine import LLMEngine
from engine.sampling_params import SamplingParams
from tests.engine.plain_sampling import plain_draw

# Between the two best logits; for a draw, the logits with their share of the noise.
TOLERANCE = 0.25


def equal_up_to_a_near_tie(
    engine: LLMEngine, prompt: Sequence[int], params: SamplingParams, token_ids: Sequence[int]
) -> int:
    """How many of ``token_ids`` this engine also gives, alone, before the first other one.

    There the two best must be within TOLERANCE; what follows is another text.
    """
    params = replace(params, max_tokens=len(token_ids))
    ((alone,),) = engine.generate([prompt], [params])
    pairs = list(zip(alone.token_ids, token_ids, strict=True))
    first = next((place for place, (a, b) in enumerate(pairs) if a != b), len(pairs))
    if first < len(pairs):
        gap = gap_of_the_best(engine, [*prompt, *token_ids[:first]], params)
        assert gap < TOLERANCE, (first, pairs[first], gap)
    return first


def gap_of_the_best(engine: LLMEngine, token_ids: Sequence[int], params: SamplingParams) -> float:
    """How near the next token is to being another, in logits."""
    vocab_size = engine.runner.model_config.vocab_size
    ((completion,),) = engine.generate(
        [token_ids], [replace(params, max_tokens=1, logprobs=vocab_size)]
    )
    top = completion.logprobs[0].top
    if params.temperature == 0.0:
        return top[0][1] - top[1][1]
    logits = [logprob for _, logprob in sorted(top)]
    return plain_draw(logits, params, 0, len(token_ids)).margin * params.temperature
