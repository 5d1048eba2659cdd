"""What parameters do to logits, against the twins, and to the last bit against the CPU's rule."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.kernels.cuda.adjust_logits import (
    BiasPairs,
    PenaltyRows,
    adjust_logits,
    adjust_logits_torch,
    count_tokens,
    count_tokens_torch,
)
from engine.logit_adjustment import LogitAdjustment
from engine.request import Request
from engine.sampling_params import SamplingParams

# Of NumPy, which computes in the interpreter: infinity is what is meant.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
VOCAB_SIZE, STRIDE = 5003, 5004
SMALLEST = 2.0**-149
PENALTIES = [
    (1.0, 0.0, 0.0),
    (1.3, 0.0, 0.0),
    (0.7, 0.0, 0.0),
    (1.0, 0.7, 0.3),
    (1.17, -1.3, 0.9),
    (SMALLEST, 0.0, 0.0),
    (2.0, 2.0, -2.0),
]


def words(values: list[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def random_tokens(seed: int, number: int) -> torch.Tensor:
    """Few different ones, the last of the vocabulary among them."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 200, (number,), generator=generator, dtype=torch.int32) * 25
    tokens[0] = VOCAB_SIZE - 1
    return tokens


@pytest.mark.parametrize("num_tokens", [1, 16, 3000], ids=["one", "few", "several programs"])
def test_counts_equal_the_twin(num_tokens: int, device: torch.device) -> None:
    """Prompts that end inside, before and behind what is counted."""
    counts = torch.zeros(3, STRIDE, dtype=torch.int32)
    ours = counts.clone().to(device)
    for seed, num_prompt_tokens in enumerate((num_tokens // 2, 0, num_tokens)):
        tokens = random_tokens(seed, num_tokens)
        for slot in (0, 2):
            count_tokens_torch(tokens, counts, slot, num_prompt_tokens)
            count_tokens(tokens.to(device), ours, slot, num_prompt_tokens)
    assert torch.equal(ours.cpu(), counts)
    assert not counts[1].any() and counts[2].any()


def make_rows(device: torch.device) -> PenaltyRows:
    """Row i takes its logits from row 6 - i. The first has no counts; the last two share theirs."""
    floats = torch.tensor(PENALTIES, dtype=torch.float32, device=device).t().contiguous()
    return PenaltyRows(
        words([6 - row for row in range(7)], device),
        words([-1, 3, 0, 1, 5, 2, 2], device),
        words([0, 1, 1, 0, 1, 0, 0], device),
        *floats,
    )


def make_pairs(device: torch.device) -> BiasPairs:
    return BiasPairs(
        words([0, 1, 1, 6], device),
        words([5002, 0, 4096, 25], device),
        torch.tensor([3.5, -math.inf, 1.25, -2.0], device=device),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_adjusted_logits_and_counts_equal_the_twin(
    dtype: torch.dtype, device: torch.device
) -> None:
    logits = torch.randn(7, VOCAB_SIZE, generator=torch.Generator().manual_seed(1)) * 3
    logits = logits.to(dtype)
    last = random_tokens(9, 7)
    counts = torch.zeros(6, STRIDE, dtype=torch.int32)
    for slot in range(6):
        count_tokens_torch(random_tokens(slot, 300), counts, slot, 150)
    before = counts.clone()
    ours = counts.clone().to(device)
    expected, actual = torch.empty(7, VOCAB_SIZE), torch.empty(7, VOCAB_SIZE, device=device)
    cpu = torch.device("cpu")
    adjust_logits_torch(logits, make_rows(cpu), last, counts, make_pairs(cpu), expected)
    adjust_logits(
        logits.to(device), make_rows(device), last.to(device), ours, make_pairs(device), actual
    )
    assert torch.equal(actual.cpu(), expected)
    assert torch.equal(ours.cpu(), counts)
    assert (counts - before).sum() == 3
    assert not torch.equal(expected, logits[make_rows(cpu).sources.long()].float())


@pytest.mark.parametrize("penalties", PENALTIES, ids=str)
def test_one_row_equals_the_rule_to_the_last_bit(
    penalties: tuple[float, float, float], device: torch.device
) -> None:
    """Tokens of prompt and output, known before and the last one, biased and masked too."""
    repetition, presence, frequency = penalties
    prompt, output = random_tokens(1, 90).tolist(), random_tokens(2, 110).tolist()
    params: dict[str, Any] = {"logit_bias": {25: 1.5, 0: -0.25}, "min_tokens": 1000}
    request = Request(
        "r",
        prompt + output,
        len(prompt),
        replace(
            SamplingParams(**params, stop_token_ids=frozenset({50, 25})),
            repetition_penalty=repetition,
            presence_penalty=presence,
            frequency_penalty=frequency,
        ),
    )
    logits = torch.randn(1, VOCAB_SIZE, generator=torch.Generator().manual_seed(5)) * 3
    expected = logits[0].clone()
    LogitAdjustment(request).apply(expected)
    counts = torch.zeros(1, STRIDE, dtype=torch.int32, device=device)
    count_tokens(words(request.token_ids[:-1], device), counts, 0, len(prompt))
    floats = torch.tensor(penalties, device=device)[:, None].contiguous()
    zero, one = words([0], device), words([1], device)
    pairs = BiasPairs(
        words([0, 0, 0], device),
        words([50, 25, 0], device),
        torch.tensor([-math.inf, -math.inf, -0.25], device=device),
    )
    adjusted = torch.empty(1, VOCAB_SIZE, device=device)
    last = words(output[-1:], device)
    adjust_logits(
        logits.to(device), PenaltyRows(zero, zero, one, *floats), last, counts, pairs, adjusted
    )
    assert torch.equal(adjusted[0].cpu(), expected)
