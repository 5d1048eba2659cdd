"""Every family and feature against transformers, in float32."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from engine.config import ModelConfig, RopeScaling
from engine.models import load_model
from engine.weights.checkpoint import Checkpoint, open_checkpoint
from tests.engine.models.sequence_runner import SequenceRunner
from tests.engine.models.tiny_checkpoint import CASES, Case, random_prompt, write_checkpoint

TOLERANCE = 1e-4
# Past the sliding window and past the original context of every rotary scaling.
PROMPT = random_prompt(70)
# One token alone, chunks that end inside, at and across block borders.
CHUNKS = (1, 15, 16, 3, 35)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def tiny(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Case, Checkpoint, PreTrainedModel, torch.Tensor]:
    """A case, its checkpoint, the reference model and the reference logits of PROMPT."""
    case: Case = request.param
    folder = tmp_path_factory.mktemp(case.name)
    model = write_checkpoint(case, folder)
    with torch.inference_mode():
        logits = model(torch.tensor([PROMPT])).logits[0]
    return case, open_checkpoint(str(folder)), model, logits


def test_logits_equal_transformers(tiny: Any) -> None:
    _, checkpoint, _, expected = tiny
    actual = SequenceRunner(load_model(checkpoint, torch.float32)).logits(PROMPT)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE)


def test_greedy_tokens_equal_transformers(tiny: Any) -> None:
    _, checkpoint, model, _ = tiny
    generated = model.generate(
        torch.tensor([PROMPT]),
        attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
        max_new_tokens=24,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    actual = SequenceRunner(load_model(checkpoint, torch.float32)).greedy(PROMPT, 24)
    assert actual == generated[0, len(PROMPT) :].tolist()


def test_a_prompt_in_chunks_gives_the_same_logits(tiny: Any) -> None:
    _, checkpoint, _, expected = tiny
    assert sum(CHUNKS) == len(PROMPT)
    runner = SequenceRunner(load_model(checkpoint, torch.float32))
    parts = []
    for length in CHUNKS:
        start = runner.num_computed
        parts.append(runner.logits(PROMPT[start : start + length]))
    torch.testing.assert_close(torch.cat(parts), expected, rtol=0, atol=TOLERANCE)


def test_dropping_a_feature_moves_the_logits(tiny: Any) -> None:
    case, checkpoint, _, expected = tiny
    original = checkpoint.config
    try:
        for feature in case.features:
            checkpoint.config = without(original, feature)
            actual = SequenceRunner(load_model(checkpoint, torch.float32)).logits(PROMPT)
            moved = (actual - expected).abs().max().item()
            assert moved > 100 * TOLERANCE, f"dropping {feature} moved logits by only {moved}"
    finally:
        checkpoint.config = original


def without(config: ModelConfig, feature: str) -> ModelConfig:
    """``config`` as a loader would make it that knows nothing of ``feature``."""
    dropped: dict[str, Any] = {
        "rope_scaling": RopeScaling(),
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
        "sliding_window": None,
        "sliding_window_layers": None,
        "attention_bias": False,
        "attention_output_bias": False,
        "mlp_bias": False,
        "qk_norm": False,
        "tie_word_embeddings": not config.tie_word_embeddings,
    }
    return replace(config, **{feature: dropped[feature]})
