"""GGUF files of every family against transformers, in float32."""

from pathlib import Path

import pytest
import torch

from engine.models import load_model
from engine.weights.checkpoint import open_checkpoint
from tests.engine.models.gguf_export import write_gguf_model
from tests.engine.models.sequence_runner import SequenceRunner
from tests.engine.models.tiny_checkpoint import CASES, Case, random_prompt, write_checkpoint

TOLERANCE = 1e-4
PROMPT = random_prompt(70)
# GGUF metadata has no place for windows by layer, nor for these settings of yarn.
INEXPRESSIBLE = {
    "llama-yarn-mscale",
    "llama-yarn-untruncated",
    "qwen2-window",
    "qwen2-layer-types",
}
EXPRESSIBLE = [case for case in CASES if case.name not in INEXPRESSIBLE]


@pytest.mark.parametrize("case", EXPRESSIBLE, ids=lambda case: case.name)
def test_logits_equal_transformers(case: Case, tmp_path: Path) -> None:
    model = write_checkpoint(case, tmp_path)
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0]
    checkpoint = open_checkpoint(str(write_gguf_model(model, tmp_path / "model.gguf")))
    actual = SequenceRunner(load_model(checkpoint, torch.float32)).logits(PROMPT)
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE)
