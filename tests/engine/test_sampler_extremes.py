"""Whatever a client may ask for, a possible token is drawn and its log probability is a number."""

import math
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.request import Request
from engine.sampler import Sampler
from engine.sampling_params import SamplingParams

SMALLEST = 2.0**-149
"""The smallest float32 above 0; parameters travel in float32."""
EOS = frozenset({0, 3})


def numbers(low: float, high: float) -> st.SearchStrategy[float]:
    """Float32 of the range, its ends often."""
    return st.sampled_from([low, high]) | st.floats(low, high, width=32)


@st.composite
def rows(draw: st.DrawFn) -> tuple[torch.Tensor, Request]:
    """Logits (vocabulary,) and a request in any state with any legal parameters."""
    vocab_size = draw(st.integers(4, 90))
    tokens = st.integers(0, vocab_size - 1)
    scale = draw(st.sampled_from([0.0, 1e-30, 1.0, 30.0, 1e4, 1e30]))
    unit = st.floats(-1, 1, width=32)
    values = draw(st.lists(unit, min_size=vocab_size, max_size=vocab_size))
    prompt = draw(st.lists(tokens, min_size=1, max_size=8))
    output = draw(st.lists(tokens, max_size=8))
    most_stops = list(range(min(vocab_size, 64)))
    max_tokens = draw(st.integers(len(output) + 1, 1 << 20))
    params = SamplingParams(
        temperature=draw(st.just(SMALLEST) | numbers(0.0, 2.0)),
        top_p=draw(numbers(SMALLEST, 1.0)),
        top_k=draw(st.sampled_from([0, 1, vocab_size, vocab_size + 1, 2**32 - 1]) | tokens),
        min_p=draw(st.just(SMALLEST) | numbers(0.0, 1.0)),
        seed=draw(st.sampled_from([0, 2**64 - 1]) | st.integers(0, 2**64 - 1)),
        presence_penalty=draw(numbers(-2.0, 2.0)),
        frequency_penalty=draw(numbers(-2.0, 2.0)),
        repetition_penalty=draw(numbers(SMALLEST, 2.0)),
        logit_bias=draw(st.dictionaries(tokens, numbers(-100.0, 100.0))),
        stop_token_ids=frozenset(draw(st.lists(tokens, max_size=64) | st.just(most_stops))),
        eos_token_ids=EOS,
        max_tokens=max_tokens,
        min_tokens=draw(st.sampled_from([0, max_tokens])),
        ignore_eos=draw(st.booleans()),
        logprobs=draw(st.sampled_from([None, 0, 1, 20])),
    )
    request = Request(
        request_id="request",
        token_ids=prompt + output,
        num_prompt_tokens=len(prompt),
        params=params,
        choices=draw(st.sampled_from([(0,), (15,), tuple(range(16))])),
    )
    return torch.tensor(values) * scale, request


@settings(deadline=None, max_examples=300)
@given(row=rows())
def test_every_legal_request_draws_a_possible_token(row: tuple[torch.Tensor, Request]) -> None:
    logits, request = row
    samples = sample(logits, request)
    assert [each.choice for each in samples] == list(request.choices)
    for each in samples:
        assert 0 <= each.token_id < logits.numel()
        assert is_allowed(each.token_id, request, logits.numel())
        if request.params.logprobs is not None:
            assert each.logprobs is not None
            assert len(each.logprobs.top) == min(request.params.logprobs, logits.numel())
            values = [each.logprobs.logprob, *(value for _, value in each.logprobs.top)]
            assert all(value <= 0.0 for value in values), "NaN is neither"
            assert math.isfinite(each.logprobs.logprob)


def sample(logits: torch.Tensor, request: Request) -> Any:
    (samples,) = Sampler().sample(logits[None].clone(), [request])
    return samples


def is_allowed(token_id: int, request: Request, vocab_size: int) -> bool:
    """Whether the token may come now; where min_tokens leaves none, all may."""
    params = request.params
    if request.num_output_tokens + 1 >= params.min_tokens:
        return True
    ends = params.stop_token_ids | (frozenset() if params.ignore_eos else params.eos_token_ids)
    return token_id not in ends or ends >= set(range(vocab_size))
