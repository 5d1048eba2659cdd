"""Every family and feature on a GPU against transformers on the CPU in float32."""

from pathlib import Path

import pytest
import torch

from engine.models import load_model
from engine.weights.checkpoint import open_checkpoint
from tests.engine.models.sequence_runner import SequenceRunner
from tests.engine.models.tiny_checkpoint import CASES, Case, random_prompt, write_checkpoint

pytestmark = pytest.mark.gpu
# Largest error of a logit; they reach about 30.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 1.0}
PROMPT = random_prompt(70)
CHUNKS = (1, 15, 16, 3, 35)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_logits_equal_transformers(case: Case, dtype: torch.dtype, tmp_path: Path) -> None:
    """In one step, and in chunks of which the first is a decode step."""
    from engine.attention.gpu_select import create_gpu_attention

    model = write_checkpoint(case, tmp_path)
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0]
    device = torch.device("cuda")
    own = load_model(open_checkpoint(str(tmp_path)), dtype, device=device)
    for chunks in ((len(PROMPT),), CHUNKS):
        runner = SequenceRunner(own, dtype, device=device, make_attention=create_gpu_attention)
        parts, rest = [], list(PROMPT)
        for length in chunks:
            parts.append(runner.logits(rest[:length]).float().cpu())
            rest = rest[length:]
        torch.testing.assert_close(torch.cat(parts), expected, rtol=0, atol=TOLERANCE[dtype])
