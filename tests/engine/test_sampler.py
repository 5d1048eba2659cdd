"""What each parameter does to the tokens and their log probabilities."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.batch import Sample
from engine.request import Request
from engine.sampler import Sampler
from engine.sampling_params import SamplingParams
from tests.engine.plain_sampling import plain_draw

EOS = 4
GREEDY = SamplingParams(temperature=0.0, eos_token_ids=frozenset({EOS}))


def make_request(
    prompt: list[int], output: list[int], choices: tuple[int, ...] = (0,), **params: Any
) -> Request:
    return Request(
        request_id="request",
        token_ids=prompt + output,
        num_prompt_tokens=len(prompt),
        params=replace(GREEDY, **{"max_tokens": 100, **params}),
        choices=choices,
    )


def sample_one(logits: list[float], request: Request) -> Sample:
    ((sample,),) = Sampler().sample(torch.tensor([logits]), [request])
    return sample


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    assert sample_one([0.0, 3.0, 1.0, 3.0, 3.0], make_request([0], [])).token_id == 1


def test_logit_bias_is_added() -> None:
    request = make_request([0], [], logit_bias={2: 2.5, 0: -100.0})
    assert sample_one([4.0, 3.0, 1.0], request).token_id == 2


@pytest.mark.parametrize(
    ("output", "expected"),
    [([], 0), ([0], 1), ([0, 0, 0], 1), ([0, 1], 0)],
    ids=["unseen", "seen once", "seen often counts once", "both seen"],
)
def test_presence_penalty_is_subtracted_once(output: list[int], expected: int) -> None:
    request = make_request([0, 0, 1], output, presence_penalty=1.5)
    assert sample_one([3.0, 2.0, -9.0], request).token_id == expected


@pytest.mark.parametrize(
    ("output", "expected"), [([0], 0), ([0, 0], 1), ([0, 0, 1], 0)], ids=["once", "twice", "both"]
)
def test_frequency_penalty_is_subtracted_per_occurrence(output: list[int], expected: int) -> None:
    request = make_request([0, 0, 0], output, frequency_penalty=0.6)
    assert sample_one([3.0, 2.0, -9.0], request).token_id == expected


def test_negative_penalties_favour_what_was_said() -> None:
    request = make_request([0], [1], presence_penalty=-2.0)
    assert sample_one([3.0, 2.0, -9.0], request).token_id == 1


@pytest.mark.parametrize(
    ("prompt", "output", "logits", "expected"),
    [
        ([2], [], [3.0, 2.0, -9.0], 0),
        ([0], [], [3.0, 2.0, -9.0], 1),
        ([2], [0], [3.0, 2.0, -9.0], 1),
        ([0, 2], [], [-1.0, -1.5, -9.0], 1),
    ],
    ids=["unseen", "in the prompt", "in the output", "negative logits sink too"],
)
def test_repetition_penalty_covers_prompt_and_output(
    prompt: list[int], output: list[int], logits: list[float], expected: int
) -> None:
    request = make_request(prompt, output, repetition_penalty=2.0)
    assert sample_one(logits, request).token_id == expected


@pytest.mark.parametrize(
    ("num_output_tokens", "expected"), [(0, 1), (1, 1), (2, EOS)], ids=["first", "second", "third"]
)
def test_no_stop_before_min_tokens(num_output_tokens: int, expected: int) -> None:
    """With min_tokens 3 the third token is the first that may end the request."""
    request = make_request([9], [0] * num_output_tokens, min_tokens=3)
    assert sample_one([0.0, 1.0, 0.0, 0.0, 5.0], request).token_id == expected


def test_min_tokens_also_masks_stop_tokens_but_not_an_ignored_end_of_text() -> None:
    logits = [0.0, 1.0, 6.0, 0.0, 5.0]
    stops: dict[str, Any] = {"min_tokens": 9, "stop_token_ids": frozenset({2})}
    assert sample_one(logits, make_request([0], [], **stops)).token_id == 1
    assert sample_one(logits, make_request([0], [], **stops, ignore_eos=True)).token_id == EOS


def test_output_of_an_earlier_attempt_counts_as_output() -> None:
    """Rule 5.3: a continuation is the same request with more tokens known from the start."""
    params: dict[str, Any] = {"min_tokens": 3, "frequency_penalty": 0.6}
    continued = make_request([4], [0, 0], **params)
    assert sample_one([3.0, 2.0, -9.0, -9.0, -9.0], continued).token_id == 1


def test_draws_follow_seed_choice_and_position() -> None:
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(0))
    request = make_request([1, 2], [3], choices=(0, 1, 5), temperature=1.0, seed=12)
    (samples,) = Sampler().sample(logits.clone(), [request])
    assert [sample.choice for sample in samples] == [0, 1, 5]
    for sample in samples:
        expected = plain_draw(logits[0].tolist(), request.params, sample.choice, 3)
        assert sample.token_id == expected.token_id


def test_a_batch_of_every_kind_equals_its_rows_alone() -> None:
    logits = torch.randn(6, 400, generator=torch.Generator().manual_seed(3)) * 2
    requests = [
        make_request([1, 2], [3, 3]),
        make_request([1], [], choices=(0, 1), temperature=1.0, seed=1, logprobs=2),
        make_request([5], [6], temperature=0.7, top_k=9, seed=2, presence_penalty=1.0),
        make_request([5], [6, 7], temperature=1.0, top_p=0.5, seed=3, logit_bias={8: 5.0}),
        make_request([2], [8], logprobs=5, repetition_penalty=1.4),
        make_request([2], [], temperature=1.9, min_p=0.2, seed=4, logprobs=0),
    ]
    sampler = Sampler()
    together = sampler.sample(logits.clone(), requests)
    for row, request in enumerate(requests):
        (alone,) = sampler.sample(logits[row : row + 1].clone(), [request])
        assert [sample.token_id for sample in alone] == [
            sample.token_id for sample in together[row]
        ]


def test_logprobs_are_after_penalties_and_before_temperature() -> None:
    logits = [2.0, 1.0, 0.0, 3.0, -1.0]
    adjusted = [2.0, 1.0, 5.0, 2.5, -1.0]
    request = make_request(
        [0], [3], temperature=0.01, frequency_penalty=0.5, logit_bias={2: 5.0}, top_k=1, logprobs=3
    )
    entry = sample_one(logits, request).logprobs
    assert entry is not None
    norm = math.log(sum(map(math.exp, adjusted)))
    expected = [(token, adjusted[token] - norm) for token in (2, 3, 0)]
    assert [token for token, _ in entry.top] == [token for token, _ in expected]
    assert [value for _, value in entry.top] == pytest.approx([v for _, v in expected], abs=1e-5)
    assert (entry.token_id, entry.logprob) == pytest.approx(expected[0], abs=1e-5)


def test_as_many_alternatives_as_asked_for() -> None:
    logits = torch.randn(4, 30, generator=torch.Generator().manual_seed(0))
    requests = [make_request([0], [], logprobs=wanted) for wanted in (None, 0, 2, 20)]
    entries = [row[0].logprobs for row in Sampler().sample(logits, requests)]
    assert [None if entry is None else len(entry.top) for entry in entries] == [None, 0, 2, 20]


def test_a_token_out_of_the_top_still_has_its_logprob() -> None:
    drawn = set()
    for seed in range(20):
        request = make_request([0], [], temperature=2.0, logprobs=1, seed=seed)
        entry = sample_one([0.0, 0.1, 0.0, 0.0, 0.0], request).logprobs
        assert entry is not None
        assert entry.top[0][0] == 1
        assert (entry.logprob == entry.top[0][1]) == (entry.token_id == 1)
        drawn.add(entry.token_id)
    assert len(drawn) > 2


@pytest.mark.parametrize("penalty", [1e-38, 2.0**-149], ids=["tiny", "smallest float"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_repetition_penalty_near_zero_still_draws_a_seen_token(
    penalty: float, temperature: float
) -> None:
    request = make_request(
        [1, 2], [], repetition_penalty=penalty, temperature=temperature, logprobs=1
    )
    sample = sample_one([9.0, 50.0, -3.0, 0.0], request)
    assert sample.token_id == 1
    assert sample.logprobs is not None and sample.logprobs.logprob == 0.0
