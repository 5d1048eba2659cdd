"""Parts of steps that stand for a request's, for warming up."""

from engine.batch import ScheduledRequest
from engine.request import Request
from engine.sampling_params import SamplingParams

_PLAIN = SamplingParams()


def dummy_part(
    num_new_tokens: int,
    num_computed_tokens: int,
    block_size: int,
    params: SamplingParams = _PLAIN,
    choices: tuple[int, ...] = (0,),
) -> ScheduledRequest:
    """A request that draws, whose KV goes to the sink block."""
    num_tokens = num_new_tokens + num_computed_tokens
    request = Request(
        request_id="warm-up",
        token_ids=[0] * num_tokens,
        num_prompt_tokens=num_tokens,
        params=params,
        choices=choices,
        block_table=[0] * -(-num_tokens // block_size),
        num_computed_tokens=num_computed_tokens,
    )
    return ScheduledRequest(request, num_new_tokens)
