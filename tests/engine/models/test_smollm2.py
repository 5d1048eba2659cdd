"""The default model: golden answers, sizes, and how far lower precision strays."""

from typing import Any

import pytest
import torch

from engine.models import DecoderModel, load_model
from engine.weights.checkpoint import Checkpoint
from tests.engine.models.sequence_runner import SequenceRunner

# "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
PROMPT = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
# "The capital of France is Paris.<|im_end|>"
ANSWER = [504, 3575, 282, 4649, 314, 7042, 30, 2]
# Root mean square difference from float32, where logits have a standard deviation of about 6.
LOGIT_TOLERANCE = {("bfloat16", "none"): 0.25, ("bfloat16", "q4"): 0.25, ("float32", "q4"): 0.15}
# A different token may win only where float32's two best are closer than this.
GAP_TOLERANCE = 0.5
FORMS = [pytest.param(*form, id="-".join(form)) for form in LOGIT_TOLERANCE]


@pytest.fixture(scope="module")
def exact(smollm2: Checkpoint) -> DecoderModel:
    return load_model(smollm2, torch.float32)


@pytest.fixture(scope="module")
def text(exact: DecoderModel) -> list[int]:
    """The prompt and what float32 says to it without stopping."""
    return PROMPT + SequenceRunner(exact).greedy(PROMPT, 64)


def load_as(checkpoint: Checkpoint, dtype: str, quantization: Any) -> SequenceRunner:
    torch_dtype = getattr(torch, dtype)
    return SequenceRunner(load_model(checkpoint, torch_dtype, quantization), torch_dtype)


def test_float32_gives_the_golden_answer(exact: DecoderModel) -> None:
    assert SequenceRunner(exact).greedy(PROMPT, len(ANSWER)) == ANSWER


@pytest.mark.parametrize(("dtype", "quantization"), FORMS)
def test_lower_precision_gives_the_golden_answer(
    dtype: str, quantization: str, smollm2: Checkpoint
) -> None:
    runner = load_as(smollm2, dtype, quantization)
    assert runner.greedy(PROMPT, len(ANSWER)) == ANSWER


@pytest.mark.parametrize(("dtype", "quantization"), FORMS)
def test_lower_precision_stays_near_float32(
    dtype: str, quantization: str, smollm2: Checkpoint, exact: DecoderModel, text: list[int]
) -> None:
    """Once with all tokens in one step and once one by one: both GEMMs of q4."""
    expected = SequenceRunner(exact).logits(text)
    runner = load_as(smollm2, dtype, quantization)
    together = runner.logits(text)
    runner = load_as(smollm2, dtype, quantization)
    apart = torch.cat([runner.logits([token]) for token in text])
    for actual in (together, apart):
        difference = (actual - expected).square().mean().sqrt().item()
        assert difference < LOGIT_TOLERANCE[dtype, quantization]
        best = expected.topk(2).values
        differs = actual.argmax(-1) != expected.argmax(-1)
        assert (best[differs, 0] - best[differs, 1] < GAP_TOLERANCE).all()


def test_q4_weights_stay_below_110_megabytes(smollm2: Checkpoint) -> None:
    assert load_model(smollm2, torch.bfloat16, "q4").resident_bytes() < 110e6
