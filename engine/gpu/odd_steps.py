"""Steps of every kind that launches may differ by, for warming up."""

from engine.batch import SchedulerOutput
from engine.dummy_part import dummy_part
from engine.sampling_params import SamplingParams

# New tokens and tokens before them.
_ODD_SHAPES = ((33, 0), (48, 0), (1, 0), (2, 0), (33, 31), (32, 16), (17, 16), (1, 31))
# Asks for everything that logits can be adjusted by.
_ADJUSTED = SamplingParams(repetition_penalty=1.1, logit_bias={0: 1.0}, logprobs=1)


def odd_steps(max_tokens: int, max_model_len: int, block_size: int) -> list[SchedulerOutput]:
    """Each of the odd shapes that may come and all at once, and one whose logits are adjusted."""
    parts = [
        dummy_part(num_tokens, context, block_size)
        for num_tokens, context in _ODD_SHAPES
        if num_tokens <= max_tokens and num_tokens + context <= max_model_len
    ]
    steps = [SchedulerOutput((part,)) for part in parts]
    steps.append(SchedulerOutput((dummy_part(1, 0, block_size, _ADJUSTED, choices=(0, 1)),)))
    if sum(part.num_new_tokens for part in parts) <= max_tokens:
        steps.append(SchedulerOutput(tuple(parts)))
    return steps
