"""The sampler of a GPU against the CPU's; in the interpreter without a GPU."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from engine.batch import Sample
from engine.gpu.sampler import GpuSampler, adjusted_draws, is_plain, samples
from engine.request import Request
from engine.sampler import Sampler
from engine.sampling_params import SamplingParams
from tests.engine.plain_sampling import plain_draw

VOCAB_SIZE = 999
EOS = frozenset({0, 1, 2, 3})
# Scores this close may come in another order in float32; logits of either dtype are adjusted in it.
NEAR_TIE = 2e-5
# Of log probabilities, whose sums are made in another order.
TOLERANCE = 1e-5


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def make_sampler(device: torch.device, max_sequences: int = 64) -> GpuSampler:
    return GpuSampler(VOCAB_SIZE, max_sequences, device)


def make_request(numbers: random.Random) -> Request:
    """Of random parameters, half of them as they are by default; prompts repeat few tokens."""

    def some(value: float, default: float) -> float:
        return numbers.choice((value, default))

    params = SamplingParams(
        temperature=some(numbers.uniform(0.2, 2.0), 0.0),
        top_p=some(numbers.uniform(0.1, 1.0), 1.0),
        top_k=numbers.choice((0, 1, 30)),
        seed=numbers.getrandbits(64),
        presence_penalty=some(numbers.uniform(-2, 2), 0.0),
        frequency_penalty=some(numbers.uniform(-2, 2), 0.0),
        repetition_penalty=some(numbers.choice((0.5, 1.3)), 1.0),
        logit_bias={numbers.randrange(20): numbers.uniform(-9, 9) for _ in range(3)}
        if numbers.random() < 0.5
        else {},
        stop_token_ids=frozenset({5, VOCAB_SIZE - 1}),
        eos_token_ids=EOS,
        max_tokens=100,
        min_tokens=numbers.choice((0, 3, 50)),
        ignore_eos=numbers.random() < 0.5,
        logprobs=numbers.choice((None, 0, 4, 20)),
    )
    tokens = [numbers.randrange(20) for _ in range(numbers.randrange(1, 40))]
    num_prompt_tokens = numbers.randrange(1, len(tokens) + 1)
    choices = numbers.choice(((0,), (0,), (7,), (0, 1, 5)))
    return Request("r", tokens, num_prompt_tokens, params, choices=choices)


def make_logits(number: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    """The ids that are often said, biased and forbidden are the likely ones."""
    logits = torch.randn(number, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 2
    logits[:, :20] += 4.0
    return logits.to(dtype)


def step(
    sampler: GpuSampler,
    logits: torch.Tensor,
    requests: Sequence[Request],
    last_tokens: Sequence[int],
) -> list[tuple[Sample, ...]]:
    """``requests`` may have a pending token, which only the device gets to know."""
    token_ids = sampler.draw(logits, requests)
    ranking = None
    if draws := adjusted_draws(requests):
        last = torch.tensor(last_tokens, dtype=torch.int32).to(logits.device)
        ranking = sampler.redraw(logits, last, draws, token_ids)
    drawn = token_ids.tolist()
    logprobs = {} if ranking is None else ranking.read(ranking.words.cpu().numpy(), drawn)
    return samples(requests, drawn, logprobs)


def check(actual: Sample, expected: Sample, request: Request, adjusted: torch.Tensor) -> None:
    params = request.params
    if actual.token_id != expected.token_id:
        assert params.temperature > 0.0
        values = adjusted.tolist()
        assert plain_draw(values, params, actual.choice, request.num_tokens).margin < NEAR_TIE
        return
    assert actual.choice == expected.choice
    assert (actual.logprobs is None) == (expected.logprobs is None)
    if actual.logprobs is not None and expected.logprobs is not None:
        ours, theirs = (
            [(each.token_id, each.logprob), *each.top]
            for each in (actual.logprobs, expected.logprobs)
        )
        assert [token_id for token_id, _ in ours] == [token_id for token_id, _ in theirs]
        values = [value for _, value in theirs]
        assert [value for _, value in ours] == pytest.approx(values, abs=TOLERANCE, rel=TOLERANCE)


@pytest.mark.parametrize(
    ("max_sequences", "dtype"),
    [(64, torch.float32), (64, torch.bfloat16), (3, torch.float32)],
    ids=["float32", "bfloat16", "slots that are taken away"],
)
def test_tokens_and_log_probabilities_are_those_of_the_cpu(
    max_sequences: int, dtype: torch.dtype, device: torch.device
) -> None:
    """Some of the requests are in a step, and those have a token that the host does not know yet
    if they were in the last one."""
    numbers = random.Random(max_sequences)
    sampler = make_sampler(device, max_sequences)
    truth = [make_request(numbers) for _ in range(12)]
    seen = [replace(each, token_ids=list(each.token_ids)) for each in truth]
    assert sum(not is_plain(each) for each in truth) > 6
    last: list[tuple[int, int]] = []
    for number in range(3):
        places = numbers.sample(range(len(truth)), 5)
        requests = [truth[place] for place in places]
        logits = make_logits(len(places), number, dtype)
        adjusted = logits.float().clone()
        expected = Sampler().sample(adjusted, requests)
        actual = step(
            sampler,
            logits.to(device),
            [seen[place] for place in places],
            [each.token_ids[-1] for each in requests],
        )
        for request, row, ours, theirs in zip(requests, adjusted, actual, expected, strict=True):
            for pair in zip(ours, theirs, strict=True):
                check(*pair, request, row)
        for place, index in last:
            seen[place].token_ids[index] = truth[place].token_ids[index]
        last = []
        for place, own in zip(places, actual, strict=True):
            if len(own) == 1:
                last.append((place, seen[place].expect()))
                truth[place].token_ids.append(own[0].token_id)


def test_a_forbidden_token_comes_where_there_is_no_other(device: torch.device) -> None:
    everything = frozenset(range(VOCAB_SIZE))
    params = SamplingParams(temperature=0.0, min_tokens=9, stop_token_ids=everything)
    logits = make_logits(1, 0, torch.float32)
    ((sample,),) = step(
        make_sampler(device), logits.to(device), [Request("r", [8], 1, params)], [8]
    )
    assert sample.token_id == logits.argmax().item()


def test_a_step_that_draws_for_nobody_draws_nothing(device: torch.device) -> None:
    assert make_sampler(device).draw(torch.empty(0, 8), []).tolist() == []


def test_a_request_draws_the_same_beside_any_number_of_others(device: torch.device) -> None:
    """Also where the rows of numbers are padded: 3 are no multiple of 4."""
    logits = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0)).to(device)
    requests = [
        Request(f"r{seed}", [1, 2], 2, SamplingParams(temperature=1.5, seed=seed))
        for seed in range(3)
    ]
    sampler = make_sampler(device)
    alone = [sampler.draw(logits[row : row + 1], [requests[row]]).item() for row in range(3)]
    assert sampler.draw(logits, requests).tolist() == alone
    assert alone != logits.argmax(dim=1).tolist()
